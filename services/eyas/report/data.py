"""What a report is made of, read from the run and from nothing else."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eyas.errors import DataError, NotFoundError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.storage.runs import read_spec
from eyas.storage.tables import FAILURES, GENERATIONS, SAMPLES, FailureRow, TableFormat

DRAFTERS = ("trained", "ngram", "untrained", "none", "endpoint")
"""What can have been measured, in the order of a report."""

_ANSWERS = GENERATIONS.only(
    "sample_id",
    "turn",
    "split",
    "prompt_ids",
    "ids",
    "finish_reason",
    "attempts",
    "interruptions",
    "started_at",
    "finished_at",
)
_ASKED = SAMPLES.only("sample_id", "position", "messages", "split", "turns")


@dataclass(frozen=True, slots=True)
class Asked:
    """A sample. `characters` are those of its messages: a prompt that failed may never have become tokens."""

    sample_id: str
    split: str
    turns: int
    characters: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer without its text. Times in seconds since 1970, lengths in tokens."""

    sample_id: str
    turn: int
    split: str
    prompt_tokens: int
    tokens: int
    finish_reason: str
    attempts: int
    interruptions: tuple[str, ...]
    started: float
    finished: float


@dataclass(frozen=True)
class RunData:
    """A run as far as it has come."""

    spec: pb.RunSpec
    samples: list[Asked] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    failures: list[FailureRow] = field(default_factory=list)
    """Items that are given up still: what was answered after a retry is not among them."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """Records of the training's steps, in order, each step once."""
    summary: dict[str, Any] = field(default_factory=dict)
    """What the training said at its end; empty before it."""
    drafters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Measurements by drafter, in the order of `DRAFTERS`."""


async def read(store: ObjectStore, run: str) -> RunData:
    """Reads a run. Raises InputError: there is none; DataError: a part of it can't be read."""
    layout = RunLayout(run)
    spec = await read_spec(store, run)
    training = specs.training_hash(spec)
    answers = [answer async for table in _tables(store, layout.generations, _ANSWERS) for answer in _answers(table)]
    done = {(answer.sample_id, answer.turn) for answer in answers}
    failures: dict[tuple[str, int, str], FailureRow] = {}
    async for table in _tables(store, layout.failures, FAILURES):
        row: FailureRow
        for row in table.to_pylist():
            failures[row["sample_id"], row["turn"], row["stage"]] = row
    return RunData(
        spec=spec,
        samples=[asked async for table in _tables(store, layout.samples, _ASKED) for asked in _samples(table)],
        answers=answers,
        failures=[
            row for (sample, turn, stage), row in failures.items() if stage != "generate" or (sample, turn) not in done
        ],
        steps=await _steps(store, layout.training_steps(training)),
        summary=await _json(store, layout.training_summary(training)) or {},
        drafters=await _drafters(store, layout, specs.evaluation_hash(spec)),
    )


async def _tables(store: ObjectStore, prefix: str, form: TableFormat[Any]) -> AsyncIterator[pa.Table]:
    async for info in store.list(prefix):
        if info.key.endswith(".parquet"):
            yield form.read(await store.get(info.key))


def _samples(table: pa.Table) -> list[Asked]:
    return [
        Asked(row["sample_id"], row["split"], row["turns"], sum(len(message["content"]) for message in row["messages"]))
        for row in table.to_pylist()
    ]


def _answers(table: pa.Table) -> list[Answer]:
    # Lengths are taken in Arrow: the ids of a large run as Python integers would be gigabytes.
    prompts = pc.list_value_length(table["prompt_ids"]).to_pylist()
    tokens = pc.list_value_length(table["ids"]).to_pylist()
    rows = table.drop_columns(["prompt_ids", "ids"]).to_pylist()
    return [
        Answer(
            sample_id=row["sample_id"],
            turn=row["turn"],
            split=row["split"],
            prompt_tokens=prompt,
            tokens=length,
            finish_reason=row["finish_reason"],
            attempts=row["attempts"],
            interruptions=tuple(row["interruptions"]),
            started=row["started_at"].timestamp(),
            finished=row["finished_at"].timestamp(),
        )
        for row, prompt, length in zip(rows, prompts, tokens, strict=True)
    ]


async def _steps(store: ObjectStore, prefix: str) -> list[dict[str, Any]]:
    # A training that was resumed may have logged a step twice: the later record is the one that counts.
    steps: dict[int, dict[str, Any]] = {}
    async for info in store.list(prefix):
        for record in await _json(store, info.key) or ():
            steps[record["step"]] = record
    return [steps[step] for step in sorted(steps)]


async def _drafters(store: ObjectStore, layout: RunLayout, settings_hash: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in DRAFTERS:
        measured = await _json(store, layout.measurement(name))
        if measured and measured["settings_hash"] == settings_hash:
            found[name] = measured["measurement"]
    return found


async def _json(store: ObjectStore, key: str) -> Any:
    try:
        return json.loads(await store.get(key))
    except NotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{store.uri}: {key} is not JSON: {error}") from error
