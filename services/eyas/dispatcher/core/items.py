"""Every item of a stage in a few bytes: its state, and the order in which items are handed out.

An item is a number: the first item of its sample, plus the turn. Turn t + 1 of a sample is blocked until turn t is
durable, so that a conversation never goes on from an answer that could still be lost.
"""

import heapq
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum


class State(IntEnum):
    """Where an item is."""

    ABSENT = 0
    """Not part of this stage."""
    NEW = 1
    """Never handed out."""
    BLOCKED = 2
    """Waits for the turn before it."""
    WAITING = 3
    """Was tried, or was unblocked; is handed out before the new ones."""
    HELD = 4
    """Was interrupted; whose fault that was is not known yet."""
    SUSPECT = 5
    """An engine may have died of it: waits for all others."""
    LEASED = 6
    """A generator works on it."""
    ENDED = 7
    """Its answer is here, but not durable."""
    OK = 8
    """Durable, ended by the model."""
    TRUNCATED = 9
    """Durable, ended by a limit."""
    FAILED = 10
    """Given up."""


DURABLE = (State.OK, State.TRUNCATED)
CLOSED = (State.OK, State.TRUNCATED, State.FAILED)


class Items:
    """States of all items. `turns` has the number of turns of each sample; None stands for one each."""

    def __init__(self, samples: int, turns: Iterable[int] | None = None) -> None:
        self._first: array[int] | None = None
        if turns is None:
            total = samples
            self._states = bytearray([State.NEW]) * total
        else:
            self._first = array("I", [0])
            total = 0
            for count in turns:
                total += count
                self._first.append(total)
            self._states = bytearray([State.BLOCKED]) * total
            for start in self._first[:-1]:
                self._states[start] = State.NEW
        self.counts = [0] * len(State)
        for state in State:
            self.counts[state] = self._states.count(state)
        self._cursor = 0
        self._waiting: deque[int] = deque()
        self._suspects: list[tuple[int, int]] = []
        self._later: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._states)

    @property
    def total(self) -> int:
        """Number of items that are part of the stage."""
        return len(self._states) - self.counts[State.ABSENT]

    @property
    def closed(self) -> int:
        """Number of items that are durable or given up."""
        return sum(self.counts[state] for state in CLOSED)

    def index(self, position: int, turn: int) -> int | None:
        """The item at a place; None where there is none."""
        if self._first is None:
            return position if turn == 0 and position < len(self._states) else None
        if position + 1 >= len(self._first) or turn >= self._first[position + 1] - self._first[position]:
            return None
        return self._first[position] + turn

    def place(self, index: int) -> tuple[int, int]:
        """Position and turn of an item."""
        if self._first is None:
            return index, 0
        position = bisect_right(self._first, index) - 1
        return position, index - self._first[position]

    def later_turns(self, index: int) -> range:
        """Items of the same sample that follow."""
        if self._first is None:
            return range(0)
        return range(index + 1, self._first[bisect_right(self._first, index)])

    def state(self, index: int) -> State:
        """Where an item is."""
        return State(self._states[index])

    def move(self, index: int, state: State) -> None:
        """Puts an item into a state, outside of any queue."""
        self.counts[self._states[index]] -= 1
        self.counts[state] += 1
        self._states[index] = state

    def renew(self, index: int) -> None:
        """Makes an item new again: it is met where the order reaches it, or at once where that has passed."""
        if index < self._cursor:
            self.wait(index)
        else:
            self.move(index, State.NEW)

    def wait(self, index: int, until: float = 0.0) -> None:
        """Queues an item before all new ones, not before the time `until`."""
        self.move(index, State.WAITING)
        if until:
            heapq.heappush(self._later, (until, index))
        else:
            self._waiting.append(index)

    def suspect(self, index: int, deaths: int) -> None:
        """Queues an item behind all others: an engine may have died of it."""
        self.move(index, State.SUSPECT)
        heapq.heappush(self._suspects, (deaths, index))

    def peek(self, now: float) -> int | None:
        """The item to hand out next; it stays where it is. Suspects are not among them."""
        while self._later and self._later[0][0] <= now:
            self._waiting.append(heapq.heappop(self._later)[1])
        while self._waiting:
            if self._states[self._waiting[0]] == State.WAITING:
                return self._waiting[0]
            self._waiting.popleft()
        found = self._states.find(State.NEW, self._cursor)
        self._cursor = len(self._states) if found < 0 else found
        return None if found < 0 else found

    def peek_suspect(self) -> tuple[int, int] | None:
        """Deaths and item of the suspect with the fewest deaths."""
        while self._suspects:
            if self._states[self._suspects[0][1]] == State.SUSPECT:
                return self._suspects[0]
            heapq.heappop(self._suspects)
        return None

    def upcoming(self, count: int) -> Iterator[int]:
        """About the next `count` items, in order, for whoever loads ahead."""
        for index, _ in zip(self._waiting, range(count), strict=False):
            yield index
        found = self._states.find(State.NEW, self._cursor)
        for _ in range(count):
            if found < 0:
                return
            yield found
            found = self._states.find(State.NEW, found + 1)

    def lease(self, index: int) -> None:
        """Hands out the item that `peek` or `peek_suspect` showed, or adopts another. Queues drop it by themselves."""
        self.move(index, State.LEASED)
