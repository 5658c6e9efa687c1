"""How many requests an endpoint may have, and whether it may have any.

The limit is fixed. What it is told (requests that start and end, tokens that arrive) is what one that adapts needs.
"""

from dataclasses import dataclass, field
from enum import Enum


class Health(Enum):
    """What is known of an endpoint."""

    UNKNOWN = "unknown"
    """New, or in doubt since an interruption: a probe decides. Nothing is handed out."""
    UP = "up"
    """It answers."""
    DOWN = "down"
    """It does not answer. Work waits, and is probed for."""


@dataclass(slots=True)
class Endpoint:
    """A server in use."""

    url: str
    limit: int
    health: Health = Health.UNKNOWN
    reason: str = "not asked yet"
    in_flight: set[int] = field(default_factory=set)
    """Items that have a request here."""
    doubted_at: float = 0.0
    """When the first interruption of this time of doubt came."""
    crowd: frozenset[int] = frozenset()
    """Items that had a request here at that moment."""
    undecided: list[int] = field(default_factory=list)
    """Interrupted items that wait for the probe."""
    tokens_at: float = float("-inf")
    """When tokens last came from here."""
    removed: bool = False
    """It is used no more, and forgotten when its last request is over."""

    @property
    def room(self) -> int:
        """Requests that may be added."""
        return self.limit - len(self.in_flight) if self.health is Health.UP else 0

    @property
    def excess(self) -> int:
        """Requests above the limit, after the limit was lowered."""
        return max(0, len(self.in_flight) - self.limit)

    def doubt(self, reason: str, now: float) -> bool:
        """An interruption puts the endpoint in doubt. Returns whether it was not before."""
        if self.health is not Health.UP:
            return False
        self.health, self.reason, self.doubted_at = Health.UNKNOWN, reason, now
        self.crowd = frozenset(self.in_flight)
        return True

    def alive_since_doubt(self, progress_seconds: float) -> bool:
        """Whether tokens arrived that can't have been made before the doubt: reports come every `progress_seconds`."""
        return self.tokens_at > self.doubted_at + 2 * progress_seconds
