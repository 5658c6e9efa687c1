import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from eyas.errors import InputError
from eyas.rpc import serving
from eyas.rpc.channels import make_server, open_channel

NAME = "eyas.tokenizer.v1.Tokenizer"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def _status(stub, service):
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_health_and_reflection_are_there(tmp_path, kind):
    listen = f"unix:{tmp_path}/s.sock" if kind == "unix" else "127.0.0.1:0"
    async with (
        serving.started(make_server(), listen, [NAME]) as health,
        open_channel(health.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        assert await _status(stub, NAME) == SERVING
        assert await _status(stub, "") == SERVING
        await health.set(False)
        assert await _status(stub, NAME) == NOT_SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=5)
        names = {service.name async for answer in answers for service in answer.list_services_response.service}
        assert NAME in names


async def test_health_needs_no_token(tmp_path):
    listen = f"unix:{tmp_path}/s.sock"
    async with serving.started(make_server("secret"), listen, [NAME]), open_channel(listen) as channel:
        assert await _status(health_pb2_grpc.HealthStub(channel), "") == SERVING


async def test_it_says_not_serving_before_it_stops(tmp_path):
    listen = f"unix:{tmp_path}/s.sock"
    async with open_channel(listen) as channel:
        async with serving.started(make_server(), listen, [NAME], grace=0.5):
            call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            assert (await call.read()).status == SERVING
        assert (await call.read()).status == NOT_SERVING


async def test_an_address_that_cannot_be_bound_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot listen on"):
        async with serving.started(make_server(), f"unix:{tmp_path}/missing/s.sock", [NAME]):
            pass
