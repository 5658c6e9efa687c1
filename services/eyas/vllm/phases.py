"""Limits on the time of a request, by phase. Told the time; owns no timer.

One limit on the whole would kill the longest answers first. So each phase has its own, the clocks start when the
request is sent, and an answer counts as stalled only by comparison with others.
"""

from dataclasses import dataclass
from enum import Enum

_ALL_SILENT = 5
"""A server that is silent to all its streams is given so many times the limit on stalls: it may be busy for long."""

_RECHECK = 4
"""Once a stream is late, it is looked at so many times in each limit on stalls."""


class Phase(Enum):
    """What a request waited for."""

    CONNECT = "connect"
    FIRST_TOKEN = "first_token"  # noqa: S105 - not a password
    STALL = "stall"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; 0 is no limit."""

    connect: float = 0.0
    first_token: float = 0.0
    stall: float = 0.0
    """Between two tokens, while the server makes tokens for others."""
    total: float = 0.0


class Activity:
    """What one server does for all the streams of this process."""

    __slots__ = ("chunks", "last_token", "streams", "tokens")

    def __init__(self) -> None:
        self.streams = 0
        """Requests in flight."""
        self.chunks = 0
        """Events of the streams, ever."""
        self.tokens = 0
        """Tokens, ever."""
        self.last_token = float("-inf")
        """When the last token came, for whichever stream."""


class Phases:
    """The clocks of one request, started when it is sent."""

    __slots__ = ("activity", "expired", "first_token", "last_token", "limits", "sent")

    def __init__(self, limits: Limits, activity: Activity, now: float) -> None:
        self.limits = limits
        self.activity = activity
        self.sent = now
        self.first_token: float | None = None
        self.last_token = now
        self.expired: Phase | None = None
        """The phase that took too long, once `check` found it."""

    def tokens(self, count: int, chunks: int, now: float) -> None:
        """Tokens came, in so many events."""
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        activity = self.activity
        activity.last_token = now
        activity.tokens += count
        activity.chunks += chunks

    def check(self, now: float) -> float | None:
        """When to check again; None for never, or when `expired` is set now."""
        limits = self.limits
        due: list[float] = []
        if limits.total:
            due.append(self.sent + limits.total)
            if now >= due[-1]:
                self.expired = Phase.TOTAL
        if self.first_token is None:
            if limits.first_token:
                due.append(self.sent + limits.first_token)
                if now >= due[-1]:
                    self.expired = Phase.FIRST_TOKEN
            if limits.stall:
                due.append(now + limits.stall)  # nothing else tells of the first token
        elif limits.stall:
            late = self.last_token + limits.stall
            due.append(late if now < late else now + limits.stall / _RECHECK)
            if self._stalled(now):
                self.expired = Phase.STALL
        return None if self.expired or not due else min(due)

    def _stalled(self, now: float) -> bool:
        limit, activity = self.limits.stall, self.activity
        if activity.streams > 1:  # its silence is measured on the clock of the tokens that others get
            return activity.last_token - self.last_token >= limit or now - self.last_token >= limit * _ALL_SILENT
        return now - self.last_token >= limit
