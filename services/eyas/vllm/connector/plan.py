"""The scheduler's half: which finished requests leave hidden states, and from which blocks. Knows no vLLM."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eyas.errors import InputError
from eyas.storage import hidden_states

_ENDED_WELL = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
_KEY = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*([0-9a-f]{64})\.safetensors")


class FinishedRequest(Protocol):
    """What is read of vLLM's Request."""

    request_id: str
    kv_transfer_params: Mapping[str, Any] | None
    num_computed_tokens: int

    @property
    def status(self) -> Any:
        """A member of vLLM's RequestStatus."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output."""


@dataclass(frozen=True)
class Save:
    """Rows to be copied out of the cache before vLLM may reuse their blocks."""

    request_id: str
    key: str
    ids: list[int]
    blocks: list[int]


class Plan:
    """Collects the saves of finished requests until the next step takes them to the worker."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._saves: list[Save] = []

    def add(self, request: FinishedRequest, blocks: Sequence[int]) -> bool:
        """Whether the request's states will be saved, so that its blocks must be kept. Raises InputError.

        The ids and blocks are copied: a request that is finished is soon gone. Requests that were aborted, or never
        ran, leave nothing: their blocks hold the states of others from some row on.
        """
        params = request.kv_transfer_params or {}
        if "eyas_key" not in params or request.status.name not in _ENDED_WELL:
            return False
        key, rows = params["eyas_key"], params.get("eyas_rows")
        match = _KEY.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            raise InputError(f"eyas_key {key!r} is no key: give <folders>/<hash of the ids>.safetensors")
        # The last id is an output that never went in, whatever was scheduled ahead of its answer.
        written = min(len(request.all_token_ids) - 1, request.num_computed_tokens, len(blocks) * self._block_size)
        if not isinstance(rows, int) or not 0 < rows <= written:
            raise InputError(f"eyas_rows of {key} is {rows!r}: the request has states of {written} ids")
        ids = list(request.all_token_ids[:rows])
        if match[1] != hidden_states.key(ids):
            raise InputError(f"eyas_key {key} is not the hash of the request's first {rows} ids: it has other ids")
        self._saves.append(Save(request.request_id, key, ids, list(blocks[: -(-rows // self._block_size)])))
        return True

    def take(self) -> list[Save]:
        """What was collected since the last call."""
        saves, self._saves = self._saves, []
        return saves
