"""Follows a run until it is at an end."""

from __future__ import annotations  # the stubs of gRPC know more types than its modules

import asyncio
from collections.abc import AsyncIterator, Callable

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.errors import ServiceError
from eyas.rpc.errors import translated
from eyas.run.v1 import run_pb2

_AT_AN_END = (run_pb2.STATE_DONE, run_pb2.STATE_FAILED, run_pb2.STATE_CANCELLED)
_RECONNECT_SECONDS = 0.5


async def follow(
    stub: dispatch_pb2_grpc.RunsAsyncStub, run: str, going: Callable[[], bool] = lambda: True
) -> AsyncIterator[run_pb2.Progress]:
    """Progress once a second, up to and including the last. A dispatcher that is away is waited for while `going()`."""
    while True:
        try:
            with translated("dispatcher"):
                async for response in stub.WatchRun(pb.WatchRunRequest(run=run)):
                    yield response.progress
                    if response.progress.state in _AT_AN_END:
                        return
        except ServiceError:
            if not going():
                return
        await asyncio.sleep(_RECONNECT_SECONDS)
