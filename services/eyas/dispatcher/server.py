"""The gRPC services, over the dispatcher."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.dispatcher.dispatcher import Dispatcher
from eyas.errors import AlreadyExistsError, EndpointError, InputError, StorageFullError
from eyas.rpc.errors import reported
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2

_WATCH_SECONDS = 1.0
_OVER = (run_pb2.STATE_DONE, run_pb2.STATE_FAILED, run_pb2.STATE_CANCELLED)


class Runs(dispatch_pb2_grpc.RunsServicer):
    """Runs, for people and their tools."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def CreateRun(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.CreateRunRequest], context: aio.ServicerContext[Any, Any]
    ) -> pb.CreateRunResponse:
        """See the proto."""
        async with reported(context):
            first = await anext(aiter(request_iterator), None)
            if first is None or not first.HasField("header"):
                raise InputError("the first message of a creation is its header")
            specs.check(first.header.spec)
            try:
                run, created = await self._dispatcher.create(first.header, request_iterator)
            except (InputError, EndpointError, AlreadyExistsError, StorageFullError) as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            return pb.CreateRunResponse(progress=self._dispatcher.progress(run), created=created)
        raise AssertionError  # `reported` has ended the call

    async def GetRun(  # noqa: N802
        self, request: pb.GetRunRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.GetRunResponse:
        """See the proto."""
        async with reported(context):
            run = self._dispatcher.find(request.run)
            return pb.GetRunResponse(spec=run.course.spec, progress=self._dispatcher.progress(run))
        raise AssertionError

    async def ListRuns(  # noqa: N802
        self,
        request: pb.ListRunsRequest,  # noqa: ARG002
        context: aio.ServicerContext[Any, Any],  # noqa: ARG002
    ) -> pb.ListRunsResponse:
        """See the proto."""
        runs = self._dispatcher.runs
        return pb.ListRunsResponse(runs=[self._dispatcher.progress(runs[name]) for name in sorted(runs)])

    async def WatchRun(  # noqa: N802
        self, request: pb.WatchRunRequest, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchRunResponse]:
        """See the proto."""
        async with reported(context):
            while True:
                progress = self._dispatcher.progress(self._dispatcher.find(request.run))
                yield pb.WatchRunResponse(progress=progress)
                if progress.state in _OVER:
                    return
                await asyncio.sleep(_WATCH_SECONDS)

    async def ControlRun(  # noqa: N802
        self, request: pb.ControlRunRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.ControlRunResponse:
        """See the proto."""
        async with reported(context):
            run = self._dispatcher.find(request.run)
            await run.control(request)
            return pb.ControlRunResponse(progress=self._dispatcher.progress(run))
        raise AssertionError


class Dispatch(dispatch_pb2_grpc.DispatchServicer):
    """Work, for generators, launchers and jobs."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def Work(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.WorkRequest],
        context: aio.ServicerContext[Any, Any],  # noqa: ARG002
    ) -> AsyncIterator[pb.WorkResponse]:
        """See the proto."""
        async for response in self._dispatcher.streams.serve(request_iterator):
            yield response

    async def Launch(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.LaunchRequest],
        context: aio.ServicerContext[Any, Any],  # noqa: ARG002
    ) -> AsyncIterator[pb.LaunchResponse]:
        """See the proto."""
        async for response in self._dispatcher.launching.serve(request_iterator):
            yield response

    async def ReportJob(  # noqa: N802
        self, request: pb.ReportJobRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.ReportJobResponse:
        """See the proto."""
        async with reported(context):
            self._dispatcher.report(request)
        return pb.ReportJobResponse()
