"""The closing check finds what is wrong with the data."""

import pytest

from eyas.dispatcher import closing
from eyas.errors import DataError
from eyas.run.v1 import run_pb2
from eyas.storage.layout import RunLayout
from eyas.storage.objects import open_store
from eyas.storage.tables import GENERATIONS, SAMPLES
from support.rows import generation, sample

LAYOUT = RunLayout("r")
TURNS = (1, 3, 2)


async def stored(*places):
    store = open_store("memory:///")
    samples = [sample(position, turns) for position, turns in enumerate(TURNS)]
    await store.put(LAYOUT.samples_part(0), SAMPLES.encode(samples[:2]))
    await store.put(LAYOUT.samples_part(1), SAMPLES.encode(samples[2:]))
    rows = [generation(position, turn) for position, turn in places]
    await store.put(f"{LAYOUT.generations}/000000.parquet", GENERATIONS.encode(rows[:3]))
    await store.put(f"{LAYOUT.generations}/000001.parquet", GENERATIONS.encode(rows[3:]))
    return store


ALL = [(position, turn) for position, turns in enumerate(TURNS) for turn in range(turns)]


async def check(places, given_up=frozenset()):
    dataset = run_pb2.Dataset(samples=3, generations=6)
    await closing.check(await stored(*places), LAYOUT, dataset, given_up)


async def test_a_whole_run_passes():
    await check(ALL)
    await check(ALL[:-1], {(2, 1)})


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (ALL[:-1], "5 generations and 0 given up, 6 were asked for"),
        ([*ALL, ALL[0]], "only 6 different ones"),
        ([*ALL[:-1], (2, 5)], r"lacks 1 .*\[\(2, 1\)\] and has 1 that were not \[\(2, 5\)\]"),
        ([*ALL[:-1], (7, 0)], r"lacks 1 .*\[\(2, 1\)\] and has 1 that were not \[\(7, 0\)\]"),
    ],
)
async def test_what_is_wrong_is_named(places, said):
    with pytest.raises(DataError, match=said):
        await check(places)
