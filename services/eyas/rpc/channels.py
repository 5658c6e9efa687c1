"""Channels and servers with the options that every service of eyas uses.

Keepalive finds a dead peer in about ten seconds; `ping_timeout_ms` is what makes that true. The back-off of
reconnects ends at 2 s, because the default keeps a client away for half a minute after an outage.
"""

from __future__ import annotations  # gRPC's types take parameters in its stubs only

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc import aio

MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest message, gRPC's own default: protocols stay far below it."""

_KEEPALIVE: Sequence[tuple[str, Any]] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_CHANNEL: Sequence[tuple[str, Any]] = (
    *_KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)
_SERVER: Sequence[tuple[str, Any]] = (
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
)


def open_channel(target: str, token: str = "") -> aio.Channel:
    """Opens a channel to `target` (`host:port`, or `unix:/path`), with a bearer token on every call if one is given."""
    kinds = (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)
    interceptors: list[aio.ClientInterceptor] = [kind(token) for kind in kinds] if token else []
    return aio.insecure_channel(target, options=_CHANNEL, interceptors=interceptors)


def make_server(token: str = "") -> aio.Server:
    """Makes a server; with a token, calls that don't carry it are refused, health checks excepted."""
    return aio.server(options=_SERVER, interceptors=[_Guard(token)] if token else [])


class _Bearer:
    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def _with_token(self, details: aio.ClientCallDetails) -> aio.ClientCallDetails:
        metadata = aio.Metadata(*(details.metadata or ()), self._header)
        return aio.ClientCallDetails(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
        )


class _UnaryUnary(_Bearer, aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request)


class _UnaryStream(_Bearer, aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request)


class _StreamUnary(_Bearer, aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request_iterator)


class _StreamStream(_Bearer, aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(self._with_token(client_call_details), request_iterator)


class _Guard(aio.ServerInterceptor):
    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method or ""
        if method.startswith("/grpc.health.v1.") or handler is None:
            return handler
        given = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        if hmac.compare_digest(str(given).encode(), self._expected.encode()):
            return handler
        return _refusing(handler)


async def _refuse(context: aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the bearer token is missing or wrong")


def _refusing(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    async def unary(_: Any, context: aio.ServicerContext[Any, Any]) -> None:
        await _refuse(context)

    async def stream(_: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        await _refuse(context)
        yield None

    make: dict[tuple[bool, bool], Callable[..., Any]] = {
        (False, False): lambda: grpc.unary_unary_rpc_method_handler(unary),
        (False, True): lambda: grpc.unary_stream_rpc_method_handler(stream),
        (True, False): lambda: grpc.stream_unary_rpc_method_handler(unary),
        (True, True): lambda: grpc.stream_stream_rpc_method_handler(stream),
    }
    refusing: grpc.RpcMethodHandler[Any, Any] = make[handler.request_streaming, handler.response_streaming]()
    return refusing
