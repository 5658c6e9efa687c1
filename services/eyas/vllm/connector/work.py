"""The worker's half: copies what was planned, says when blocks are free again, and hands the copies to uploads."""

import logging
import time
from collections import deque
from collections.abc import Iterable

from eyas.vllm.connector.copies import Copier, Copy
from eyas.vllm.connector.plan import Save
from eyas.vllm.connector.uploads import Tally, Uploads

_log = logging.getLogger("vllm.eyas.connector")
_IDLE_SECONDS = 0.005  # vLLM's loop spins while requests keep blocks


class Work:
    """Saves that wait for memory, and copies that are under way, by request."""

    def __init__(self, copier: Copier, uploads: Uploads, tally: Tally) -> None:
        self._copier = copier
        self._uploads = uploads
        self._tally = tally
        self._waiting: deque[Save] = deque()
        self._copying: dict[str, Copy] = {}

    def step(self, saves: Iterable[Save], *, idle: bool) -> set[str]:
        """Takes new saves, and returns the requests whose blocks are free, each once.

        `idle`: the engine has nothing to compute, so that a short wait costs nobody anything.
        """
        self._waiting.extend(saves)
        free = self._advance()
        if idle and not free and (self._waiting or self._copying):
            self._uploads.wait(_IDLE_SECONDS)
            free = self._advance()
        return free

    def close(self, seconds: float) -> None:
        """Copies and uploads what is left, at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            self.step((), idle=True)
        for save in self._waiting:
            _log.error("Hidden states %s are lost: the server stops, and storage did not keep up", save.key)
        self._uploads.close(max(0.0, deadline - time.monotonic()))

    def _advance(self) -> set[str]:
        free = set()
        while self._waiting and self._uploads.has_room(self._copier.size(self._waiting[0])):
            save = self._waiting.popleft()
            if not self._start(save):
                free.add(save.request_id)
        done = [request_id for request_id, copy in self._copying.items() if copy.done()]
        for request_id in done:
            del self._copying[request_id]
        return free.union(done)

    def _start(self, save: Save) -> bool:
        try:
            copy = self._copier.start(save)
        except Exception:  # noqa: BLE001 - the blocks must be given back, whatever happened
            _log.exception("Hidden states %s are lost: they could not be copied", save.key)
            self._tally.add("failed")
            return False
        self._copying[save.request_id] = copy
        self._uploads.start(save.key, self._copier.size(save), copy.bytes)
        return True
