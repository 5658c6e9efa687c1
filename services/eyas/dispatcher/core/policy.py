"""Whose fault an interruption is, and when trouble pauses the run.

the item's           400, 413, 422, a template that rejects the messages: given up, unless many in a row say that
                     it is the run's
the run's            401, 403, 404: paused at once
the endpoint's       everything else: a probe decides. An endpoint that is down costs nobody an attempt; one that
                     answers makes it a failed attempt of the item, unless the attempt gained tokens
"""

from dataclasses import dataclass, field
from enum import Enum

BURST = 10
"""So many refused items, with no answer between them, are the run's fault."""


class Fault(Enum):
    """Whose fault an interruption is."""

    ITEM = "item"
    RUN = "run"
    ENDPOINT = "endpoint"
    TOKENIZER = "tokenizer"


class Cause(Enum):
    """Why an attempt ended without an answer; the value is the name in tables and metrics."""

    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"  # noqa: S105 - a phase, not a password
    TIMEOUT_STALL = "timeout_stall"
    TIMEOUT_TOTAL = "timeout_total"
    CONNECTION = "connection"
    SERVER = "server"
    STREAM = "stream"
    ITEM = "item"
    CONFIGURATION = "configuration"
    PROTOCOL = "protocol"
    TEMPLATE = "template"
    TOKENIZER = "tokenizer"
    HIDDEN_STATES = "hidden_states"
    UNKNOWN = "unknown"

    @property
    def phase(self) -> str:
        """The phase of a timeout; empty for others."""
        return self.value.removeprefix("timeout_") if self.value.startswith("timeout_") else ""

    @property
    def fault(self) -> Fault:
        """Whose fault it is."""
        return _FAULTS.get(self, Fault.ENDPOINT)

    @property
    def outcome(self) -> str:
        """The attempt's outcome in metrics."""
        if self.phase:
            return "timeout"
        return "item" if self.fault is Fault.ITEM else "endpoint"

    @property
    def may_be_death(self) -> bool:
        """Whether it is what clients see when an engine dies."""
        return self in (Cause.CONNECTION, Cause.SERVER, Cause.STREAM)


_FAULTS = {
    Cause.ITEM: Fault.ITEM,
    Cause.TEMPLATE: Fault.ITEM,
    Cause.CONFIGURATION: Fault.RUN,
    Cause.TOKENIZER: Fault.TOKENIZER,
}

PHASES = tuple(cause.phase for cause in Cause if cause.phase)
OUTCOMES = ("ok", "truncated", "timeout", "endpoint", "item", "released")


def delay(interruptions_without_gain: int) -> float:
    """Seconds that an item waits before it is tried again, so that a fault that repeats does not spin."""
    return min(30.0, 0.25 * 2.0 ** min(interruptions_without_gain, 8)) if interruptions_without_gain else 0.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When trouble warns, and when it pauses the run. Shares of 1."""

    attempts_warn: float = 0.01
    attempts_alert: float = 0.05
    given_up_pause: float = 0.05
    minimum_volume: int = 100
    max_attempts: int = 5


@dataclass
class Counters:
    """What happened to attempts since the stage began on this dispatcher."""

    attempts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    timeouts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    failed_attempts: int = 0
    lease_losses: int = 0
    generated: int = 0
    """Tokens taken from servers."""
    lost: int = 0
    """Of these, tokens that are in no answer and can't be continued."""
    regenerated: int = 0
    """Of these, tokens whose items were or will be made again."""
    done_tokens: int = 0
    """Tokens of durable answers."""


@dataclass
class Watch:
    """Looks for trouble that should pause the run. A resume begins anew."""

    closed: int = 0
    given_up: int = 0
    in_a_row: int = 0

    def answered(self) -> None:
        """An item ended with an answer."""
        self.closed += 1
        self.in_a_row = 0

    def refused(self, cause: Cause, detail: str) -> str:
        """An item was refused. Returns why the run pauses; empty when it goes on."""
        self.in_a_row += 1
        if self.in_a_row < BURST:
            return ""
        return (
            f"the last {self.in_a_row} items were all refused ({cause.value}: {detail}), and nothing was answered "
            "between them: correct the model, its chat template or the settings, then `eyas resume`"
        )

    def gave_up(self, thresholds: Thresholds, reason: str) -> str:
        """An item was given up. Returns why the run pauses; empty when it goes on."""
        self.closed += 1
        self.given_up += 1
        if self.closed < thresholds.minimum_volume or self.given_up <= thresholds.given_up_pause * self.closed:
            return ""
        return (
            f"{self.given_up} of {self.closed} items were given up, more than {thresholds.given_up_pause:.0%}, "
            f"the last one because of {reason}: remove the cause, then `eyas retry` and `eyas resume`, "
            "or allow more with `eyas set thresholds.givenUpPause=...`"
        )


def trouble(counters: Counters, thresholds: Thresholds) -> str:
    """What is to be said of the attempts that fail; empty when all is well."""
    total = sum(counters.attempts.values()) - counters.attempts["released"]
    if total < thresholds.minimum_volume:
        return ""
    share = counters.failed_attempts / total
    for level, limit in (("alert", thresholds.attempts_alert), ("warning", thresholds.attempts_warn)):
        if share > limit:
            worst = max(("timeout", "endpoint", "item"), key=lambda outcome: counters.attempts[outcome])
            return f"{level}: {share:.1%} of {total} attempts failed, most of them: {worst}"
    return ""
