"""Creation of a run: samples first, spec.json last, so that a run is there whole or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal, cast

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher import fingerprint, samples
from eyas.dispatcher.context import Context
from eyas.dispatcher.run import control_log
from eyas.errors import AlreadyExistsError, InputError, NotFoundError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2
from eyas.storage.layout import RunLayout
from eyas.storage.tables import REJECTED, RejectedRow, SampleRow
from eyas.tokenizer.v1 import tokenizer_pb2

_REMEDY = "give it another name, or settings as before"


async def create(
    context: Context,
    described: tokenizer_pb2.DescribeResponse,
    header: pb.CreateRunHeader,
    requests: AsyncIterator[pb.CreateRunRequest],
) -> None:
    """Imports the rest of the stream, and writes the run down. Raises InputError."""
    layout, store = RunLayout(header.spec.name), context.store
    spec = await fingerprint.pinned(header.spec, described, context.client)
    for prefix in (layout.samples, layout.generations, layout.failures):
        async for info in store.list(prefix):  # of an import that did not come to its end
            await store.delete(info.key)
    rejected: list[RejectedRow] = []
    imported = await samples.write(store, layout, _rows(requests, rejected))
    if imported != (spec.dataset.samples, spec.dataset.generations):
        raise InputError(
            f"{imported[0]} samples with {imported[1]} turns came, the header says {spec.dataset.samples} and "
            f"{spec.dataset.generations}: import again"
        )
    await store.put(layout.rejected, await asyncio.to_thread(REJECTED.encode, rejected))
    control = control_log(context, layout)
    async for _ in control.catch_up():
        pass
    context.outbid(control)
    until = run_pb2.Stage.Name(header.until or run_pb2.STAGE_GENERATE)
    entry = {"at": datetime.now(UTC).isoformat(), "proceed": {"until": until}}
    while await control.append(entry) is not None:
        pass
    data = specs.to_json(spec)
    try:
        await store.create(layout.spec, data)
    except AlreadyExistsError:
        if await store.get(layout.spec) != data:
            raise


async def existing(context: Context, name: str) -> run_pb2.RunSpec | None:
    """The spec of a run that is there."""
    try:
        return specs.from_json(await context.store.get(RunLayout(name).spec))
    except NotFoundError:
        return None


def compare(asked: run_pb2.RunSpec, original: run_pb2.RunSpec, current: run_pb2.RunSpec) -> None:
    """Raises InputError unless the same is asked for as before: as it was created, or as it is now."""
    differences = specs.differences(asked, original)
    if differences and specs.differences(asked, current):
        raise InputError(
            f"run {asked.name} is there with other settings ({'; '.join(differences)}): {_REMEDY}; "
            "settings of a run that is there change with `eyas set`"
        )


async def _rows(requests: AsyncIterator[pb.CreateRunRequest], rejected: list[RejectedRow]) -> AsyncIterator[SampleRow]:
    position = 0
    async for request in requests:
        for sample in request.samples.samples:
            yield _row(sample, position)
            position += 1
        rejected.extend(
            {"source": row.source, "line": row.line, "reason": row.reason, "detail": row.detail}
            for row in request.rejected.rows
        )


def _row(sample: pb.Sample, position: int) -> SampleRow:
    try:
        messages: list[Any] = [
            {"role": str(message["role"]), "content": str(message["content"])}
            for message in json.loads(sample.messages)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the messages of sample {position} are not a JSON array of role and content") from error
    if sample.split not in ("train", "holdout") or not sample.turns:
        raise InputError(f"sample {position} has split {sample.split!r} and {sample.turns} turns")
    users = sum(message["role"] == "user" for message in messages)
    if sample.turns > users:
        raise InputError(f"sample {position} has {users} user messages, but {sample.turns} turns are to be answered")
    return {
        "sample_id": sample.sample_id,
        "position": position,
        "messages": messages,
        "source": sample.source,
        "split": cast(Literal["train", "holdout"], sample.split),
        "turns": sample.turns,
    }
