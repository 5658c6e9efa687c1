import pytest

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.errors import ServiceError
from eyas.rpc import serving
from eyas.rpc.channels import make_server, open_channel
from eyas.rpc.errors import translated


class _Runs(dispatch_pb2_grpc.RunsServicer):
    async def CreateRun(self, request_iterator, context):
        return pb.CreateRunResponse(created=len([request async for request in request_iterator]) == 2)

    async def GetRun(self, request, context):
        return pb.GetRunResponse()

    async def WatchRun(self, request, context):
        yield pb.WatchRunResponse()


class _Dispatch(dispatch_pb2_grpc.DispatchServicer):
    async def Work(self, request_iterator, context):
        async for _ in request_iterator:
            yield pb.WorkResponse()


async def _unary_unary(runs, dispatch):
    await runs.GetRun(pb.GetRunRequest(), timeout=5)
    return 1


async def _unary_stream(runs, dispatch):
    return len([1 async for _ in runs.WatchRun(pb.WatchRunRequest(), timeout=5)])


async def _stream_unary(runs, dispatch):
    return int((await runs.CreateRun(iter([pb.CreateRunRequest()] * 2), timeout=5)).created)


async def _stream_stream(runs, dispatch):
    return len([1 async for _ in dispatch.Work(iter([pb.WorkRequest()]), timeout=5)])


@pytest.mark.parametrize("call", [_unary_unary, _unary_stream, _stream_unary, _stream_stream])
async def test_every_kind_of_call_carries_the_token(tmp_path, call):
    listen = f"unix:{tmp_path}/s.sock"
    server = make_server("secret")
    dispatch_pb2_grpc.add_RunsServicer_to_server(_Runs(), server)
    dispatch_pb2_grpc.add_DispatchServicer_to_server(_Dispatch(), server)
    async with serving.started(server, listen, [], grace=0):
        for token in ("secret", "", "guess"):
            async with open_channel(listen, token) as channel:
                stubs = dispatch_pb2_grpc.RunsStub(channel), dispatch_pb2_grpc.DispatchStub(channel)
                if token == "secret":
                    assert await call(*stubs) == 1
                else:
                    with pytest.raises(ServiceError, match="bearer token"), translated("dispatcher"):
                        await call(*stubs)
