"""What the state machine wants done. The shell does it, in order."""

from dataclasses import dataclass
from typing import TypeAlias

from eyas.dispatcher.core.partial import Finish, Partial


@dataclass(frozen=True, slots=True)
class Assign:
    """Hand the item to its generator. `complete`: nothing is to be generated, only parsed."""

    partial: Partial
    complete: Finish | None


@dataclass(frozen=True, slots=True)
class Ack:
    """Tell a generator what is held."""

    generator: str
    index: int
    attempt: int
    prompt_length: int
    length: int


@dataclass(frozen=True, slots=True)
class Durable:
    """Tell a generator that the row is stored."""

    generator: str
    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell a generator to forget an item, or to give it back."""

    generator: str
    index: int
    attempt: int
    forget: bool


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Write a failure."""

    index: int
    reason: str
    detail: str
    tries: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the run, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether an endpoint answers."""

    url: str


Effect: TypeAlias = Assign | Ack | Durable | Stop | GaveUp | Pause | Probe
