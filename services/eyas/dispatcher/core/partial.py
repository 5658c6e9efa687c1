"""An item that was handed out and is not done: its prompt, what was generated of its answer, and its history."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from eyas.dispatcher.core.policy import Cause, Thresholds


class Finish(Enum):
    """How an answer ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every item of a stage."""

    max_tokens: int
    context: int
    stop_ids: frozenset[int] = frozenset()
    continues: bool = True
    """An interrupted answer goes on from its ids; else it starts again."""
    needs_prompt: bool = True
    """An answer counts only with the ids of its prompt."""
    thresholds: Thresholds = field(default_factory=Thresholds)


def ids(values: Iterable[int] = ()) -> "array[int]":
    """Ids as they are stored: int32."""
    return array("i", values)


@dataclass(slots=True)
class Partial:
    """What is held of an item. Offsets count over all attempts."""

    index: int
    attempt: int = 0
    generator: str = ""
    endpoint: str = ""
    prompt: "array[int]" = field(default_factory=ids)
    prompt_total: int = 0
    """Length of the whole prompt; 0 before any of it came."""
    ids: "array[int]" = field(default_factory=ids)
    lost: int = 0
    """Generated ids that were dropped over all attempts."""
    start: int = 0
    """Ids that were there when this attempt began."""
    tries: int = 0
    failed: int = 0
    """Attempts that were this item's failure."""
    fruitless: int = 0
    """Attempts in a row that gained nothing."""
    deaths: int = 0
    """Deaths of an engine in which it was in flight."""
    causes: list[str] = field(default_factory=list)
    cause: Cause = Cause.UNKNOWN
    detail: str = ""
    began: float = 0.0
    stopping: bool = False
    """Its generator was asked to give it back."""
    finish: Finish | None = None

    @property
    def prompt_known(self) -> bool:
        """Whether the whole prompt is here."""
        return 0 < self.prompt_total == len(self.prompt)

    def take_prompt(self, offset: int, values: Sequence[int], total: int) -> None:
        """Takes ids of the prompt at the offset that is held; others are dropped."""
        if offset == len(self.prompt) and offset + len(values) <= total and self.prompt_total in (0, total):
            self.prompt.extend(values)
            self.prompt_total = total

    def take(self, offset: int, values: Sequence[int]) -> int:
        """Takes generated ids at the offset that is held. Returns how many were taken: all or none."""
        if offset != len(self.ids):
            return 0
        self.ids.extend(values)
        return len(values)

    def forget_ids(self) -> int:
        """Drops what was generated. Returns how much that was."""
        dropped = len(self.ids)
        self.lost += dropped
        self.ids = ids()
        return dropped

    def complete(self, rules: Rules) -> Finish | None:
        """How the answer ended if nothing may be generated any more: continuing it would yield a second answer."""
        if not self.ids:
            return None
        if self.ids[-1] in rules.stop_ids:
            return Finish.STOP
        if len(self.ids) >= rules.max_tokens or len(self.prompt) + len(self.ids) >= rules.context:
            return Finish.LENGTH
        return None
