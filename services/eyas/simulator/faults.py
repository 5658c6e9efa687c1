"""Faults on order: by a header of the request, or by a seeded script that draws the same faults in every run."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

HEADER = "X-Simulator-Fault"
"""`kind`, `kind:after` or `kind:after:status`."""


class Kind(StrEnum):
    """What goes wrong."""

    STATUS = "status"  # an HTTP status before any answer
    CUT = "cut"  # the connection breaks
    END = "end"  # the stream ends as if it were whole, without finish_reason and [DONE]
    DONE = "done"  # [DONE] without finish_reason
    ABORT = "abort"  # finish_reason abort
    ERROR = "error"  # an error event under HTTP 200
    GARBAGE = "garbage"  # an event that is not JSON
    HANG = "hang"  # silence


class Fault(BaseModel):
    """A fault of one request."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    after: int = 0
    """Tokens that are sent before it."""
    status: int = 503
    """HTTP status, or code of the error event."""


class Rule(Fault):
    """A fault that befalls a share of the requests."""

    share: float
    """Of 1."""


class FaultScript:
    """Draws faults by seed, prompt, and how often the prompt was asked: whatever the order of requests is."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self._rules = rules
        self._seed = seed
        self._asked: Counter[int] = Counter()

    def draw(self, prompt_hash: int) -> Fault | None:
        """The fault of the next request for a prompt, if it has one."""
        if not self._rules:
            return None
        self._asked[prompt_hash] += 1
        key = f"{self._seed} {prompt_hash} {self._asked[prompt_hash]}".encode()
        lot = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64
        for rule in self._rules:
            if lot < rule.share:
                return rule
            lot -= rule.share
        return None


def from_header(text: str) -> Fault:
    """Reads the header. Raises ValueError."""
    kind, _, rest = text.partition(":")
    after, _, status = rest.partition(":")
    return Fault(kind=Kind(kind), after=int(after or 0), status=int(status or 503))
