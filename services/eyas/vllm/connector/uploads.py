"""Uploads from threads, within a bound on the memory that they hold. Knows neither vLLM nor torch."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from eyas.errors import AlreadyExistsError, EyasError, StorageError, UnavailableError
from eyas.storage.objects import ObjectStore

OUTCOMES = ("written", "existing", "failed", "refused")
"""What can become of a request's states. `existing`: the same object was there. `refused`: a request that can't be."""

# vLLM prints what is logged below its own name, and nothing else.
_log = logging.getLogger("vllm.eyas.connector")


class Tally:
    """Counts of outcomes and of bytes written, added to by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Counts one of OUTCOMES, or `bytes`."""
        with self._lock:
            self._counts[name] += amount

    def take(self) -> dict[str, int]:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)


class Uploads:
    """Creates objects from threads. Objects are never replaced: a name is the hash of what it holds."""

    def __init__(
        self,
        store: ObjectStore,
        tally: Tally,
        *,
        threads: int,
        bytes_in_flight: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tally = tally
        self._most = bytes_in_flight
        self._seconds = seconds
        self._clock = clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="eyas-upload")
        self._ended = threading.Condition()
        self._bytes = 0
        self._closing = threading.Event()

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be held. One object always may, however large."""
        with self._ended:
            return self._bytes == 0 or self._bytes + size <= self._most

    def start(self, key: str, size: int, data: Callable[[], memoryview]) -> None:
        """Uploads what `data` returns; it is called in the thread, and may wait there."""
        with self._ended:
            self._bytes += size
        self._pool.submit(self._run, key, size, data)

    def wait(self, seconds: float) -> None:
        """Waits until an upload ends, at most `seconds`."""
        with self._ended:
            self._ended.wait(seconds)

    def close(self, seconds: float) -> None:
        """Waits for the uploads, at most `seconds`; then those that still try give up."""
        deadline = self._clock() + seconds
        with self._ended:
            while self._bytes and (left := deadline - self._clock()) > 0:
                self._ended.wait(left)
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, key: str, size: int, data: Callable[[], memoryview]) -> None:
        try:
            outcome = self._create(key, size, data())
        except EyasError as error:
            _log.error("Hidden states are lost: %s", error)
            outcome = "failed"
        except Exception:  # noqa: BLE001 - memory must be given back, whatever happened
            _log.exception("Hidden states %s are lost", key)
            outcome = "failed"
        self._tally.add(outcome)
        if outcome == "written":
            self._tally.add("bytes", size)
        with self._ended:
            self._bytes -= size
            self._ended.notify_all()

    def _create(self, key: str, size: int, data: memoryview) -> str:
        began, pause = self._clock(), 0.5
        while True:
            try:
                self._store.create_blocking(key, data)
            except AlreadyExistsError:
                there = self._store.head_blocking(key).size
                if there != size:
                    raise StorageError(f"{key} has {there} bytes instead of {size}: extract into another run") from None
                return "existing"
            except UnavailableError as error:
                if self._clock() - began + pause > self._seconds or self._closing.wait(pause):
                    raise
                _log.warning("Trying again: %s", error)
                pause = min(2 * pause, 8.0)
            else:
                return "written"
