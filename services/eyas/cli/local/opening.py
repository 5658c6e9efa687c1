"""Speaks with the dispatcher about a run: creates it, has it go on, controls it."""

from __future__ import annotations  # the stubs of gRPC know more types than its modules

from collections.abc import Iterator

from eyas.cli.request import Request
from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.rpc.errors import translated
from eyas.run.v1 import run_pb2

_CREATE_SECONDS = 3600.0
_CALL_SECONDS = 120.0
_HALTED = (run_pb2.STATE_PAUSED, run_pb2.STATE_FAILED)


async def create(stub: dispatch_pb2_grpc.RunsAsyncStub, parts: Iterator[pb.CreateRunRequest]) -> None:
    """Creates a run."""
    with translated("dispatcher"):
        await stub.CreateRun(parts, timeout=_CREATE_SECONDS, wait_for_ready=True)


async def reopen(stub: dispatch_pb2_grpc.RunsAsyncStub, request: Request) -> None:
    """Has a run go on: with the changes that are asked for, up to that stage, and moving if it stood."""
    run = request.place.run
    with translated("dispatcher"):
        found = await stub.GetRun(pb.GetRunRequest(run=run), timeout=_CALL_SECONDS, wait_for_ready=True)
    progress = found.progress
    actions = []
    if request.changes:
        actions.append(pb.ControlRunRequest(run=run, set=pb.Set(values=request.changes)))
    if progress.until < request.until:
        actions.append(pb.ControlRunRequest(run=run, proceed=pb.Proceed(until=request.until)))
    if progress.state in _HALTED:
        actions.append(pb.ControlRunRequest(run=run, resume=pb.Resume()))
    for action in actions:
        await control(stub, action)


async def control(stub: dispatch_pb2_grpc.RunsAsyncStub, action: pb.ControlRunRequest) -> run_pb2.Progress:
    """Asks something of a run. Where it stands after."""
    with translated("dispatcher"):
        response = await stub.ControlRun(action, timeout=_CALL_SECONDS, wait_for_ready=True)
    return response.progress
