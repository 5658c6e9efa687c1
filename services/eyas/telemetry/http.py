"""The small HTTP server beside each service: /metrics for Prometheus, /health and /ready for Kubernetes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from eyas.errors import InputError


@asynccontextmanager
async def serve(listen: str, registry: CollectorRegistry, ready: Callable[[], bool]) -> AsyncIterator[str]:
    """Serves on `listen` (`host:port`; port 0 takes a free one) and yields the address that was bound.

    /health answers while the event loop runs; /ready is 503 until `ready()` holds. Raises InputError when the
    address cannot be bound.
    """
    host, port = split(listen)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readiness(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if ready() else web.Response(status=503, text="not ready\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/health", health), web.get("/ready", readiness)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise InputError(
                f"cannot serve metrics on {listen}: {error.strerror or error}; choose another port"
            ) from error
        bound_host, bound_port = runner.addresses[0][:2]
        yield f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"
    finally:
        await runner.cleanup()


def split(listen: str) -> tuple[str, int]:
    """`host:port` in its parts; an IPv6 host stands in brackets."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InputError(f"{listen!r} is not an address: write host:port, such as 0.0.0.0:9090")
    return host.strip("[]"), int(port)
