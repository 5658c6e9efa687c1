"""One task a log: what is queued becomes durable in parts, in order, however long storage is away."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from eyas.errors import StorageFullError, UnavailableError
from eyas.storage.log import Log, Part

Entry = TypeVar("Entry")
Value = TypeVar("Value")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0


class Writer(Generic[Entry, Value]):
    """Queues entries and appends them to a log.

    `build` makes a part of entries, leaving out those that are no longer wanted; None when none is. `absorbed` hears of
    parts of other writers, before the entries are built again. `committed` hears what is durable.
    """

    def __init__(
        self,
        log: Log[Value],
        *,
        rows: int,
        seconds: float,
        size: Callable[[Entry], int],
        build: Callable[[Sequence[Entry]], Awaitable[Value | None]],
        absorbed: Callable[[Part[Value]], None],
        committed: Callable[[Sequence[Entry]], None],
        trouble: Callable[[str, bool], None],
        clock: Callable[[], float],
    ) -> None:
        self.log = log
        self.bytes = 0
        self.oldest: float | None = None
        """When the oldest entry was queued."""
        self._rows = rows
        self._seconds = seconds
        self._size = size
        self._build = build
        self._absorbed = absorbed
        self._committed = committed
        self._trouble = trouble
        self._clock = clock
        self._queue: list[Entry] = []
        self._news = asyncio.Event()
        self._hurry = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, entry: Entry) -> None:
        """Queues an entry."""
        if not self._queue:
            self.oldest = self._clock()
        self._queue.append(entry)
        self.bytes += self._size(entry)
        self._idle.clear()
        self._news.set()

    def hurry(self) -> None:
        """Writes what is queued at once."""
        if self._queue:
            self._hurry = True
            self._news.set()

    async def flushed(self) -> None:
        """Writes what is queued at once, and returns when it is durable."""
        self.hurry()
        await self._idle.wait()

    async def run(self) -> None:
        """Writes until it is cancelled. Raises ReplacedError, or DataError."""
        while True:
            await self._due()
            entries = self._queue[: self._rows]
            self._hurry = self._hurry and len(entries) < len(self._queue)
            await self._write(entries)
            del self._queue[: len(entries)]
            self.bytes -= sum(map(self._size, entries))
            self.oldest = self._clock() if self._queue else None
            if not self._queue:
                self._idle.set()

    async def _due(self) -> None:
        while not self._hurry and len(self._queue) < self._rows:
            self._news.clear()
            wait = None if self.oldest is None else self.oldest + self._seconds - self._clock()
            if wait is not None and wait <= 0:
                return
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                return

    async def _write(self, entries: Sequence[Entry]) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                value = await self._build(entries)
                if value is None:
                    return
                part = await self.log.append(value)
            except UnavailableError as error:
                self._trouble(str(error), False)
            except StorageFullError as error:
                self._trouble(str(error), True)
            else:
                self._trouble("", False)
                if part is None:
                    self._committed(entries)
                    return
                self._absorbed(part)
                continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
