"""The boundary for gRPC's errors: status codes to errors of eyas on the client, and back on the server."""

from __future__ import annotations  # gRPC's types take parameters in its stubs only

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from grpc import aio

from eyas.errors import DataError, EyasError, InputError, NotFoundError, ReplacedError, ServiceError, UnavailableError

_TO_STATUS: tuple[tuple[type[EyasError], grpc.StatusCode], ...] = (
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (ReplacedError, grpc.StatusCode.ABORTED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (DataError, grpc.StatusCode.DATA_LOSS),
    (EyasError, grpc.StatusCode.INTERNAL),
)
_FROM_STATUS: dict[grpc.StatusCode, type[EyasError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InputError,
    grpc.StatusCode.FAILED_PRECONDITION: InputError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ABORTED: ReplacedError,
    grpc.StatusCode.DATA_LOSS: DataError,
}


@contextmanager
def translated(service: str) -> Iterator[None]:
    """Client side: raises errors of eyas in place of gRPC's. `service` names the peer in the sentence."""
    try:
        yield
    except aio.AioRpcError as error:
        code, details = error.code(), error.details() or ""
        kind = _FROM_STATUS.get(code)
        if kind is not None:
            raise kind(details) from error
        raise ServiceError(f"the {service} does not answer ({code.name}): {details}") from error


@asynccontextmanager
async def reported(context: aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Server side: ends the call with the status of an error of eyas."""
    try:
        yield
    except EyasError as error:
        code = next(code for kind, code in _TO_STATUS if isinstance(error, kind))
        await context.abort(code, str(error))
