"""The gRPC server around render and parse.

One thread does the work, so that the event loop answers health checks meanwhile, and because transformers' tokenizers
are not made for several threads. More throughput is more replicas.
"""

from __future__ import annotations  # gRPC's types take parameters in its stubs only

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog
from grpc import aio
from prometheus_client import CollectorRegistry

from eyas.errors import EyasError
from eyas.rpc import serving
from eyas.rpc.channels import make_server
from eyas.rpc.errors import reported
from eyas.telemetry import http, process
from eyas.tokenizer import model, parse, render
from eyas.tokenizer.metrics import Metrics
from eyas.tokenizer.settings import Settings
from eyas.tokenizer.v1 import tokenizer_pb2 as pb
from eyas.tokenizer.v1 import tokenizer_pb2_grpc

_Result = TypeVar("_Result")
_SERVICE = pb.DESCRIPTOR.services_by_name["Tokenizer"].full_name
_log = structlog.get_logger()


class Servicer(tokenizer_pb2_grpc.TokenizerServicer):
    """Render, Parse and Describe of one model."""

    def __init__(self, loaded: model.Model, metrics: Metrics) -> None:
        self._model = loaded
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def Render(  # noqa: N802 - gRPC's name
        self, request: pb.RenderRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.RenderResponse:
        """Messages to ids."""
        async with reported(context), self._measured("render"):
            ids = await self._in_thread(
                lambda: render.render(self._model.tokenizer, request.messages, request.chat_template_kwargs)
            )
            self._metrics.ids.labels("render").inc(len(ids))
        return pb.RenderResponse(ids=ids)

    async def Parse(  # noqa: N802 - gRPC's name
        self, request: pb.ParseRequest, context: aio.ServicerContext[Any, Any]
    ) -> pb.ParseResponse:
        """Ids of an answer to reasoning, content and tool calls."""
        async with reported(context), self._measured("parse"):
            answer = await self._in_thread(
                lambda: parse.parse(request.ids, request.prompt_ids, self._model.markers, self._decode)
            )
            self._metrics.ids.labels("parse").inc(len(request.ids))
        return pb.ParseResponse(reasoning=answer.reasoning, content=answer.content, tool_calls=answer.tool_calls)

    async def Describe(  # noqa: N802 - gRPC's name
        self,
        request: pb.DescribeRequest,  # noqa: ARG002 - the call has nothing to say
        context: aio.ServicerContext[Any, Any],  # noqa: ARG002
    ) -> pb.DescribeResponse:
        """What the tokenizer is."""
        loaded = self._model
        return pb.DescribeResponse(
            model=loaded.uri,
            vocab_size=loaded.vocab_size,
            eos_token_ids=loaded.eos_token_ids,
            context=loaded.context,
            hash=loaded.hash,
            reasoning_start_id=loaded.markers.reasoning_start,
            reasoning_end_id=loaded.markers.reasoning_end,
            num_layers=loaded.num_layers,
            hidden_size=loaded.hidden_size,
            dtype=loaded.dtype,
        )

    def _decode(self, ids: list[int]) -> str:
        text: str = self._model.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @asynccontextmanager
    async def _measured(self, method: str) -> AsyncIterator[None]:
        begin = time.monotonic()
        try:
            yield
        except EyasError:
            self._metrics.calls.labels(method, "rejected").inc()
            raise
        else:
            self._metrics.calls.labels(method, "ok").inc()
        finally:
            self._metrics.seconds.labels(method).observe(time.monotonic() - begin)


async def serve(settings: Settings) -> None:
    """Loads the tokenizer and serves until SIGTERM or SIGINT."""
    stop = process.stop_event()
    registry = CollectorRegistry()
    loaded = await asyncio.to_thread(model.load, settings.model, settings.trust_remote_code)
    servicer = Servicer(loaded, Metrics(registry))
    server = make_server(settings.token.get_secret_value())
    tokenizer_pb2_grpc.add_TokenizerServicer_to_server(servicer, server)
    try:
        async with (
            http.serve(settings.metrics_listen, registry, lambda: not stop.is_set()) as metrics_address,
            serving.started(server, settings.listen, [_SERVICE]) as health,
        ):
            _log.info("serving", address=health.address, metrics=metrics_address, model=settings.model)
            await stop.wait()
    finally:
        servicer.close()
