"""Tells the dispatcher how far the extraction is. Best effort: what counts is in object storage."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from eyas.dispatch.v1 import dispatch_pb2, dispatch_pb2_grpc
from eyas.errors import EyasError
from eyas.rpc.channels import open_channel
from eyas.rpc.errors import translated
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
        if self._stub is None:
            return
        progress = pb.JobProgress(job="extractor", done=done, total=total, message=message)
        try:
            with translated("dispatcher"):
                await self._stub.ReportJob(
                    dispatch_pb2.ReportJobRequest(run=self._run, progress=progress), timeout=_SECONDS
                )
        except EyasError as error:
            _log.warning("the dispatcher could not be told", error=str(error))


@asynccontextmanager
async def telling(run: str, dispatcher: str, token: str) -> AsyncIterator[Progress]:
    """Progress to a dispatcher; to nobody when it is empty."""
    if not dispatcher:
        yield Progress(run, None)
        return
    async with open_channel(dispatcher, token) as channel:
        yield Progress(run, dispatch_pb2_grpc.DispatchStub(channel))
