"""Writes the object of every sequence of a run that has none yet."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from eyas.errors import AlreadyExistsError, DataError, UnavailableError
from eyas.extractor.model import Model
from eyas.run.v1 import run_pb2 as pb
from eyas.storage import hidden_states, tables
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import ObjectStore, outlast
from eyas.storage.sequences import longest, sequences

_log = structlog.get_logger()


@dataclass(frozen=True)
class _Answer:
    turn: int
    prompt_ids: list[int]
    ids: list[int]


async def extract(store: ObjectStore, spec: pb.RunSpec, tell: Callable[[int, int, str], Awaitable[None]]) -> None:
    """Extracts what is missing, one sequence at a time; `tell` hears how many of how many are there.

    Raises:
        InputError: the model can't be used.
        DataError: an object is there that belongs to other settings.
    """
    layout = RunLayout(spec.name)
    wanted = await _wanted(store, spec, layout)
    model = await asyncio.to_thread(Model, spec.model.uri, spec.vllm.dtype, tuple(spec.hidden_states.layer_ids))
    sizes = {info.key: info.size async for info in store.list(layout.hidden_states_prefix)}
    missing = {key: ids for key, ids in wanted.items() if sizes.get(key) != model.object_size(len(ids))}
    done = len(wanted) - len(missing)
    await tell(done, len(wanted), "extracts hidden states")
    for key, ids in missing.items():
        await _write(store, key, await asyncio.to_thread(model.extract, ids))
        done += 1
        await tell(done, len(wanted), "extracts hidden states")


async def _wanted(store: ObjectStore, spec: pb.RunSpec, layout: RunLayout) -> dict[str, list[int]]:
    """The ids of every sequence, by the key of its object."""
    codec = tables.GENERATIONS.only("sample_id", "turn", "prompt_ids", "ids")
    samples = defaultdict(list)
    async for part in Log(store, layout.generations, ".parquet", codec).catch_up():
        for row in part.value:
            samples[row["sample_id"]].append(_Answer(row["turn"], row["prompt_ids"], row["ids"]))
    most = longest(spec)
    joined = [sequence.ids for answers in samples.values() for sequence in sequences(answers, most)]
    return {layout.hidden_states(hidden_states.key(ids)): ids for ids in joined}


async def _write(store: ObjectStore, key: str, data: memoryview) -> None:
    def report(error: UnavailableError, seconds: float) -> None:
        _log.warning("waits for storage", error=str(error), seconds=round(seconds, 1))

    async def create() -> None:
        try:
            await store.create(key, data)
        except AlreadyExistsError as error:
            there = (await store.head(key)).size
            if there != len(data):
                raise DataError(
                    f"{key} has {there} bytes instead of {len(data)}: it was extracted with other settings; "
                    "start another run, or delete the run's hidden_states"
                ) from error

    await outlast(create, report=report)
