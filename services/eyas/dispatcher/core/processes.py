"""The processes that there should be, and what becomes of them: back-off, and when to give up."""

from dataclasses import dataclass
from enum import Enum

LIMIT = 5
"""Ends in a row, without progress between them, after which a process is not wanted again."""


class ProcessState(Enum):
    """Where a process is."""

    UNKNOWN = "unknown"
    """No launcher has said anything of it."""
    STARTING = "starting"
    READY = "ready"
    EXITED = "exited"


@dataclass(slots=True)
class Process:
    """A process by name. `generation` grows each time that it is wanted again."""

    name: str
    generation: int = 0
    state: ProcessState = ProcessState.UNKNOWN
    url: str = ""
    exit_code: int = 0
    detail: str = ""
    ends: int = 0
    """Ends in a row."""
    again_at: float = 0.0

    @property
    def given_up(self) -> bool:
        """Whether it ended too often."""
        return self.ends >= LIMIT

    def told(self, generation: int, state: ProcessState, url: str, exit_code: int, detail: str, now: float) -> bool:  # noqa: PLR0917
        """A launcher says what became of it. Returns whether that is news."""
        if generation < self.generation:
            return False
        news = (generation, state, url) != (self.generation, self.state, self.url)
        if news and state is ProcessState.EXITED and exit_code:
            self.ended_in_vain(now)
        self.generation, self.state, self.url = generation, state, url
        self.exit_code, self.detail = exit_code, detail
        return news

    def ended_in_vain(self, now: float) -> None:
        """It ended, and what it was for is not done."""
        self.ends += 1
        self.again_at = now + 2.0 ** (self.ends - 1)

    def progressed(self) -> None:
        """It made progress: earlier ends are forgotten."""
        self.ends = 0

    def again(self, now: float) -> bool:
        """Whether it is to be wanted again; then it is, as a new generation."""
        if self.state is not ProcessState.EXITED or self.given_up or now < self.again_at:
            return False
        self.generation += 1
        self.state, self.url = ProcessState.UNKNOWN, ""
        return True
