"""Computes answers in steps: in each, every running request gets one token. What a reader doesn't take in time is
merged into its next chunk, as vLLM does.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from eyas.simulator.model import SimulatedModel

HALTED = "halted"
"""Finish of a sequence that stopped where its fault is."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of a sequence since it was last asked."""

    ids: list[int]
    finish_reason: str | None
    stop_reason: int | None


class Sequence:
    """One answer on its way."""

    def __init__(
        self, model: SimulatedModel, prompt: list[int], max_tokens: int, stop: frozenset[int], halt_after: int | None
    ) -> None:
        self._model = model
        self.prompt_hash, self._next = model.locate(prompt)
        self._length = model.length(self.prompt_hash)
        self._left = max_tokens
        self._stop = stop
        self._halt = halt_after
        self._ids: list[int] = []
        self._waiter: asyncio.Future[None] | None = None
        self.finish_reason: str | None = HALTED if halt_after == 0 else None
        self.stop_reason: int | None = None

    def step(self) -> bool:
        """Makes a token. True when it was the last."""
        token = self._model.token(self.prompt_hash, self._length, self._next)
        self._next += 1
        self._left -= 1
        self._ids.append(token)
        if token == self._model.eos_id:
            self.finish_reason = "stop"
        elif token in self._stop:
            self.finish_reason, self.stop_reason = "stop", token
        elif self._left == 0:
            self.finish_reason = "length"
        if self._halt is not None:
            self._halt -= 1
            if self._halt == 0 and self.finish_reason is None:
                self.finish_reason = HALTED
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return self.finish_reason is not None

    async def take(self) -> Batch:
        """Waits for tokens or the end, and takes what is there."""
        if not self._ids and self.finish_reason is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        ids, self._ids = self._ids, []
        return Batch(ids, self.finish_reason, self.stop_reason)


class Engine:
    """Steps as long as there is something to do. Starts and stops with its `run`."""

    def __init__(self, step_seconds: float, max_num_seqs: int) -> None:
        self._step_seconds = step_seconds
        self.max_num_seqs = max_num_seqs
        self.running: dict[Sequence, None] = {}
        self.waiting: deque[Sequence] = deque()
        self._work = asyncio.Event()
        self.generation_tokens = 0
        self.prompt_tokens = 0

    def add(self, sequence: Sequence, prompt_tokens: int) -> None:
        """Queues a sequence."""
        self.prompt_tokens += prompt_tokens
        if sequence.finish_reason is None:
            self.waiting.append(sequence)
            self._work.set()

    def drop(self, sequence: Sequence) -> None:
        """Forgets a sequence, ended or not."""
        self.running.pop(sequence, None)
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    async def run(self) -> None:
        """Steps for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.running and not self.waiting:
                self._work.clear()
                await self._work.wait()
                due = loop.time()
            due += self._step_seconds
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._step()

    def _step(self) -> None:
        while self.waiting and len(self.running) < self.max_num_seqs:
            self.running[self.waiting.popleft()] = None
        self.generation_tokens += len(self.running)
        for sequence in [sequence for sequence in self.running if sequence.step()]:
            del self.running[sequence]
