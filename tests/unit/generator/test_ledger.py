"""Whatever is lost, late or repeated between them: what the dispatcher collects is what the server made."""

from array import array
from collections import deque

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core import held as held_module
from eyas.generator.core.held import Held, Step
from eyas.generator.core.ledger import Act, Ledger
from eyas.generator.core.plan import Chat, Complete, Parse, Render, plan
from support.dispatcher_model import CHUNK, Dispatcher, Work

LENGTH = 11
WORKS = 3
POSITIONS = st.integers(0, WORKS - 1)


def prompt_of(position: int) -> list[int]:
    return [1000 * position + k for k in range(6)]


def answer_of(position: int, salt: int) -> list[int]:
    """What the server makes. The salt differs with each request where the protocol starts again."""
    return [5000 + 1000 * position + salt + k for k in range(LENGTH)]


class Protocol(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.now = 100.0
        self.ledger = Ledger("g", 10)
        self.dispatcher = Dispatcher([Work(0), Work(1), Work(2, chat=True)])
        self.wire: deque[pb.WorkRequest] = deque()
        self.running: dict[int, Held] = {}
        self.salts = [0, 0, 0]
        self.stopped: list[Held] = []
        self.last: pb.WorkResponse | None = None  # on this stream: nothing crosses from one to the next
        self.reconnect()

    # The two ends of the stream.

    @rule()
    def reconnect(self) -> None:
        self.wire.clear()
        self.last = None
        self.ledger.closed()
        self.ledger.open(self.now)
        self.dispatcher.connect()

    @rule(keep=st.floats(0, 1))
    def restart_dispatcher(self, keep: float) -> None:
        self.dispatcher.restart(keep)
        self.reconnect()

    @rule(positions=st.lists(POSITIONS, min_size=1, max_size=4), count=st.integers(1, 9))
    def proceed(self, positions: list[int], count: int, received: int = 100) -> None:
        """A second in which all goes well."""
        for position in positions:
            self.assign(position)
            self.generate(position, count, cut=False)
        self.now += 1.0
        self.send(100)
        self.receive(received)

    @rule(positions=st.lists(POSITIONS, min_size=1, max_size=4), count=st.integers(5, 9), received=st.integers(1, 4))
    def proceed_slowly(self, positions: list[int], count: int, received: int) -> None:
        """The same, but the dispatcher's words are read late."""
        self.proceed(positions, count, received)

    @rule(limit=st.integers(1, 8))
    def send(self, limit: int) -> None:
        self.wire.extend(self.ledger.take(self.now))
        for _ in range(min(limit, len(self.wire))):
            self.dispatcher.receive(self.wire.popleft())

    @rule(limit=st.integers(1, 8))
    def receive(self, limit: int) -> None:
        for _ in range(min(limit, len(self.dispatcher.outbox))):
            self.last = self.dispatcher.outbox.popleft()
            self.carry_out(self.ledger.receive(self.last, self.now))

    @precondition(lambda self: self.last is not None)
    @rule()
    def receive_again(self) -> None:
        self.carry_out(self.ledger.receive(self.last, self.now))

    @rule()
    def fall_silent(self) -> None:
        self.wait(16.0)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 9.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.ledger.pause(self.now))
        if self.ledger.is_silent(self.now):
            self.reconnect()

    def carry_out(self, orders) -> None:
        for order in orders:
            position = order.held.item.position
            if order.act is Act.START:
                assert position not in self.running
                self.running[position] = order.held
                if order.held.restarts:
                    self.salts[position] += 100
                    order.held.ids = array("I")
            else:
                self.stopped.append(self.running.pop(position))
                assert self.stopped[-1] is order.held

    # What the dispatcher does by itself.

    def ready(self, position: int) -> bool:
        work = self.dispatcher.works[position]
        return self.dispatcher._declared is None and not work.leased and not work.durable

    @rule(position=POSITIONS)
    def assign(self, position: int) -> None:
        if self.ready(position):
            self.dispatcher.assign(position)

    @rule(position=POSITIONS, count=st.integers(1, 3), then=st.sampled_from(["reconnect", "release", "forget"]))
    def assign_in_pieces(self, position: int, count: int, then: str) -> None:
        """Something happens while the ids of an assignment are on their way."""
        self.generate(position, 4, cut=True)
        for _ in range(2):
            self.send(100)
            self.receive(100)
        self.assign(position)
        self.receive(count)
        if then == "reconnect":
            self.reconnect()
        else:
            self.stop(position, forget=then == "forget")

    @rule(position=POSITIONS, forget=st.booleans())
    def stop(self, position: int, forget: bool) -> None:
        work = self.dispatcher.works[position]
        if self.dispatcher._declared is None and work.leased and work.finished is None:
            self.dispatcher.stop(position, pb.STOP_REASON_FORGET if forget else pb.STOP_REASON_RELEASE)

    @rule(position=POSITIONS)
    def commit(self, position: int) -> None:
        if self.dispatcher.works[position].finished is not None and not self.dispatcher.works[position].durable:
            self.dispatcher.commit(position)

    # What the server does.

    @rule(position=POSITIONS, count=st.integers(1, 9), cut=st.booleans())
    def generate(self, position: int, count: int, cut: bool) -> None:
        held = self.running.get(position)
        if held is None:
            return
        match plan(held):
            case Render():
                held.rendered(prompt_of(position))
            case Complete(prompt, max_tokens):
                assert prompt == prompt_of(position) + held.ids.tolist()
                assert max_tokens == 1000 - len(held.ids)
                self.tokens(held, count, cut)
            case Chat():
                self.tokens(held, count, cut)
            case Parse():
                del self.running[position]
                self.ledger.finish(held, pb.Message(content="x"), 0.1, 0.2)

    def tokens(self, held: Held, count: int, cut: bool) -> None:
        position = held.item.position
        answer = answer_of(position, self.salts[position])
        held.extend(array("I", answer[len(held.ids) : len(held.ids) + count]))
        if cut:
            del self.running[position]
            self.ledger.interrupt(held, pb.CAUSE_CONNECTION, "cut")
        elif len(held.ids) == LENGTH:
            held.answered = (pb.FINISH_REASON_STOP, "")

    @precondition(lambda self: self.stopped)
    @rule()
    def tokens_too_late(self) -> None:
        held = self.stopped[-1]
        if self.running.get(held.item.position) is not held:
            held.extend(array("I", [1, 2, 3]))

    # What must always hold.

    @invariant()
    def nothing_but_the_answer(self) -> None:
        for position, work in self.dispatcher.works.items():
            answer = answer_of(position, self.salts[position])
            assert work.ids == answer[: len(work.ids)]
            assert work.prompt == prompt_of(position)[: len(work.prompt)]

    @invariant()
    def attempts_run_where_they_should(self) -> None:
        working = {held.item.position for held in self.ledger.items.values() if held.step is Step.WORKING}
        assert working == self.running.keys()

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """What the dispatcher counts on is held, unless its own words to that effect are on their way."""
        if self.dispatcher._declared is not None:
            return
        on_their_way = [m for m in self.dispatcher.outbox if m.WhichOneof("message") in ("assign", "stop", "durable")]
        touched = {getattr(m, m.WhichOneof("message")).item.position for m in on_their_way}
        for position, work in self.dispatcher.works.items():
            if work.leased and position not in touched:
                held = next(held for held in self.ledger.items.values() if held.item.position == position)
                assert held.attempt == work.attempt

    def teardown(self) -> None:
        """Left alone, everything ends: each answer is whole, and nothing is held any more."""
        for _ in range(60):
            for position in range(WORKS):
                if not self.dispatcher.outbox and not self.wire and self.ready(position):
                    self.assign(position)
                self.generate(position, 5, cut=False)
                self.commit(position)
            self.now += 1.0
            self.send(100)
            self.receive(100)
        for position, work in self.dispatcher.works.items():
            assert work.durable
            assert work.ids == answer_of(position, self.salts[position])
            assert work.prompt == ([] if work.chat else prompt_of(position))
        assert not self.ledger.items


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=200, stateful_step_count=30, report_multiple_bugs=False, phases=[Phase.generate]
)


@pytest.fixture(autouse=True)
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "IDS", CHUNK)
