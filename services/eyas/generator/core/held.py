"""One item that a generator holds: what was asked, what it has, and what the dispatcher was told of it."""

from array import array
from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.run.v1 import run_pb2

IDS = 4096
"""Most ids in a message."""

Key: TypeAlias = tuple[str, int, int, int]
"""Run, stage, position, turn."""

Ending: TypeAlias = pb.Finished | pb.Interrupted | pb.Released


class Step(Enum):
    """Where an item is."""

    ASSEMBLING = "assembling"  # ids of the assignment are on their way
    WORKING = "working"  # an attempt runs, or is about to
    PAUSED = "paused"  # kept, without an attempt
    ENDED = "ended"  # the dispatcher is told how, and has the last word


class Held:
    """An item from its assignment until the dispatcher lets it be forgotten.

    Nothing is queued for the dispatcher: what is to be said follows from what is held and what was said, so that a
    new stream only has to set back what was said.
    """

    def __init__(self, assign: pb.Assign) -> None:
        self.item = assign.item
        self.attempt = assign.attempt
        self.step = Step.ASSEMBLING
        self.prompt = array("I")
        """Ids of the prompt; empty until it is rendered."""
        self.ids = array("I")
        """Ids of the answer, over all attempts."""
        self.answered: tuple[pb.FinishReason.ValueType, str] | None = None
        """finish_reason and stop_reason, once all ids are there; the message may be missing still."""
        if assign.finish_reason != pb.FINISH_REASON_UNSPECIFIED:
            self.answered = (assign.finish_reason, "")
        self.ending: Ending | None = None
        self.adopted = True
        """Whether the dispatcher knows, on the stream that is open, that the item is held here."""
        self.release_asked = False
        self._incoming = array("I", assign.ids)
        self._sent_prompt = 0
        self._sent_ids = 0
        self._sent_ending = False
        self.assign = pb.Assign()
        self.assign.CopyFrom(assign)
        self.assign.ClearField("ids")

    @property
    def key(self) -> Key:
        """Tells items apart."""
        return key_of(self.item)

    @property
    def restarts(self) -> bool:
        """Whether an interrupted answer starts again from nothing."""
        return self.assign.protocol == run_pb2.PROTOCOL_CHAT

    def assemble(self, offset: int = -1, ids: Iterable[int] = ()) -> bool:
        """Takes further ids of the assignment. True once all are there."""
        if offset == len(self._incoming):
            self._incoming.extend(ids)
        prompt, answer = self.assign.prompt_length, self.assign.length
        if len(self._incoming) < prompt + answer:
            return False
        self.prompt, self.ids = self._incoming[:prompt], self._incoming[prompt : prompt + answer]
        self._incoming = array("I")
        self._sent_prompt, self._sent_ids = prompt, answer
        return True

    def rendered(self, ids: Iterable[int]) -> None:
        """The prompt is known."""
        if self.step is Step.WORKING:
            self.prompt = array("I", ids)

    def extend(self, ids: "array[int]") -> None:
        """Tokens came. Those that come after the item was stopped are too late."""
        if self.step is Step.WORKING:
            self.ids.extend(ids)

    def adopt(self, prompt_length: int, length: int) -> None:
        """The dispatcher holds so much, on a new stream: the rest is to be said again."""
        self.adopted = True
        self._sent_prompt = min(prompt_length, len(self.prompt))
        self._sent_ids = min(length, len(self.ids))
        self._sent_ending = False

    def holding(self) -> pb.Holding:
        """What is said of it on a new stream."""
        return pb.Holding(
            item=self.item,
            attempt=self.attempt,
            prompt_length=len(self.prompt),
            length=len(self.ids),
            endpoint=self.assign.endpoint,
        )

    @property
    def has_news(self) -> bool:
        """Whether there is something to say."""
        return self.adopted and (
            self._sent_ids < len(self.ids)
            or self._sent_prompt < len(self.prompt)
            or (self.ending is not None and not self._sent_ending)
        )

    def say(self) -> pb.WorkRequest | None:
        """The next message, which counts as sent: the prompt, then the ids, then how it ended."""
        if not self.has_news:
            return None
        item, attempt = self.item, self.attempt
        if (offset := self._sent_prompt) < len(self.prompt):
            ids = self.prompt[offset : offset + IDS]
            self._sent_prompt += len(ids)
            prompt = pb.Prompt(item=item, attempt=attempt, offset=offset, ids=ids, total=len(self.prompt))
            return pb.WorkRequest(prompt=prompt)
        if (offset := self._sent_ids) < len(self.ids):
            ids = self.ids[offset : offset + IDS]
            self._sent_ids += len(ids)
            return pb.WorkRequest(tokens=pb.Tokens(item=item, attempt=attempt, offset=offset, ids=ids))
        self._sent_ending = True
        match self.ending:
            case pb.Finished():
                return pb.WorkRequest(finished=self.ending)
            case pb.Interrupted():
                return pb.WorkRequest(interrupted=self.ending)
            case _:
                return pb.WorkRequest(released=self.ending)


def key_of(item: pb.Item) -> Key:
    """Tells items apart."""
    return item.run, item.stage, item.position, item.turn
