"""The check that closes the generate stage, on the data itself: rows == distinct == expected, and nothing foreign."""

import asyncio
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from eyas.errors import DataError
from eyas.run.v1 import run_pb2
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.storage.tables import GENERATIONS, SAMPLES

_ROW = GENERATIONS.only("sample_id", "position", "turn")
_SAMPLE = SAMPLES.only("sample_id", "position", "turns")
_NAMED = 3


async def check(
    store: ObjectStore, layout: RunLayout, dataset: run_pb2.Dataset, given_up: Collection[tuple[int, int]]
) -> None:
    """Reads samples and generations back. `given_up` has position and turn. Raises DataError."""
    rows = [_ROW.read(await store.get(info.key)) async for info in store.list(layout.generations)]
    samples = [_SAMPLE.read(await store.get(info.key)) async for info in store.list(layout.samples)]
    await asyncio.to_thread(
        _check,
        layout.run,
        pa.concat_tables(rows) if rows else _ROW.schema.empty_table(),
        pa.concat_tables(samples) if samples else _SAMPLE.schema.empty_table(),
        dataset,
        given_up,
    )


def _check(
    run: str, rows: pa.Table, samples: pa.Table, dataset: run_pb2.Dataset, given_up: Collection[tuple[int, int]]
) -> None:
    expected = dataset.generations
    if samples.num_rows != dataset.samples:
        raise DataError(f"run {run} has {samples.num_rows} samples in storage, its spec says {dataset.samples}")
    distinct = rows.group_by(["sample_id", "turn"]).aggregate([]).num_rows
    if distinct != rows.num_rows:
        raise DataError(f"run {run} has {rows.num_rows} generations, but only {distinct} different ones")
    if rows.num_rows + len(given_up) != expected:
        raise DataError(
            f"run {run} has {rows.num_rows} generations and {len(given_up)} given up, {expected} were asked for"
        )
    turns = samples.column("turns").combine_chunks()
    parents = pa.array(range(samples.num_rows), pa.int64())
    repeated = parents.take(pc.list_parent_indices(_lists(turns)))
    asked = samples.select(["sample_id", "position"]).take(repeated)
    starts = pc.subtract(pc.cumulative_sum(pc.cast(turns, pa.int64())), pc.cast(turns, pa.int64()))
    turn = pc.subtract(pa.array(range(len(repeated)), pa.int64()), starts.take(repeated))
    asked = asked.append_column("turn", pc.cast(turn, pa.int32()))
    keys = ["sample_id", "position", "turn"]
    missing = asked.join(rows, keys, join_type="left anti")
    lost = [row for row in missing.to_pylist() if (row["position"], row["turn"]) not in given_up]
    foreign = rows.join(asked, keys, join_type="left anti")
    if lost or foreign.num_rows:
        raise DataError(
            f"run {run} lacks {len(lost)} generations that were asked for {_some(lost)} and has {foreign.num_rows} "
            f"that were not {_some(foreign.slice(0, _NAMED).to_pylist())}"
        )


def _lists(lengths: pa.Array) -> pa.ListArray:
    """Lists of these lengths, whose parents are the repeated indices."""
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(lengths), pa.int32())])
    return pa.ListArray.from_arrays(offsets, pa.nulls(offsets[-1].as_py(), pa.int8()))


def _some(rows: list[dict[str, object]]) -> str:
    return str([(row["position"], row["turn"]) for row in rows[:_NAMED]]) if rows else ""
