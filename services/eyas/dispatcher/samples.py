"""The samples of a run: written once in parts by the import, read where they are needed."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable

import pyarrow as pa

from eyas.errors import AlreadyExistsError, DataError
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.storage.tables import SAMPLES, SampleRow

PART_ROWS = 10_000
"""Rows of every part but the last. Part of the format: a position names its part."""

_CACHED_PARTS = 6
_BLOCK_ROWS = 64
_CACHED_BLOCKS = 64
"""Rows that become Python objects at once: neighbours are handed out and written together."""


class Samples:
    """Rows by position. A few parts are kept in memory, as columns."""

    def __init__(self, store: ObjectStore, layout: RunLayout, count: int) -> None:
        self.count = count
        self._store = store
        self._layout = layout
        self._parts: OrderedDict[int, pa.Table] = OrderedDict()
        self._blocks: OrderedDict[int, list[SampleRow]] = OrderedDict()
        self._lock = asyncio.Lock()

    def loaded(self, position: int) -> bool:
        """Whether `row` has it at hand."""
        return position // PART_ROWS in self._parts

    def row(self, position: int) -> SampleRow:
        """A row that is loaded."""
        number, offset = divmod(position, PART_ROWS)
        first = position - offset % _BLOCK_ROWS
        if first not in self._blocks:
            self._parts.move_to_end(number)
            self._blocks[first] = self._parts[number].slice(first % PART_ROWS, _BLOCK_ROWS).to_pylist()
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        row = self._blocks[first][position - first]
        if row["position"] != position:
            raise DataError(f"{self._layout.samples_part(number)} does not hold position {position} in its place")
        return row

    async def load(self, position: int) -> None:
        """Makes a row available to `row`."""
        number = position // PART_ROWS
        async with self._lock:
            if number not in self._parts:
                data = await self._store.get(self._layout.samples_part(number))
                self._parts[number] = await asyncio.to_thread(SAMPLES.read, data)
                while len(self._parts) > _CACHED_PARTS:
                    self._parts.popitem(last=False)

    async def rows(self, positions: Iterable[int]) -> dict[int, SampleRow]:
        """Rows of any positions."""
        found: dict[int, SampleRow] = {}
        for position in sorted(set(positions)):
            if not self.loaded(position):
                await self.load(position)
            found[position] = self.row(position)
        return found

    async def turns(self) -> list[int]:
        """Number of turns of each sample, in order."""
        turns: list[int] = []
        only = SAMPLES.only("turns")
        for number in range(-(-self.count // PART_ROWS)):
            table = await asyncio.to_thread(only.read, await self._store.get(self._layout.samples_part(number)))
            turns.extend(table.column("turns").to_pylist())
        return turns


async def write(store: ObjectStore, layout: RunLayout, rows: AsyncIterator[SampleRow]) -> tuple[int, int]:
    """Writes the parts. Returns the numbers of samples and turns. An interrupted import's parts must be gone."""
    samples = generations = 0
    part: list[SampleRow] = []
    async for row in rows:
        if row["position"] != samples:
            raise DataError(f"a sample has position {row['position']} where {samples} is next")
        samples, generations = samples + 1, generations + row["turns"]
        part.append(row)
        if len(part) == PART_ROWS:
            await _create(store, layout.samples_part(samples // PART_ROWS - 1), part)
            part = []
    if part:
        await _create(store, layout.samples_part(samples // PART_ROWS), part)
    return samples, generations


async def _create(store: ObjectStore, key: str, rows: list[SampleRow]) -> None:
    data = await asyncio.to_thread(SAMPLES.encode, rows)
    try:
        await store.create(key, data)
    except AlreadyExistsError:
        if await store.get(key) != data:  # else only the reply was lost
            raise
