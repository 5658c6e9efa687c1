"""Tells the dispatcher how far the evaluation is. Best effort: what counts is in object storage."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.rpc import jobs
from eyas.run.v1 import run_pb2 as pb

log = structlog.get_logger()


class Progress:
    """What is told. Without a dispatcher it is only logged."""

    def __init__(self, run: str, stub: "dispatch_pb2_grpc.DispatchAsyncStub | None") -> None:
        self._run = run
        self._stub = stub
        self._values: dict[str, float] = {}

    async def tell(self, done: int, total: int, message: str, values: Mapping[str, float] | None = None) -> None:
        """`done` drafters of `total` are measured, `message` is what goes on; `values` are kept for later messages."""
        self._values.update(values or {})
        log.info(message, done=done, total=total, **(values or {}))
        progress = pb.JobProgress(job="evaluator", done=done, total=total, values=self._values, message=message)
        await jobs.report(self._stub, self._run, progress)


@asynccontextmanager
async def telling(run: str, dispatcher: str, token: str) -> AsyncIterator[Progress]:
    """Progress to a dispatcher; to nobody when it is empty."""
    async with jobs.dispatcher_stub(dispatcher, token) as stub:
        yield Progress(run, stub)
