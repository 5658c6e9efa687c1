"""The HTTP server: routes, one handler for both protocols, and faults."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from eyas.simulator import faults, hidden_states, requests
from eyas.simulator.engine import HALTED, Batch, Engine, Sequence
from eyas.simulator.faults import Fault, FaultScript, Kind
from eyas.simulator.metrics import registry_of
from eyas.simulator.model import SimulatedModel
from eyas.simulator.requests import RefusedError, Request
from eyas.simulator.settings import SimulatorSettings
from eyas.simulator.wire import DONE, Wire, event

_VERSION = "0.32.0"


@asynccontextmanager
async def serve(settings: SimulatorSettings, server: "Server | None" = None) -> AsyncIterator[str]:
    """Runs a simulator in this event loop, one made before if it is given; yields its base address."""
    server = server or Server(settings)
    host, _, port = settings.listen.rpartition(":")
    # As vLLM does: a client that leaves ends its request. Those left at the end are cut.
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    steps = asyncio.create_task(server.engine.run())
    try:
        await web.TCPSite(runner, host, int(port), reuse_address=True).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        steps.cancel()
        with suppress(asyncio.CancelledError):
            await steps
        await runner.cleanup()


class Server:
    """One simulated vLLM."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.model = SimulatedModel(
            vocab_size=settings.vocab_size,
            eos_id=settings.eos_id,
            marker_id=settings.marker_id,
            median_tokens=settings.median_tokens,
            sigma=settings.sigma,
            seed=settings.seed,
        )
        rate = settings.tokens_per_second * settings.time_scale
        self.engine = Engine(1 / rate if rate else 0.0, settings.max_num_seqs)
        self._faults = FaultScript(settings.faults, settings.seed)
        self._registry = registry_of(self.engine, settings.model)
        self._request_ids = itertools.count()

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._refusals], client_max_size=64 * 1024**2)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
            ]
        )
        return app

    @web.middleware
    async def _refusals(self, request: web.Request, handler: Any) -> web.StreamResponse:
        key = self.settings.api_key
        if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
            return _json({"error": "Unauthorized"}, 401)
        try:
            response: web.StreamResponse = await handler(request)
        except RefusedError as refused:
            return _json(refused.body, refused.status)
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": _VERSION})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _models(self, _: web.Request) -> web.Response:
        settings = self.settings
        card = {"id": settings.model, "object": "model", "root": settings.model, "max_model_len": settings.context}
        return _json({"object": "list", "data": [card]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json(loads=orjson.loads)
        ids = self.model.render(body.get("messages") or [{"role": "user", "content": body.get("prompt", "")}])
        return _json({"count": len(ids), "max_model_len": self.settings.context, "tokens": ids, "token_strs": None})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _answer(self, http: web.Request, chat: bool) -> web.StreamResponse:
        settings = self.settings
        try:
            body = orjson.loads(await http.read())
        except orjson.JSONDecodeError as error:
            raise RefusedError(400, f"JSON decode error: {error}", "Bad Request", "body") from error
        request = requests.read(body, chat, settings.model, settings.context, self.model)
        fault = self._fault(http, request)
        if fault is not None and fault.kind is Kind.STATUS:
            raise RefusedError(fault.status, "as ordered", "Service Unavailable", None)
        halt = None if fault is None else fault.after
        sequence = Sequence(self.model, request.prompt, request.max_tokens, request.stop_token_ids, halt)
        request_id = http.headers.get("X-Request-Id") or f"{next(self._request_ids):016x}"
        wire = Wire(request, request_id, settings.model)
        if request.out_of_vocabulary:
            return await self._out_of_vocabulary(http, request)
        self.engine.add(sequence, len(request.prompt))
        try:
            if request.stream:
                return await self._streamed(http, sequence, wire, fault)
            return await self._whole(http, request, sequence, wire)
        finally:
            self.engine.drop(sequence)

    def _fault(self, http: web.Request, request: Request) -> Fault | None:
        ordered = http.headers.get(faults.HEADER)
        if ordered is not None:
            return faults.from_header(ordered)
        return self._faults.draw(self.model.locate(request.prompt)[0])

    async def _streamed(
        self, http: web.Request, sequence: Sequence, wire: Wire, fault: Fault | None
    ) -> web.StreamResponse:
        response = await _open_stream(http)
        while True:
            batch = await sequence.take()
            if fault is not None and batch.finish_reason == HALTED:
                if batch.ids:
                    await response.write(wire.chunk(Batch(batch.ids, None, None), self.model.text(batch.ids)))
                return await _befall(http, response, wire, fault)
            await response.write(wire.chunk(batch, self.model.text(batch.ids)))
            if batch.finish_reason is not None:
                await response.write(DONE)
                return response

    async def _whole(self, http: web.Request, request: Request, sequence: Sequence, wire: Wire) -> web.Response:
        ids: list[int] = []
        while True:
            batch = await sequence.take()
            ids += batch.ids
            if batch.finish_reason == HALTED:
                _cut(http)
                await asyncio.Event().wait()  # until the connection's end ends this handler
            if batch.finish_reason is not None:
                break
        if request.hidden_states_key and self.settings.storage_uri:
            await hidden_states.store(self.settings, request.hidden_states_key, request.prompt)
        return _json(wire.whole(ids, batch, self.model.text(ids)))

    async def _out_of_vocabulary(self, http: web.Request, request: Request) -> web.StreamResponse:
        refused = requests.vocabulary_error()
        if not request.stream:
            raise refused
        response = await _open_stream(http)
        await response.write(event(refused.body) + DONE)
        return response


async def _open_stream(http: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    return response


async def _befall(http: web.Request, response: web.StreamResponse, wire: Wire, fault: Fault) -> web.StreamResponse:
    """A fault in the middle of a stream."""
    match fault.kind:
        case Kind.CUT:
            _cut(http)
        case Kind.HANG:
            await asyncio.Event().wait()  # until the client leaves
        case Kind.DONE:
            await response.write(DONE)
        case Kind.ABORT:
            await response.write(wire.chunk(Batch([], "abort", None), "") + DONE)
        case Kind.ERROR:
            error = {"message": "as ordered", "type": "InternalServerError", "param": None, "code": fault.status}
            await response.write(event({"error": error}) + DONE)
        case Kind.GARBAGE:
            await response.write(b'data: {"id": "cmpl-\n\n')
    return response


def _cut(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
