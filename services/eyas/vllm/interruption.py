"""Why an answer was interrupted, and whose fault it was."""

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.errors import EndpointError

DETAIL = 1000
"""Most characters of what a server said that are passed on."""

_ITEM = frozenset({400, 413, 422})
_CONFIGURATION = frozenset({401, 403, 404})


class InterruptionError(EndpointError):
    """A request ended without an answer. What it gained until then was handed over before."""

    def __init__(self, cause: pb.Cause.ValueType, detail: str, http_status: int = 0) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail[:DETAIL]
        self.http_status = http_status
        """0 when there was none."""


def by_status(status: int, said: str) -> InterruptionError:
    """The interruption that an HTTP status other than 200 means."""
    cause = _at_fault(status) or pb.CAUSE_SERVER
    return InterruptionError(cause, f"the server answers HTTP {status}{said}", status)


def by_event(error: object) -> InterruptionError:
    """The interruption that an error event inside a stream means.

    vLLM checks some requests only once it streams, and reports an id outside the vocabulary with code 400 under HTTP
    200: that is the item's fault like any other 400.
    """
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    status = code if isinstance(code, int) else 0
    cause = _at_fault(status) or pb.CAUSE_STREAM
    return InterruptionError(cause, f"the server sends an error in its stream: {plain(message)}", status)


def plain(said: object) -> str:
    """What a server said as one line."""
    return " ".join(str(said).split())[:DETAIL]


def _at_fault(status: int) -> pb.Cause.ValueType | None:
    if status in _ITEM:
        return pb.CAUSE_ITEM
    if status in _CONFIGURATION:
        return pb.CAUSE_CONFIGURATION
    return None
