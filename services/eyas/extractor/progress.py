"""Tells the dispatcher how far the extraction is. Best effort: what counts is in object storage."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.rpc import jobs
from eyas.run.v1 import run_pb2 as pb

_log = structlog.get_logger()

_SECONDS = 2.0


class Progress:
    """What is told, at most every two seconds, and at the end. Without a dispatcher it is only logged."""

    def __init__(self, run: str, stub: "dispatch_pb2_grpc.DispatchAsyncStub | None") -> None:
        self._run = run
        self._stub = stub
        self._told = -_SECONDS

    async def tell(self, done: int, total: int, message: str) -> None:
        """`done` sequences of `total` are there; `message` is what goes on."""
        if time.monotonic() - self._told < _SECONDS and done < total:
            return
        self._told = time.monotonic()
        _log.info(message, done=done, total=total)
        progress = pb.JobProgress(job="extractor", done=done, total=total, message=message)
        await jobs.report(self._stub, self._run, progress)


@asynccontextmanager
async def telling(run: str, dispatcher: str, token: str) -> AsyncIterator[Progress]:
    """Progress to a dispatcher; to nobody when it is empty."""
    async with jobs.dispatcher_stub(dispatcher, token) as stub:
        yield Progress(run, stub)
