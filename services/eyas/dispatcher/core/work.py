"""The state machine of one stage of one run: who works on what, what is held of it, and what is done.

Every method takes one event and appends to `out` what is to be done about it. `finished` returns whether the answer is
taken: the caller then writes the row, and says `committed` when it is durable.
"""

from collections.abc import Callable, Iterable, Sequence

from eyas.dispatcher.core.effects import Ack, Assign, Durable, Effect, GaveUp, Pause, Probe, Stop
from eyas.dispatcher.core.items import DURABLE, Items, State
from eyas.dispatcher.core.leases import Generator, Leases
from eyas.dispatcher.core.limit import Endpoint, Health
from eyas.dispatcher.core.partial import Finish, Partial, Rules, ids
from eyas.dispatcher.core.policy import Cause, Counters, Fault, Watch, delay

_DEATHS_SUSPECT, _DEATHS_GIVEN_UP = 2, 3
_IN_HAND = (State.LEASED, State.ENDED)


class Work:
    """`next_attempt` numbers attempts: unique over the life of the run, and growing."""

    def __init__(self, run: str, items: Items, leases: Leases, rules: Rules, next_attempt: Callable[[], int]) -> None:
        self.run = run
        self.items = items
        self.rules = rules
        self.partials: dict[int, Partial] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.counters = Counters()
        self.watch = Watch()
        self.out: list[Effect] = []
        self.held = False
        """Nothing is handed out; what is in flight goes on."""
        self.stopped = False
        """Nothing is handed out, and what is in flight is called back."""
        self._leases = leases
        self._next_attempt = next_attempt
        self._held_by: dict[str, set[int]] = {}
        self._accused: list[int] = []
        self._awaited: set[str] = set()
        self._awaited_until = 0.0

    # Generators come and go.

    def await_generators(self, names: Iterable[str], until: float) -> None:
        """Hands nothing out before these have said what they hold, or until the time is over."""
        self._awaited, self._awaited_until = set(names), until

    def restore(self, partial: Partial) -> None:
        """Takes a partial answer that an earlier dispatcher wrote down."""
        if self.items.state(partial.index) is not State.NEW:
            return
        if not self.rules.continues:
            partial.forget_ids()
        self.partials[partial.index] = partial
        self.counters.generated += len(partial.ids)
        self._return(partial)

    def retry(self, indices: Iterable[int]) -> None:
        """Items that were given up are tried again; ascending."""
        self.watch = Watch()
        for index in indices:
            if self.items.state(index) is State.FAILED:
                blocked = self.items.place(index)[1] > 0 and self.items.state(index - 1) not in DURABLE
                if blocked:
                    self.items.move(index, State.BLOCKED)
                else:
                    self.items.renew(index)

    def resume(self) -> None:
        """Hands out again; earlier trouble is forgotten."""
        self.stopped = False
        self.watch = Watch()

    def stop(self) -> None:
        """Calls everything back, and decides nothing that a probe would have to."""
        self.stopped = True
        for endpoint in self.endpoints.values():
            undecided, endpoint.undecided = endpoint.undecided, []
            for index in undecided:
                self._return_held(index)
        accused, self._accused = self._accused, []
        for index in accused:
            self._return_held(index)

    def adopting(self, now: float) -> bool:
        """Whether generators that may hold items are still awaited."""
        if self._awaited and now >= self._awaited_until:
            self._awaited.clear()
        return bool(self._awaited)

    def holding(  # noqa: PLR0917
        self, name: str, index: int, attempt: int, prompt_length: int, length: int, endpoint: str, now: float
    ) -> None:
        """A generator that connects says that it holds an item."""
        state = self.items.state(index)
        partial = self.partials.get(index)
        if state in DURABLE:
            self.out.append(Durable(name, index, attempt))
            return
        known = partial.attempt if partial else 0
        if state in (State.FAILED, State.ABSENT, State.BLOCKED) or attempt < known:
            self.out.append(Stop(name, index, attempt, forget=True))
            return
        if state is State.ENDED and attempt > known:
            self.out.append(Stop(name, index, attempt, forget=True))
            return
        if partial is None:
            partial = self.partials[index] = Partial(index, began=now)
        if attempt > known:
            self._evict(partial)
            partial.prompt, partial.prompt_total = ids(), 0
            self._lose(partial.forget_ids(), again=False)
            partial.attempt, partial.start, partial.tries = attempt, 0, max(1, partial.tries)
        elif prompt_length < len(partial.prompt) or length < len(partial.ids):
            partial.prompt, partial.prompt_total = ids(), 0
            self._lose(partial.forget_ids(), again=False)
        self._leases.generators[name].said.add((self.run, index))
        if state is State.ENDED:
            self._hold(partial, name)
        elif state is not State.LEASED or partial.generator != name:
            self.items.lease(index)
            self._hold(partial, name)
            partial.endpoint = endpoint
            if endpoint:
                self.endpoint(endpoint).in_flight.add(index)
            self._leases.generators[name].load += 1
        partial.stopping = False
        self._ack(partial)

    def holding_done(self, name: str) -> None:
        """A generator has said all that it holds: what was on its way to it is lost, and returns."""
        said = self._leases.generators[name].said
        for index in list(self._held_by.get(name, ())):
            if self.items.state(index) is State.LEASED and (self.run, index) not in said:
                self._return(self._freed(self.partials[index]))
        self._awaited.discard(name)

    def lost(self, name: str) -> None:
        """A generator's leases have ended."""
        for index in self._held_by.pop(name, set()):
            partial = self.partials[index]
            partial.generator = ""
            if self.items.state(index) is State.LEASED:
                self.counters.lease_losses += 1
                self._return(self._freed(partial))
        self._awaited.discard(name)

    # Generators report.

    def prompt(self, name: str, index: int, attempt: int, offset: int, values: Sequence[int], total: int) -> None:  # noqa: PLR0917
        """Ids of the prompt."""
        partial = self._mine(name, index, attempt)
        if partial is not None:
            if self.items.state(index) is State.LEASED:
                partial.take_prompt(offset, values, total)
            self._ack(partial)

    def tokens(self, name: str, index: int, attempt: int, offset: int, values: Sequence[int], now: float) -> None:  # noqa: PLR0917
        """Generated ids."""
        partial = self._mine(name, index, attempt)
        if partial is None:
            return
        if self.items.state(index) is State.LEASED:
            taken = partial.take(offset, values)
            self.counters.generated += taken
            if taken and partial.endpoint:
                self.endpoint(partial.endpoint).tokens_at = now
        self._ack(partial)

    def finished(self, name: str, index: int, attempt: int, length: int, finish: Finish) -> bool:
        """An answer ended. True: the row is to be written."""
        partial = self._mine(name, index, attempt)
        if partial is None or self.items.state(index) is State.ENDED:
            return False
        if length != len(partial.ids) or (self.rules.needs_prompt and not partial.prompt_known):
            # Not what was sent before: the attempt is void, what is held of it stays.
            self.counters.attempts["endpoint"] += 1
            self._return(self._freed(partial))
            self.out.append(Stop(name, index, attempt, forget=True))
            return False
        self._unload(partial)
        partial.finish = finish
        self.items.move(index, State.ENDED)
        self.counters.attempts["ok" if finish is Finish.STOP else "truncated"] += 1
        self.watch.answered()
        self._settle_accused()
        return True

    def interrupted(self, name: str, index: int, attempt: int, cause: Cause, detail: str, now: float) -> None:  # noqa: PLR0917
        """An attempt ended without an answer."""
        partial = self._mine(name, index, attempt)
        if partial is None:
            return
        if self.items.state(index) is State.LEASED:
            self._interrupt(partial, cause, detail, now)
            self.out.append(Stop(name, index, attempt, forget=True))
        else:
            self._ack(partial)

    def released(self, name: str, index: int, attempt: int) -> None:
        """An item is given back."""
        partial = self._mine(name, index, attempt)
        if partial is None:
            return
        if self.items.state(index) is State.LEASED:
            self.counters.attempts["released"] += 1
            self._return(self._freed(partial))
            self.out.append(Stop(name, index, attempt, forget=True))
        else:
            self._ack(partial)

    # Storage reports.

    def committed(self, indices: Iterable[int]) -> None:
        """The rows of these items are durable."""
        for index in indices:
            partial = self.partials.pop(index)
            self.items.move(index, State.OK if partial.finish is Finish.STOP else State.TRUNCATED)
            self.counters.done_tokens += len(partial.ids)
            if partial.generator:
                self._held_by[partial.generator].discard(index)
                self.out.append(Durable(partial.generator, index, partial.attempt))
            self._unblock(index)

    def absorb(self, index: int, finish: Finish) -> None:
        """Another writer has stored this item: whatever is held of it here is void."""
        if self.items.state(index) in DURABLE:
            return
        partial = self.partials.pop(index, None)
        if partial is not None:
            self._evict(partial)
            self._lose(len(partial.ids), again=True)
        self.items.move(index, State.OK if finish is Finish.STOP else State.TRUNCATED)
        self._unblock(index)

    # Endpoints.

    def endpoint(self, url: str) -> Endpoint:
        """The endpoint at an address; one that is not known is made without room for requests."""
        return self.endpoints.setdefault(url, Endpoint(url, 0))

    def endpoint_up(self, url: str, *, restarted: bool, now: float) -> None:
        """A probe was answered. `restarted`: by another process than before."""
        endpoint = self.endpoint(url)
        undecided, endpoint.undecided = endpoint.undecided, []
        endpoint.health, endpoint.reason = Health.UP, ""
        for index in undecided:
            if self.items.state(index) is State.HELD:
                self._settle(self.partials[index], endpoint, died=restarted, now=now)

    def endpoint_down(self, url: str, reason: str, now: float) -> None:
        """A probe was not answered."""
        endpoint = self.endpoint(url)
        undecided, endpoint.undecided = endpoint.undecided, []
        endpoint.health, endpoint.reason = Health.DOWN, reason
        for index in undecided:
            if self.items.state(index) is State.HELD:
                self._settle(self.partials[index], endpoint, died=True, now=now)

    def remove_endpoint(self, url: str, now: float) -> None:
        """An endpoint is no more: what it has in flight is called back."""
        self.endpoint_down(url, "it was removed", now)
        self.endpoint(url).limit = 0
        self.endpoint(url).removed = True

    # Time passes.

    def tick(self) -> None:
        """To be called about once a second, and after a change of limits."""
        for endpoint in self.endpoints.values():
            excess = len(endpoint.in_flight) if self.stopped else endpoint.excess
            if excess:
                latest = sorted(endpoint.in_flight, key=lambda index: -self.partials[index].attempt)
                for index in latest[:excess]:
                    self._call_back(self.partials[index])
        for url in [url for url, endpoint in self.endpoints.items() if endpoint.removed and not endpoint.in_flight]:
            del self.endpoints[url]
        counts = self.items.counts
        busy = sum(counts[state] for state in (State.NEW, State.WAITING, State.SUSPECT, *_IN_HAND))
        if self._accused and not busy and counts[State.HELD] == len(self._accused):
            self._settle_accused()

    def assign(self, now: float, loaded: Callable[[int], bool]) -> int | None:
        """Hands out items while there is room. Returns the item that is next, if it is not `loaded`."""
        if self.held or self.stopped or self.adopting(now):
            return None
        while (generator := self._leases.roomiest()) is not None:
            choice = self._choose(now)
            if choice is None:
                return None
            index, endpoint = choice
            if not loaded(index):
                return index
            self._hand_out(index, endpoint, generator, now)
        return None

    # Within.

    def _choose(self, now: float) -> tuple[int, Endpoint | None] | None:
        index = self.items.peek(now)
        endpoint = max(self.endpoints.values(), key=lambda endpoint: endpoint.room, default=None)
        if index is not None:
            partial = self.partials.get(index)
            if partial is not None and partial.complete(self.rules):
                return index, None
            return (index, endpoint) if endpoint is not None and endpoint.room > 0 else None
        suspect = self.items.peek_suspect()
        if suspect is None:
            return None
        deaths, index = suspect
        for endpoint in self.endpoints.values():
            company = max(1, endpoint.limit >> (deaths - 1))
            among_suspects = all(self.partials[other].deaths >= _DEATHS_SUSPECT for other in endpoint.in_flight)
            if endpoint.room > 0 and len(endpoint.in_flight) < company and among_suspects:
                return index, endpoint
        return None

    def _hand_out(self, index: int, endpoint: Endpoint | None, generator: Generator, now: float) -> None:
        partial = self.partials.get(index)
        if partial is None:
            partial = self.partials[index] = Partial(index, began=now)
        self.items.lease(index)
        partial.attempt = self._next_attempt()
        partial.start, partial.stopping = len(partial.ids), False
        partial.tries += 1
        partial.endpoint = endpoint.url if endpoint else ""
        self._hold(partial, generator.name)
        generator.load += 1
        if endpoint:
            endpoint.in_flight.add(index)
        self.out.append(Assign(partial, None if endpoint else partial.complete(self.rules)))

    def _mine(self, name: str, index: int, attempt: int) -> Partial | None:
        """The item if it is this generator's in this attempt; else the generator is told to forget it."""
        partial = self.partials.get(index)
        state = self.items.state(index)
        if partial and partial.attempt == attempt and partial.generator == name and state in _IN_HAND:
            return partial
        self.out.append(Durable(name, index, attempt) if state in DURABLE else Stop(name, index, attempt, forget=True))
        return None

    def _ack(self, partial: Partial) -> None:
        self.out.append(Ack(partial.generator, partial.index, partial.attempt, len(partial.prompt), len(partial.ids)))

    def _hold(self, partial: Partial, name: str) -> None:
        if partial.generator and partial.generator != name:
            self._held_by[partial.generator].discard(partial.index)
        partial.generator = name
        self._held_by.setdefault(name, set()).add(partial.index)

    def _unload(self, partial: Partial) -> None:
        """The item's request is over."""
        generator = self._leases.generators.get(partial.generator)
        if generator:
            generator.load -= 1
        endpoint = self.endpoints.get(partial.endpoint)
        if endpoint:
            endpoint.in_flight.discard(partial.index)

    def _freed(self, partial: Partial) -> Partial:
        """The item is nobody's."""
        if self.items.state(partial.index) is State.LEASED:
            self._unload(partial)
        if partial.generator:
            self._held_by[partial.generator].discard(partial.index)
        partial.generator = ""
        return partial

    def _evict(self, partial: Partial) -> None:
        if partial.generator and self.items.state(partial.index) in _IN_HAND:
            self.out.append(Stop(partial.generator, partial.index, partial.attempt, forget=True))
        self._freed(partial)

    def _call_back(self, partial: Partial) -> None:
        if not partial.stopping and partial.generator:
            partial.stopping = True
            self.out.append(Stop(partial.generator, partial.index, partial.attempt, forget=False))

    def _return(self, partial: Partial, until: float = 0.0) -> None:
        """Queues an item again, not before a time, with its ids where they can be continued."""
        if not self.rules.continues:
            self._lose(partial.forget_ids(), again=True)
        if partial.deaths >= _DEATHS_SUSPECT:
            self.items.suspect(partial.index, partial.deaths)
        else:
            self.items.wait(partial.index, until)

    def _interrupt(self, partial: Partial, cause: Cause, detail: str, now: float) -> None:
        endpoint = self.endpoints.get(partial.endpoint)
        fresh = endpoint is not None and cause.fault is Fault.ENDPOINT and endpoint.doubt(detail or cause.value, now)
        self._freed(partial)
        partial.cause, partial.detail, partial.finish = cause, detail, None
        partial.causes.append(cause.value)
        self.counters.attempts[cause.outcome] += 1
        if cause.phase:
            self.counters.timeouts[cause.phase] += 1
        if len(partial.ids) > partial.start:
            partial.fruitless = 0
        else:
            partial.fruitless += 1
        if cause.fault is Fault.RUN:
            self._return(partial)
            self.out.append(Pause(_configuration(partial)))
        elif cause.fault is Fault.ITEM:
            self.items.move(partial.index, State.HELD)
            self._accused.append(partial.index)
            self._refused(partial)
        elif self.stopped:
            self._return(partial)
        elif cause.fault is Fault.TOKENIZER or endpoint is None:
            self._return(partial, now + delay(partial.fruitless))
        elif endpoint.health is Health.DOWN:
            self._settle(partial, endpoint, died=True, now=now)
        else:
            self.items.move(partial.index, State.HELD)
            endpoint.undecided.append(partial.index)
            if fresh:
                self.out.append(Probe(endpoint.url))

    def _settle(self, partial: Partial, endpoint: Endpoint, *, died: bool, now: float) -> None:
        """A probe has decided whose fault an interruption was."""
        if died:
            if partial.cause.may_be_death and partial.index in endpoint.crowd:
                partial.deaths += 1
            if partial.deaths >= _DEATHS_GIVEN_UP and endpoint.crowd == {partial.index}:
                self._give_up(partial, "engine_death", partial.detail)
            else:
                self._return(partial)
            return
        if partial.fruitless == 0:
            self._return(partial)
            return
        partial.failed += 1
        self.counters.failed_attempts += 1
        if partial.failed >= self.rules.thresholds.max_attempts:
            self._give_up(partial, partial.cause.value, partial.detail)
        else:
            self._return(partial, now + delay(partial.fruitless))
        if not partial.cause.phase:
            self._refused(partial)

    def _refused(self, partial: Partial) -> None:
        if partial.cause.fault is Fault.ITEM:
            self.counters.failed_attempts += 1
        reason = self.watch.refused(partial.cause, partial.detail)
        if reason:
            self.out.append(Pause(reason))
            accused, self._accused = self._accused, []
            for index in accused:
                self._return_held(index)

    def _return_held(self, index: int) -> None:
        if self.items.state(index) is State.HELD:
            self._return(self.partials[index])

    def _settle_accused(self) -> None:
        """Others were answered since: what was refused is the items' own fault."""
        accused, self._accused = self._accused, []
        for index in accused:
            if self.items.state(index) is State.HELD:
                partial = self.partials[index]
                self._give_up(partial, partial.cause.value, partial.detail)

    def _give_up(self, partial: Partial, reason: str, detail: str) -> None:
        del self.partials[partial.index]
        self._lose(len(partial.ids), again=False)
        self.items.move(partial.index, State.FAILED)
        self.out.append(GaveUp(partial.index, reason, detail, partial.tries))
        for index in self.items.later_turns(partial.index):
            self.items.move(index, State.FAILED)
            self.out.append(GaveUp(index, "earlier_turn", f"turn {self.items.place(partial.index)[1]} was given up", 0))
        pause = self.watch.gave_up(self.rules.thresholds, reason)
        if pause:
            self.out.append(Pause(pause))

    def _unblock(self, index: int) -> None:
        for following in self.items.later_turns(index)[:1]:
            if self.items.state(following) is State.BLOCKED:
                self.items.wait(following)

    def _lose(self, count: int, *, again: bool) -> None:
        self.counters.lost += count
        if again:
            self.counters.regenerated += count


def _configuration(partial: Partial) -> str:
    return (
        f"the server at {partial.endpoint} refuses the requests ({partial.detail or 'no detail'}): correct the key, "
        "the address or the model's name, then `eyas resume`"
    )
