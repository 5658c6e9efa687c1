"""Random interleavings of everything that can happen to the dispatcher, with generators that follow the protocol.

Whatever happens, no item is lost, none is done twice, and every stored answer is the true one, id by id.
"""

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eyas.dispatcher.core.effects import Ack, Assign, Durable, GaveUp, Pause, Probe, Stop
from eyas.dispatcher.core.items import DURABLE, Items, State
from eyas.dispatcher.core.leases import Leases
from eyas.dispatcher.core.limit import Endpoint, Health
from eyas.dispatcher.core.partial import Finish, Partial, Rules, ids
from eyas.dispatcher.core.policy import Cause
from eyas.dispatcher.core.work import Work

EOS = 7
URLS = ("http://a", "http://b")
LIMIT = 3
LEASE = 20.0


def true_prompt(index: int) -> list[int]:
    return [100 + index, 200 + index]


def true_answer(index: int) -> tuple[list[int], Finish]:
    """Odd items are ended by the model, even ones by max_tokens."""
    if index % 2:
        return [1000 * (index + 1) + k for k in range(index % 11 + 3)] + [EOS], Finish.STOP
    return [1000 * (index + 1) + k for k in range(16)], Finish.LENGTH


@dataclass
class Held:
    attempt: int
    endpoint: str
    prompt: list[int]
    answer: list[int]
    sent_prompt: bool = False
    sent: int = 0
    finish: Finish | None = None
    told: bool = False
    """Finished, Interrupted or Released was sent."""


@dataclass
class Generator:
    name: str
    connected: bool = False
    frozen: bool = False
    """It hears and says nothing, but its connection stands."""
    held: dict[int, Held] = field(default_factory=dict)
    inbox: list = field(default_factory=list)
    pending_hello: list = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.turns = [1, 2, 1, 3, 1, 1, 2, 1]
        self.stored: dict[int, tuple[list[int], list[int], Finish]] = {}
        self.attempts = itertools.count(1)
        self.generators = [Generator(f"g{k}") for k in range(3)]
        self.uncommitted: list[int] = []
        self.hint: list[Partial] = []
        self.names = itertools.count()
        self.start()
        for k in range(3):
            self.connect(k)

    def start(self):
        """A dispatcher starts: it knows what is stored, and the hint."""
        self.items = Items(len(self.turns), self.turns)
        self.leases = Leases(LEASE)
        self.work = Work("r", self.items, self.leases, Rules(16, 100, frozenset([EOS])), lambda: next(self.attempts))
        for index in range(len(self.items)):
            if index in self.stored:
                self.work.absorb(index, self.stored[index][2])
        for partial in self.hint:
            self.work.restore(
                Partial(
                    partial.index,
                    partial.attempt,
                    prompt=ids(partial.prompt),
                    prompt_total=partial.prompt_total,
                    ids=ids(partial.ids),
                    deaths=partial.deaths,
                )
            )
        for url in URLS:
            self.work.endpoints[url] = Endpoint(url, LIMIT)
            self.work.endpoint_up(url, restarted=False, now=self.now)
        self.work.await_generators({p.generator for p in self.hint if p.generator}, self.now + LEASE)
        self.uncommitted = []
        self.work.out.clear()

    def flush(self):
        for effect in self.work.out:
            match effect:
                case Assign(partial, complete):
                    message = ("assign", partial.index, partial.attempt, partial.endpoint, list(partial.prompt),
                               list(partial.ids), complete)  # fmt: skip
                    self.deliver(partial.generator, message)
                case Ack(name, index, attempt, prompt_length, length):
                    self.deliver(name, ("ack", index, attempt, prompt_length, length))
                case Durable(name, index, attempt):
                    self.deliver(name, ("durable", index, attempt))
                case Stop(name, index, attempt, forget):
                    self.deliver(name, ("stop", index, attempt, forget))
                case Probe() | Pause():
                    pass
                case GaveUp():
                    raise AssertionError(f"no item may be given up here: {effect}")
        self.work.out.clear()

    def deliver(self, name, message):
        for generator in self.generators:
            if generator.name == name and generator.connected:
                generator.inbox.append(message)

    def mine(self, k):
        return self.generators[k % len(self.generators)]

    # Generators.

    @rule(k=st.integers(0, 2))
    def connect(self, k):
        generator = self.mine(k)
        if generator.connected or generator.frozen:
            return
        generator.connected = True
        generator.inbox.clear()
        self.leases.hello(generator.name, 4, self.now)
        for index, held in generator.held.items():
            held.told = False
            self.work.holding(
                generator.name, index, held.attempt, len(held.prompt), len(held.answer), held.endpoint, self.now
            )
        self.work.holding_done(generator.name)
        self.leases.generators[generator.name].ready = True
        self.flush()

    @rule(k=st.integers(0, 2))
    def disconnect(self, k):
        """The stream breaks: what is on its way is lost in both directions."""
        generator = self.mine(k)
        generator.connected = False
        generator.inbox.clear()
        if generator.name in self.leases.generators:
            self.leases.generators[generator.name].ready = False

    @rule(k=st.integers(0, 2))
    def kill(self, k):
        generator = self.mine(k)
        self.disconnect(k)
        generator.held.clear()
        generator.frozen = False
        generator.name = f"h{next(self.names)}"

    @rule(k=st.integers(0, 2), frozen=st.booleans())
    def freeze(self, k, frozen):
        self.mine(k).frozen = frozen

    @rule(k=st.integers(0, 2))
    def reconnect(self, k):
        self.disconnect(k)
        self.connect(k)

    @rule(steps=st.lists(st.integers(0, 6), min_size=3, max_size=3))
    def work_on_all(self, steps):
        self.assign()
        for k, count in enumerate(steps):
            self.work_on(k, count)

    @rule(k=st.integers(0, 2), steps=st.integers(1, 6))
    def work_on(self, k, steps):
        generator = self.mine(k)
        if generator.frozen:
            return
        for _ in range(2 * steps):
            if generator.inbox:
                self.hear(generator, generator.inbox.pop(0))
        for index, held in list(generator.held.items())[:steps]:
            self.generate(index, held)
        if generator.connected and self.leases.heard(generator.name, self.now):
            for index, held in list(generator.held.items()):
                self.say(generator, index, held)
            self.flush()

    def hear(self, generator, message):
        kind, index, attempt, *rest = message
        held = generator.held.get(index)
        match kind:
            case "assign":
                endpoint, prompt, answer, complete = rest
                assert answer == true_answer(index)[0][: len(answer)]
                if complete is None:
                    assert len(answer) < len(true_answer(index)[0]), "a complete answer would be continued"
                generator.held[index] = Held(
                    attempt, endpoint, prompt, answer, sent_prompt=bool(prompt), sent=len(answer), finish=complete
                )
            case "ack" if held and held.attempt == attempt:
                prompt_length, length = rest
                held.sent_prompt = prompt_length == len(held.prompt) and prompt_length > 0
                held.sent = min(held.sent, length)
                if length < len(held.answer):
                    held.told = False
            case "durable":
                generator.held.pop(index, None)
                assert index in self.stored
            case "stop" if held and held.attempt == attempt:
                if rest[0]:
                    del generator.held[index]
                elif not held.told:
                    self.report(generator, index, held)
                    held.told = True
                    self.work.released(generator.name, index, attempt)
                    self.flush()

    def generate(self, index, held):
        held.prompt = held.prompt or true_prompt(index)
        answer, finish = true_answer(index)
        if held.finish is None:
            if held.answer == answer:
                held.finish = finish
            held.answer = answer[: len(held.answer) + 2]

    def report(self, generator, index, held):
        name, attempt = generator.name, held.attempt
        if held.prompt and not held.sent_prompt:
            self.work.prompt(name, index, attempt, 0, held.prompt, len(held.prompt))
            held.sent_prompt = True
        if held.sent < len(held.answer):
            self.work.tokens(name, index, attempt, held.sent, held.answer[held.sent :], self.now)
            held.sent = len(held.answer)

    def say(self, generator, index, held):
        self.report(generator, index, held)
        if held.finish and not held.told:
            held.told = True
            taken = self.work.finished(generator.name, index, held.attempt, len(held.answer), held.finish)
            if taken:
                assert index not in self.uncommitted
                self.uncommitted.append(index)

    @rule(k=st.integers(0, 2), pick=st.integers(0, 10), cause=st.sampled_from([Cause.CONNECTION, Cause.TIMEOUT_STALL]))
    def interrupt(self, k, pick, cause):
        generator = self.mine(k)
        held = list(generator.held.items())
        if not held or not generator.connected or generator.frozen:
            return
        if not self.leases.heard(generator.name, self.now):
            return
        index, item = held[pick % len(held)]
        if item.told or item.finish:
            return
        self.report(generator, index, item)
        item.told = True
        self.work.interrupted(generator.name, index, item.attempt, cause, "", self.now)
        self.flush()

    # The dispatcher.

    @rule()
    def assign(self):
        self.work.tick()
        before = {url: len(endpoint.in_flight) for url, endpoint in self.work.endpoints.items()}
        assert self.work.assign(self.now, lambda _: True) is None
        for url, endpoint in self.work.endpoints.items():
            assert len(endpoint.in_flight) <= max(before[url], endpoint.limit)
        self.flush()

    @rule(seconds=st.sampled_from([0.5, 2.0, 8.0, 25.0]))
    def wait(self, seconds):
        self.now += seconds
        for name in self.leases.expire(self.now):
            self.work.lost(name)
            for generator in self.generators:
                if generator.name == name:
                    generator.connected = False
                    generator.inbox.clear()
        self.flush()

    @rule(count=st.integers(1, 4))
    def commit(self, count):
        done, self.uncommitted = self.uncommitted[:count], self.uncommitted[count:]
        for index in done:
            partial = self.work.partials[index]
            assert index not in self.stored, "done twice"
            self.stored[index] = (list(partial.prompt), list(partial.ids), partial.finish)
        self.work.committed(done)
        self.flush()

    @rule(url=st.sampled_from(URLS))
    def probe_answered(self, url):
        if self.work.endpoints[url].health is not Health.UP:
            for partial in self.work.partials.values():
                partial.failed = 0
            self.work.endpoint_up(url, restarted=False, now=self.now)
            self.flush()

    @rule(url=st.sampled_from(URLS))
    def probe_unanswered(self, url):
        if self.work.endpoints[url].health is Health.UNKNOWN:
            for partial in self.work.partials.values():
                partial.deaths = min(partial.deaths, 1)  # a third death alone gives an item up, by design
            self.work.endpoint_down(url, "gone", self.now)
            self.flush()

    @rule()
    def write_hint(self):
        self.hint = [
            Partial(
                p.index,
                p.attempt,
                generator=p.generator,
                prompt=ids(p.prompt),
                prompt_total=p.prompt_total,
                ids=ids(p.ids),
                deaths=p.deaths,
            )
            for index, p in self.work.partials.items()
            if self.items.state(index) is not State.ENDED
        ]

    @rule(back=st.lists(st.integers(0, 2), max_size=3))
    def restart(self, back):
        for generator in self.generators:
            generator.connected = False
            generator.inbox.clear()
        self.start()
        for k in back:
            self.connect(k)

    @precondition(lambda self: not self.work.stopped)
    @rule()
    def pause(self):
        self.work.stop()
        self.work.tick()
        self.flush()

    @precondition(lambda self: self.work.stopped)
    @rule()
    def resume(self):
        self.work.resume()

    @rule(limit=st.integers(1, LIMIT), url=st.sampled_from(URLS))
    def limit(self, limit, url):
        self.work.endpoints[url].limit = limit

    # What always holds.

    @invariant()
    def books_balance(self):
        states = [self.items.state(index) for index in range(len(self.items))]
        assert [states.count(state) for state in State] == self.items.counts
        leased = {index for index, state in enumerate(states) if state is State.LEASED}
        in_flight = [index for endpoint in self.work.endpoints.values() for index in endpoint.in_flight]
        assert sorted(in_flight) == sorted(i for i in leased if self.work.partials[i].endpoint)
        loads = {name: generator.load for name, generator in self.leases.generators.items()}
        assert loads == {name: sum(self.work.partials[i].generator == name for i in leased) for name in loads}
        for index, state in enumerate(states):
            assert (state in DURABLE) == (index in self.stored)
            if state in (State.LEASED, State.HELD, State.SUSPECT, State.ENDED):
                assert index in self.work.partials

    @invariant()
    def ids_are_true(self):
        for index, partial in self.work.partials.items():
            assert list(partial.ids) == true_answer(index)[0][: len(partial.ids)]
            assert list(partial.prompt) == true_prompt(index)[: len(partial.prompt)]
        for index, (prompt, answer, finish) in self.stored.items():
            assert (prompt, answer, finish) == (true_prompt(index), *true_answer(index))

    def teardown(self):
        """The faults end: everything gets done."""
        if self.work.stopped:
            self.resume()
        for _ in range(400):
            if len(self.stored) == len(self.items):
                break
            self.wait(1.0)
            for url in URLS:
                self.work.endpoints[url].limit = LIMIT
                self.probe_answered(url)
            for k in range(3):
                self.freeze(k, frozen=False)
                self.connect(k)
            self.assign()
            for k in range(3):
                self.work_on(k, 20)
            self.commit(10)
        assert sorted(self.stored) == list(range(len(self.items)))
        for index, entry in self.stored.items():
            assert entry == (true_prompt(index), *true_answer(index))


TestWork = Machine.TestCase
TestWork.settings = settings(
    max_examples=80, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
)
