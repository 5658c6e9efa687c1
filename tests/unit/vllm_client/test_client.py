"""The client against real sockets: what is sent, and how a server's trouble is named."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.errors import EndpointError
from eyas.run.v1 import run_pb2
from eyas.simulator.model import SimulatedModel
from eyas.simulator.server import serve
from eyas.simulator.settings import SimulatorSettings
from eyas.vllm.client import VllmClient, probe
from eyas.vllm.interruption import InterruptionError
from eyas.vllm.phases import Activity, Limits
from eyas.vllm.requests import ChatRequest, ExtractionRequest, TokensRequest

MODEL = SimulatedModel(median_tokens=30)
NO_LIMITS = Limits()
PROMPT = MODEL.render([{"role": "user", "content": "hello"}])
SIMULATED = SimulatorSettings(listen="127.0.0.1:0", median_tokens=30, tokens_per_second=0, api_key="secret")


@asynccontextmanager
async def answering(handler: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def request(max_tokens: int = 1000) -> TokensRequest:
    return TokensRequest("simulated", PROMPT, max_tokens, run_pb2.Sampling(), request_id="run-0-0-1")


async def interruption(url: str, limits: Limits = NO_LIMITS) -> InterruptionError:
    async with VllmClient("secret") as client:
        with pytest.raises(InterruptionError) as caught:
            await client.complete(url, request(), [].extend, limits, Activity())
    assert "secret" not in str(caught.value) + repr(caught.value)
    return caught.value


async def test_answers_of_each_kind() -> None:
    activity, ids = Activity(), []
    async with serve(SIMULATED) as url, VllmClient("secret") as client:
        ending = await client.complete(f"{url}/", request(), ids.extend, Limits(5, 5, 5, 5), activity)
        assert ending.finish_reason == pb.FINISH_REASON_STOP
        assert 0 < ending.first_token_seconds <= ending.seconds
        assert ids == MODEL.answer(PROMPT, 1000)
        assert activity.tokens == len(ids)
        chat = ChatRequest("simulated", '[{"role":"user","content":"hello"}]', "{}", 8, run_pb2.Sampling())
        ids.clear()
        answer = await client.chat(url, chat, ids.extend, Limits(), activity)
        assert ids == MODEL.answer(PROMPT, 8)
        assert answer.prompt.tolist() == PROMPT
        assert answer.message.content == MODEL.text(ids)
        assert answer.ending.finish_reason == pb.FINISH_REASON_LENGTH
        ending = await client.extract(url, ExtractionRequest("simulated", PROMPT, "k"), Limits(), activity)
        assert ending.finish_reason == pb.FINISH_REASON_LENGTH
        assert activity.streams == 0


async def test_connections_are_used_again() -> None:
    peers = set()

    async def handler(http: web.Request) -> web.StreamResponse:
        assert http.transport is not None
        peers.add(http.transport.get_extra_info("peername"))
        response = web.StreamResponse()
        await response.prepare(http)
        first = b'{"choices":[{"prompt_token_ids":%s,"token_ids":[9],"finish_reason":"stop"}]}' % str(PROMPT).encode()
        await response.write(b"data: " + first + b"\n\n")
        await asyncio.sleep(0.02)  # so that the answer has ended before the stream does
        await response.write(b"data: [DONE]\n\n")
        return response

    async with answering(handler) as url, VllmClient() as client:
        for _ in range(5):
            await client.complete(url, request(), [].extend, Limits(), Activity())
    assert len(peers) == 1


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (400, pb.CAUSE_ITEM),
        (413, pb.CAUSE_ITEM),
        (422, pb.CAUSE_ITEM),
        (401, pb.CAUSE_CONFIGURATION),
        (403, pb.CAUSE_CONFIGURATION),
        (404, pb.CAUSE_CONFIGURATION),
        (408, pb.CAUSE_SERVER),
        (409, pb.CAUSE_SERVER),
        (429, pb.CAUSE_SERVER),
        (500, pb.CAUSE_SERVER),
        (503, pb.CAUSE_SERVER),
        (307, pb.CAUSE_SERVER),
    ],
)
async def test_whose_fault_a_status_is(status: int, cause: pb.Cause.ValueType) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the\nreason"}}, status=status, headers={"Location": "/x"})

    async with answering(handler) as url:
        found = await interruption(url)
    assert (found.cause, found.http_status) == (cause, status)
    assert found.detail == f"the server answers HTTP {status}: the reason"


async def test_a_long_error_page_is_cut() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>" * 100_000)

    async with answering(handler) as url:
        assert len((await interruption(url)).detail) <= 1000


async def test_nobody_listens() -> None:
    found = await interruption("http://127.0.0.1:9")
    assert (found.cause, found.http_status) == (pb.CAUSE_CONNECTION, 0)


async def test_an_address_that_is_none() -> None:
    assert (await interruption("nonsense")).cause == pb.CAUSE_CONNECTION


async def test_connecting_takes_too_long() -> None:
    with socket.socket() as listener:  # whose backlog is full: it takes no connection
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        with socket.create_connection((host, port)):
            found = await interruption(f"http://{host}:{port}", Limits(connect=0.2))
    assert found.cause == pb.CAUSE_TIMEOUT_CONNECT


async def test_headers_without_tokens_run_into_first_token() -> None:
    async def handler(http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(http)
        await response.write(b": keep-alive\n\n")
        await asyncio.Event().wait()
        return response

    async with answering(handler) as url:
        found = await interruption(url, Limits(connect=5, first_token=0.1))
    assert found.cause == pb.CAUSE_TIMEOUT_FIRST_TOKEN


async def test_leaving_ends_the_request_at_the_server() -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def handler(http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(http)
        try:
            arrived.set()
            await asyncio.Event().wait()
        finally:
            left.set()
        return response

    activity = Activity()
    async with answering(handler) as url, VllmClient() as client:
        task = asyncio.create_task(client.complete(url, request(), [].extend, Limits(), activity))
        await arrived.wait()
        task.cancel()
        await asyncio.wait_for(left.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert activity.streams == 0


async def test_probe_tells_what_serves() -> None:
    async with serve(SIMULATED) as url:
        info = await probe(url, "secret")
        assert (info.models, info.root, info.context, info.version) == (("simulated",), "simulated", 8192, "0.32.0")
        with pytest.raises(EndpointError, match="EYAS_API_KEY") as caught:
            await probe(url, "wrong")
        assert "wrong" not in str(caught.value)
        async with VllmClient() as client:
            assert await client.healthy(url)
            assert (await client.scrape(url)).running == 0
            assert not await client.healthy("http://127.0.0.1:9")


@pytest.mark.parametrize("body", ["<html>", "{}", '{"data": []}', '{"data": [5]}', "[]"])
async def test_probe_of_something_else(body: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=body)

    async with answering(handler) as url:
        with pytest.raises(EndpointError, match="OpenAI-compatible"):
            await probe(url)


async def test_probe_of_nothing() -> None:
    with pytest.raises(EndpointError, match="cannot be reached"):
        await probe("http://127.0.0.1:9")
