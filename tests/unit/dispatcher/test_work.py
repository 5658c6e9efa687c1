"""Single rules of the state machine: whose fault, poison pills, stale messages, limits."""

import itertools

import pytest

from eyas.dispatcher.core.effects import Ack, Assign, Durable, GaveUp, Pause, Probe, Stop
from eyas.dispatcher.core.items import Items, State
from eyas.dispatcher.core.leases import Leases
from eyas.dispatcher.core.limit import Endpoint
from eyas.dispatcher.core.partial import Finish, Partial, Rules, ids
from eyas.dispatcher.core.policy import BURST, Cause, Thresholds
from eyas.dispatcher.core.work import Work

URL = "http://a"


class Desk:
    """Work with one generator and one endpoint, and short words for what happens."""

    def __init__(self, items=10, limit=4, turns=None, **rules):
        self.now = 0.0
        self.items = Items(items, turns)
        self.leases = Leases(20.0)
        numbers = itertools.count(1)
        self.work = Work("r", self.items, self.leases, Rules(16, 100, frozenset([7]), **rules), lambda: next(numbers))
        self.work.endpoints[URL] = Endpoint(URL, limit)
        self.work.endpoint_up(URL, restarted=False, now=0.0)
        self.connect("g")

    def connect(self, name):
        self.leases.hello(name, 100, self.now)
        self.work.holding_done(name)
        self.leases.generators[name].ready = True

    def out(self, kind=object):
        found, self.work.out = self.work.out, []
        return [effect for effect in found if isinstance(effect, kind)]

    def assign(self):
        self.work.tick()
        self.work.assign(self.now, lambda _: True)
        return [effect.partial.index for effect in self.out(Assign)]

    def attempt(self, index):
        return self.work.partials[index].attempt

    def tokens(self, index, *values):
        partial = self.work.partials[index]
        if not partial.prompt_known:
            self.work.prompt("g", index, partial.attempt, 0, [1, 2], 2)
        self.work.tokens("g", index, partial.attempt, len(partial.ids), values, self.now)

    def answer(self, index):
        self.tokens(index, 5, 7)
        partial = self.work.partials[index]
        assert self.work.finished("g", index, partial.attempt, len(partial.ids), Finish.STOP)
        self.work.committed([index])

    def interrupt(self, index, cause=Cause.CONNECTION):
        self.work.interrupted("g", index, self.attempt(index), cause, "said", self.now)

    def up(self, restarted=False):
        self.work.endpoint_up(URL, restarted=restarted, now=self.now)

    def die(self):
        """The engine dies: everything in flight breaks, a probe fails, then works again."""
        for index in list(self.work.endpoints[URL].in_flight):
            self.interrupt(index)
        self.work.endpoint_down(URL, "gone", self.now)
        self.up()


def test_the_limit_holds_and_a_lower_one_calls_back_the_latest():
    desk = Desk()
    assert desk.assign() == [0, 1, 2, 3]
    desk.work.endpoints[URL].limit = 2
    assert desk.assign() == []
    desk.work.endpoints[URL].limit = 1
    desk.work.tick()
    desk.work.endpoints[URL].limit = 2
    assert sorted(partial.index for partial in desk.work.partials.values() if partial.stopping) == [1, 2, 3]


def test_an_interruption_is_nobodys_fault_until_the_probe_has_spoken():
    desk = Desk(limit=2)
    desk.assign()
    desk.interrupt(0)
    assert desk.out(Probe) == [Probe(URL)]
    assert desk.items.state(0) is State.HELD
    assert desk.assign() == [], "nothing is handed out to an endpoint in doubt"
    desk.work.endpoint_down(URL, "gone", desk.now)
    assert desk.work.partials[0].failed == 0, "an outage costs no attempt"
    assert desk.assign() == []
    desk.up()
    assert desk.assign() == [0]


def test_an_attempt_fails_when_the_endpoint_answers_others_and_none_is_spent_when_it_gained_tokens():
    desk = Desk(limit=1, thresholds=Thresholds(max_attempts=2))
    desk.assign()
    desk.tokens(0, 5)
    desk.interrupt(0, Cause.TIMEOUT_STALL)
    desk.up()
    assert desk.work.partials[0].failed == 0
    for failed in (1, 2):
        desk.now += 60
        assert desk.assign() == [0]
        desk.interrupt(0, Cause.TIMEOUT_FIRST_TOKEN)
        desk.up()
        assert failed == 2 or desk.work.partials[0].failed == failed
    (gave_up,) = desk.out(GaveUp)
    assert (gave_up.index, gave_up.reason, gave_up.tries) == (0, "timeout_first_token", 3)
    assert desk.work.counters.timeouts == {"connect": 0, "first_token": 2, "stall": 1, "total": 0}
    assert desk.work.counters.attempts["timeout"] == 3
    assert desk.work.counters.failed_attempts == 2
    assert desk.work.counters.lost == 1


def test_a_poison_pill_is_found_alone_and_nobody_else_is_given_up():
    desk, poison, given_up = Desk(items=30, limit=8), 13, []
    for _ in range(200):
        desk.now += 60
        desk.assign()
        flying = desk.work.endpoints[URL].in_flight
        if poison in flying:
            desk.die()
        else:
            for index in list(flying):
                desk.answer(index)
        given_up += desk.out(GaveUp)
        if desk.items.closed == 30:
            break
    assert [(effect.index, effect.reason) for effect in given_up] == [(poison, "engine_death")]
    assert desk.items.counts[State.OK] == 29


def test_a_restarted_process_is_a_death_even_if_the_probe_finds_it_up():
    desk = Desk(limit=2)
    desk.assign()
    desk.interrupt(0)
    desk.interrupt(1, Cause.TIMEOUT_CONNECT)
    desk.up(restarted=True)
    assert desk.work.partials[0].deaths == 1
    assert desk.work.partials[1].deaths == 0, "it had not reached the server"


def test_refused_items_are_given_up_once_another_was_answered():
    desk = Desk()
    desk.assign()
    desk.interrupt(0, Cause.ITEM)
    desk.interrupt(1, Cause.TEMPLATE)
    assert desk.out(GaveUp) == []
    desk.answer(2)
    assert [effect.index for effect in desk.out(GaveUp)] == [0, 1]


def test_refused_items_are_given_up_when_nothing_else_is_left():
    desk = Desk(items=2)
    desk.assign()
    desk.answer(0)
    desk.interrupt(1, Cause.ITEM)
    desk.work.tick()
    assert [effect.index for effect in desk.out(GaveUp)] == [1]


def test_a_burst_of_refusals_pauses_and_gives_nothing_up():
    desk = Desk(items=20, limit=20)
    desk.assign()
    for index in range(BURST):
        desk.interrupt(index, Cause.ITEM)
    effects = desk.out()
    assert [type(effect) for effect in effects if isinstance(effect, Pause | GaveUp)] == [Pause]
    assert desk.items.counts[State.WAITING] == BURST


def test_too_many_given_up_pause_the_run():
    desk = Desk(items=100, limit=100, thresholds=Thresholds(given_up_pause=0.05, minimum_volume=20))
    desk.assign()
    for index in range(17):
        desk.answer(index)
    for index in range(17, 20):
        desk.interrupt(index, Cause.ITEM)
        desk.answer(index + 20)
    pause, *_ = desk.out(Pause)
    assert "2 of 21 items were given up" in pause.reason
    desk.work.stop()
    desk.work.resume()
    desk.interrupt(50, Cause.ITEM)
    desk.answer(51)
    assert desk.out(Pause) == [], "a resume begins anew"


def test_a_given_up_turn_takes_the_later_ones_with_it_and_a_retry_brings_them_back():
    desk = Desk(items=2, turns=[3, 1])
    assert desk.assign() == [0, 3]
    desk.answer(0)
    assert desk.assign() == [1]
    desk.interrupt(1, Cause.ITEM)
    desk.answer(3)
    assert [(effect.index, effect.reason) for effect in desk.out(GaveUp)] == [(1, "item"), (2, "earlier_turn")]
    desk.work.retry([1, 2])
    assert (desk.items.state(1), desk.items.state(2)) == (State.WAITING, State.BLOCKED)
    assert desk.assign() == [1]


def test_a_complete_answer_is_only_parsed_and_needs_no_server():
    desk = Desk(limit=0)
    desk.work.restore(Partial(3, 1, prompt=ids([1]), prompt_total=1, ids=ids([5, 7])))
    desk.work.assign(0.0, lambda _: True)
    (assign,) = desk.out(Assign)
    assert (assign.partial.index, assign.partial.endpoint, assign.complete) == (3, "", Finish.STOP)


def test_what_is_not_the_generators_is_forgotten():
    desk = Desk(limit=1)
    desk.assign()
    attempt = desk.attempt(0)
    desk.work.tokens("other", 0, attempt, 0, [5], 0.0)
    desk.work.tokens("g", 0, attempt + 1, 0, [5], 0.0)
    desk.work.tokens("g", 9, attempt, 0, [5], 0.0)
    assert [effect.forget for effect in desk.out(Stop)] == [True] * 3
    assert desk.work.partials[0].ids == ids()
    desk.answer(0)
    desk.out()
    desk.work.tokens("g", 0, attempt, 0, [5], 0.0)
    assert desk.out() == [Durable("g", 0, attempt)]


def test_ids_are_taken_only_where_they_follow():
    desk = Desk(limit=1)
    desk.assign()
    attempt = desk.attempt(0)
    desk.tokens(0, 5, 6)
    desk.out()
    desk.work.tokens("g", 0, attempt, 1, [6, 8], 0.0)
    desk.work.tokens("g", 0, attempt, 3, [9], 0.0)
    assert desk.out() == [Ack("g", 0, attempt, 2, 2)] * 2
    assert not desk.work.finished("g", 0, attempt, 3, Finish.STOP), "an answer of another length is void"
    assert desk.items.state(0) is State.WAITING
    assert list(desk.work.partials[0].ids) == [5, 6]


def test_after_a_restart_the_later_attempt_is_adopted_and_the_earlier_forgotten():
    desk = Desk()
    desk.connect("late")
    desk.work.holding("g", 0, 5, 0, 0, URL, 0.0)
    desk.work.holding("late", 0, 6, 2, 3, URL, 0.0)
    assert Stop("g", 0, 5, forget=True) in desk.out()
    desk.work.holding("g", 0, 5, 0, 0, URL, 0.0)
    assert desk.out() == [Stop("g", 0, 5, forget=True)]


@pytest.mark.parametrize("continues", [True, False])
def test_chat_answers_start_again(continues):
    desk = Desk(limit=1, continues=continues)
    desk.assign()
    desk.tokens(0, 5, 6)
    desk.work.released("g", 0, desk.attempt(0))
    assert list(desk.work.partials[0].ids) == ([5, 6] if continues else [])
    assert desk.work.counters.regenerated == (0 if continues else 2)


def test_awaited_generators_come_first_and_not_for_ever():
    desk = Desk()
    desk.work.await_generators(["x"], 10.0)
    assert desk.assign() == []
    desk.now = 10.0
    assert desk.assign() == [0, 1, 2, 3]
