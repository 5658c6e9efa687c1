"""All items of a generator, and its side of the Work protocol. No I/O; told the time.

A stream begins with Hello, a Holding for each item, and HoldingDone; the dispatcher answers each Holding with Ack
(go on, from these lengths), Durable or Stop. An item is forgotten only when the dispatcher says so: Durable, Stop
FORGET, or a newer attempt of it. The end of a stream means nothing; silence pauses, and an Ack ends the pause.
"""

from dataclasses import dataclass
from enum import Enum

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core.held import Held, Key, Step, key_of

_BATCH = 64
"""Messages taken at once: so few that what is said is never old."""


class Act(Enum):
    """What is to be done with an item's attempt."""

    START = "start"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Order:
    """For the shell."""

    act: Act
    held: Held


class Ledger:
    """The items, and what is to be said of them."""

    def __init__(self, generator: str, capacity: int) -> None:
        self._hello = pb.Hello(generator=generator, capacity=capacity)
        self.items: dict[Key, Held] = {}
        self.welcome = pb.Welcome(silence_seconds=15.0, heartbeat_seconds=5.0, progress_seconds=1.0)
        """How to behave; the dispatcher's word once it came."""
        self.connected = False
        """Whether the dispatcher has answered on the stream that is open."""
        self.draining = False
        self._greeted = False
        self._heard = 0.0
        self._opened = 0.0
        self._heartbeat_at = 0.0
        self._progress_at = 0.0
        self._urgent: dict[Key, Held] = {}

    # The stream.

    def open(self, now: float) -> None:
        """A new stream: all is to be said anew. Assignments that did not come whole are the dispatcher's again."""
        for key in [key for key, held in self.items.items() if held.step is Step.ASSEMBLING]:
            del self.items[key]
        for held in self.items.values():
            held.adopted = False
        self._urgent.clear()
        self._greeted = False
        self._opened = now
        self._heartbeat_at = now + self.welcome.heartbeat_seconds

    def closed(self) -> None:
        """The stream is gone. Attempts go on."""
        self.connected = False

    def receive(self, response: pb.WorkResponse, now: float) -> list[Order]:
        """Takes a message of the dispatcher."""
        self._heard = now
        orders: list[Order] = []
        match response.WhichOneof("message"):
            case "welcome":
                self.connected = True
                self.welcome = response.welcome
                self._heartbeat_at = min(self._heartbeat_at, now + self.welcome.heartbeat_seconds)
            case "assign":
                orders = self._assigned(response.assign)
            case "assign_ids":
                more = response.assign_ids
                held = self._find(more.item, more.attempt)
                if held is not None and held.step is Step.ASSEMBLING and held.assemble(more.offset, more.ids):
                    orders = self._assembled(held)
            case "ack":
                orders = self._acknowledged(response.ack)
            case "durable":
                orders = self._forget(self._find(response.durable.item, response.durable.attempt))
            case "stop":
                held = self._find(response.stop.item, response.stop.attempt)
                forget = response.stop.reason == pb.STOP_REASON_FORGET
                orders = self._forget(held) if forget else self._release(held)
        return orders

    def take(self, now: float) -> list[pb.WorkRequest]:
        """The next messages to send, in order; none when there is nothing to say before `due`."""
        messages: list[pb.WorkRequest] = []
        if not self._greeted:
            self._greeted = True
            messages.append(pb.WorkRequest(hello=self._hello))
            messages += [pb.WorkRequest(holding=held.holding()) for held in self.items.values()]
            messages.append(pb.WorkRequest(holding_done=pb.HoldingDone()))
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self.welcome.heartbeat_seconds
            messages.append(pb.WorkRequest(heartbeat=pb.Heartbeat(draining=self.draining)))
        if now >= self._progress_at:
            self._progress_at = now + self.welcome.progress_seconds
            self._urgent.update((key, held) for key, held in self.items.items() if held.has_news)
        while self._urgent and len(messages) < _BATCH:
            held = next(iter(self._urgent.values()))
            message = held.say()
            if message is None:
                del self._urgent[held.key]
            else:
                messages.append(message)
        return messages

    @property
    def due(self) -> float:
        """When `take` has something to say, if nothing happens before: 0 for at once."""
        return 0.0 if self._urgent else min(self._heartbeat_at, self._progress_at)

    # Silence and the end.

    def is_silent(self, now: float) -> bool:
        """Whether nothing was heard for so long that the stream that is open must be given up."""
        return now - max(self._heard, self._opened) >= self.welcome.silence_seconds

    def pause(self, now: float) -> list[Order]:
        """Stops the attempts if the dispatcher was silent for so long that it will end the leases soon."""
        if now - self._heard < self.welcome.silence_seconds:
            return []
        orders = []
        for held in self.items.values():
            if held.step is not Step.WORKING or held.answered is not None:
                continue
            orders.append(Order(Act.STOP, held))
            if held.restarts:
                self._end(held, pb.Released(length=len(held.ids)))
            else:
                held.step = Step.PAUSED
        return orders

    def drain(self) -> None:
        """The end is near: nothing more is started."""
        self.draining = True
        self._heartbeat_at = 0.0

    def release_all(self) -> list[Order]:
        """Gives back, with its tokens, all that has not ended."""
        return [order for held in list(self.items.values()) for order in self._release(held)]

    @property
    def working(self) -> bool:
        """Whether an attempt runs."""
        return any(held.step is Step.WORKING for held in self.items.values())

    # Attempts.

    def finish(self, held: Held, message: pb.Message, first_token_seconds: float, seconds: float) -> None:
        """The answer ended, and was read as a message."""
        finish_reason, stop_reason = held.answered or (pb.FINISH_REASON_UNSPECIFIED, "")
        finished = pb.Finished(
            length=len(held.ids),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            message=message,
            first_token_seconds=first_token_seconds,
            seconds=seconds,
        )
        self._end(held, finished)

    def interrupt(self, held: Held, cause: pb.Cause.ValueType, detail: str, http_status: int = 0) -> None:
        """The attempt ended without an answer."""
        interrupted = pb.Interrupted(length=len(held.ids), cause=cause, http_status=http_status, detail=detail)
        self._end(held, interrupted)

    def _end(self, held: Held, ending: pb.Finished | pb.Interrupted | pb.Released) -> None:
        if held.step is Step.ENDED or self.items.get(held.key) is not held:
            return
        ending.item.CopyFrom(held.item)
        ending.attempt = held.attempt
        held.ending = ending
        held.step = Step.ENDED
        self._urgent[held.key] = held

    # What the dispatcher says.

    def _find(self, item: pb.Item, attempt: int) -> Held | None:
        held = self.items.get(key_of(item))
        return held if held is not None and held.attempt == attempt else None

    def _assigned(self, assign: pb.Assign) -> list[Order]:
        known = self.items.get(key_of(assign.item))
        if known is not None and known.attempt >= assign.attempt:
            return []
        orders = self._forget(known)
        held = Held(assign)
        self.items[held.key] = held
        return orders + (self._assembled(held) if held.assemble() else [])

    def _assembled(self, held: Held) -> list[Order]:
        held.step = Step.PAUSED
        if held.release_asked:
            return self._release(held)
        return self._start(held)

    def _start(self, held: Held) -> list[Order]:
        if self.draining:
            return []
        held.step = Step.WORKING
        return [Order(Act.START, held)]

    def _acknowledged(self, ack: pb.Ack) -> list[Order]:
        held = self._find(ack.item, ack.attempt)
        if held is None or held.adopted:
            return []  # of ids that arrived: a stream loses nothing, so there is nothing to do
        held.adopt(ack.prompt_length, ack.length)
        self._urgent[held.key] = held
        return self._start(held) if held.step is Step.PAUSED else []

    def _release(self, held: Held | None) -> list[Order]:
        if held is None or held.step is Step.ENDED:
            return []
        if held.step is Step.ASSEMBLING:
            held.release_asked = True
            return []
        orders = [Order(Act.STOP, held)] if held.step is Step.WORKING else []
        self._end(held, pb.Released(length=len(held.ids)))
        return orders

    def _forget(self, held: Held | None) -> list[Order]:
        if held is None:
            return []
        del self.items[held.key]
        self._urgent.pop(held.key, None)
        return [Order(Act.STOP, held)] if held.step is Step.WORKING else []
