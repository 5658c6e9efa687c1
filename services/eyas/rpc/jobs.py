"""How a job tells the dispatcher how far it is. Best effort: what counts is in object storage."""

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


async def report(stub: "dispatch_pb2_grpc.DispatchAsyncStub | None", run: str, progress: pb.JobProgress) -> None:
    """Tells a dispatcher; nobody without a stub. One that does not answer is only logged."""
    if stub is None:
        return
    try:
        with translated("dispatcher"):
            await stub.ReportJob(dispatch_pb2.ReportJobRequest(run=run, progress=progress), timeout=_SECONDS)
    except EyasError as error:
        _log.warning("the dispatcher could not be told", error=str(error))


@asynccontextmanager
async def dispatcher_stub(dispatcher: str, token: str) -> "AsyncIterator[dispatch_pb2_grpc.DispatchAsyncStub | None]":
    """A stub of the dispatcher at an address; None when that is empty."""
    if not dispatcher:
        yield None
        return
    async with open_channel(dispatcher, token) as channel:
        yield dispatch_pb2_grpc.DispatchStub(channel)
