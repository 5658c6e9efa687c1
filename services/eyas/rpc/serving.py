"""Starts and stops a gRPC server in good order, with the health service and reflection that every server has."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from eyas.errors import InputError

GRACE_SECONDS = 5.0
"""Time for calls to end when a server stops: below any supervisor's own."""


class Health:
    """What the health service says: one status for every service and for the server as a whole (`""`)."""

    def __init__(self, servicer: health.aio.HealthServicer, names: Sequence[str], address: str) -> None:
        self._servicer = servicer
        self._names = names
        self.address = address
        """Where the server listens, as a channel's target; with the port that was bound."""

    async def set(self, serving: bool) -> None:
        """Says SERVING or NOT_SERVING for all names."""
        status = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._servicer.set(name, status.SERVING if serving else status.NOT_SERVING)


@asynccontextmanager
async def started(
    server: aio.Server, listen: str, service_names: Sequence[str], grace: float = GRACE_SECONDS
) -> AsyncIterator[Health]:
    """Adds health and reflection, binds `listen` (`host:port` or `unix:/path`) and starts.

    `service_names` are full names, such as `eyas.dispatch.v1.Runs`. On exit: NOT_SERVING at once, so that no new call
    arrives, then `grace` seconds for the calls in progress. Raises InputError when the address cannot be bound.
    """
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise InputError(f"cannot listen on {listen}: choose another address, or end what listens there") from error
    address = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"
    state = Health(servicer, ("", *service_names), address)
    await state.set(True)
    await server.start()
    try:
        yield state
    finally:
        await state.set(False)
        await server.stop(grace)
