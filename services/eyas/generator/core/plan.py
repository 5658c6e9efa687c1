"""What an attempt has to do next, from what is held."""

from dataclasses import dataclass
from typing import TypeAlias

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core.held import Held
from eyas.run.v1 import run_pb2


@dataclass(frozen=True, slots=True)
class Render:
    """Have the prompt rendered."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Ask for the rest of the answer: ids in, ids out."""

    prompt: list[int]
    """The prompt, and the partial answer after it."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Chat:
    """Ask for the whole answer as text."""


@dataclass(frozen=True, slots=True)
class Extract:
    """Have the hidden states taken."""


@dataclass(frozen=True, slots=True)
class Parse:
    """All ids are there: have them read as a message."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The prompt leaves no room for an answer: the item can't be done."""

    detail: str


Next: TypeAlias = Render | Complete | Chat | Extract | Parse | NoRoom


def plan(held: Held) -> Next:
    """Decides the next thing to do. May find that the partial answer is complete, and then notes it."""
    if held.item.stage == run_pb2.STAGE_EXTRACT:
        return Extract()
    if held.answered is not None:
        return Parse()
    if held.restarts:
        return Chat()
    return _complete(held) if held.prompt else Render()


def _complete(held: Held) -> Complete | Parse | NoRoom:
    assign = held.assign
    if held.ids and held.ids[-1] in assign.sampling.stop_token_ids:
        held.answered = (pb.FINISH_REASON_STOP, str(held.ids[-1]))
        return Parse()
    prompt = len(held.prompt)
    # A server clamps silently what does not fit, and refuses a budget of nothing: so the budget is exact.
    budget = min(assign.max_tokens, assign.context - prompt) if assign.context else assign.max_tokens
    if budget <= 0:
        return NoRoom(f"the prompt has {prompt} tokens and leaves no room in a context of {assign.context}")
    if len(held.ids) >= budget:
        held.answered = (pb.FINISH_REASON_LENGTH, "")
        return Parse()
    return Complete((held.prompt + held.ids).tolist(), budget - len(held.ids))
