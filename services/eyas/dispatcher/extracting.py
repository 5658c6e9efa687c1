"""The stage that takes hidden states: an object for each sequence, addressed by the hash of its ids."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher.context import Context
from eyas.dispatcher.core.items import Items, State
from eyas.dispatcher.core.partial import Finish, Partial, Rules, ids
from eyas.dispatcher.core.policy import Cause
from eyas.dispatcher.samples import Samples
from eyas.dispatcher.stage import ItemStage, RunView, thresholds
from eyas.errors import DataError, NotFoundError, UnavailableError
from eyas.run.v1 import run_pb2
from eyas.storage import hidden_states
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore
from eyas.storage.sequences import longest, sequences
from eyas.storage.tables import GENERATIONS
from eyas.vllm import launch

_READ = GENERATIONS.only("position", "turn", "prompt_ids", "ids")
_CACHED_PARTS = 8
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class _Answer:
    turn: int
    prompt_ids: "array[int]"
    ids: "array[int]"


@dataclass
class Index:
    """What is to be taken: for the last turn of each sequence, the object's key, its ids and where they stand."""

    items: Items
    keys: dict[int, bytes] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    part: dict[int, int] = field(default_factory=dict)

    def add(self, position: int, answers: Sequence[_Answer], parts: dict[int, int], most: int) -> None:
        """All sequences of a sample."""
        for sequence in sequences(answers, most):
            if not sequence.ids:
                continue  # of a server that gives no ids
            index = self.items.index(position, sequence.last_turn)
            if index is None:
                raise DataError(f"a generation of position {position}, turn {sequence.last_turn} was not asked for")
            self.keys[index] = bytes.fromhex(hidden_states.key(sequence.ids))
            self.tokens[index] = len(sequence.ids)
            self.part[index] = parts[sequence.last_turn]
            self.items.move(index, State.NEW)


async def index_of(store: ObjectStore, layout: RunLayout, spec: run_pb2.RunSpec, samples: Samples) -> Index:
    """Reads all generations, and marks the sequences whose objects are there: one LIST."""
    multi_turn = spec.dataset.generations > spec.dataset.samples
    turns = await samples.turns() if multi_turn else None
    items = Items(samples.count, turns)
    for number in range(len(items)):
        items.move(number, State.ABSENT)
    index, most = Index(items), longest(spec)
    waiting: dict[int, tuple[list[_Answer], dict[int, int]]] = {}
    number = 0
    async for info in store.list(layout.generations):
        table = await asyncio.to_thread(_READ.read, await store.get(info.key))
        for position, answer in _answers(table):
            answers, parts = waiting.setdefault(position, ([], {}))
            answers.append(answer)
            parts[answer.turn] = number
            if len(answers) == (turns[position] if turns else 1):
                index.add(position, *waiting.pop(position), most)
        number += 1
        await asyncio.sleep(0)
    for position, (answers, parts) in waiting.items():
        index.add(position, answers, parts, most)
    sizes = Sizes(spec)
    found = {bytes.fromhex(name): info.size async for info in store.list(layout.hidden_states_prefix)
             if len(name := info.key.rpartition("/")[2].removesuffix(".safetensors")) == 64}  # fmt: skip
    for item, key in index.keys.items():
        if sizes.right(found.get(key, -1), index.tokens[item]):
            items.move(item, State.OK)
    return index


class Sizes:
    """Sizes that the object of a sequence may have: one if the data type is pinned, else one for each."""

    def __init__(self, spec: run_pb2.RunSpec) -> None:
        pinned = spec.model.fingerprint
        self._layers = len(spec.hidden_states.layer_ids)
        self._hidden = pinned.hidden_size
        self._dtypes = (pinned.dtype,) if pinned.dtype in hidden_states.ITEM_BYTES else (*hidden_states.ITEM_BYTES,)

    def right(self, size: int, tokens: int) -> bool:
        """Whether an object of `size` bytes holds the states of so many tokens."""
        return any(
            size == hidden_states.object_size(tokens, self._layers, self._hidden, dtype) for dtype in self._dtypes
        )


async def complete(store: ObjectStore, layout: RunLayout, spec: run_pb2.RunSpec) -> bool:
    """Whether the object of every sequence is there."""
    index = await index_of(store, layout, spec, Samples(store, layout, spec.dataset.samples))
    return index.items.total == index.items.closed


class Extracting(ItemStage):
    """Takes the hidden states of every sequence. Its items are the last turns of the sequences."""

    stage = run_pb2.STAGE_EXTRACT
    name = "extract"

    def __init__(self, run: RunView, context: Context) -> None:
        super().__init__(run, context)
        self._samples = Samples(context.store, run.layout, run.course.spec.dataset.samples)
        self._parts: OrderedDict[int, dict[tuple[int, int], pa.Table]] = OrderedDict()
        self._looking: dict[int, asyncio.Task[None]] = {}

    async def build(self) -> Items:
        """Sequences from the log of generations, states from one LIST."""
        self._index = await index_of(self.context.store, self.run_view.layout, self.run_view.course.spec, self._samples)
        return self._index.items

    def rules(self) -> Rules:
        """Nothing is generated."""
        spec = self.run_view.course.spec
        return Rules(1, 1 << 31, continues=False, needs_prompt=False, thresholds=thresholds(spec))

    def concurrency(self) -> int:
        """As set."""
        return self.run_view.course.spec.hidden_states.concurrency

    def urls(self) -> set[str]:
        """Those launched for the run: another server has no connector."""
        return self.run_view.server_urls()

    def samples(self) -> Samples:
        """The samples of the run."""
        return self._samples

    def loaded(self, index: int) -> bool:
        """Whether the part with its ids is at hand."""
        return self._index.part[index] in self._parts

    async def load(self, index: int) -> None:
        """Reads the part of the generations that it is in."""
        number = self._index.part[index]
        data = await self.context.store.get(f"{self.run_view.layout.generations}/{number:06d}.parquet")
        table = await asyncio.to_thread(_READ.read, data)
        places = zip(table.column("position").to_pylist(), table.column("turn").to_pylist(), strict=True)
        self._parts[number] = {place: table.slice(row, 1) for row, place in enumerate(places)}
        while len(self._parts) > _CACHED_PARTS:
            self._parts.popitem(last=False)

    def assignment(self, partial: Partial) -> pb.Assign:
        """The ids as prompt, and the key of the object."""
        spec, index = self.run_view.course.spec, partial.index
        table = self._parts[self._index.part[index]][self.items.place(index)]
        ((_, answer),) = _answers(table)
        partial.prompt = ids((*answer.prompt_ids, *answer.ids)[: self._index.tokens[index]])
        partial.prompt_total = len(partial.prompt)
        return pb.Assign(
            model=launch.served_name(spec),
            protocol=run_pb2.PROTOCOL_TOKENS,
            max_tokens=1,
            timeouts=spec.timeouts,
            context=spec.model.fingerprint.context,
            hidden_states_key=self._key(index),
        )

    def finished(self, name: str, index: int, message: pb.Finished) -> None:
        """The server has answered: the object follows. Until it is there, the item is in flight."""
        if index not in self._looking:
            task = self._looking[index] = asyncio.create_task(self._look(name, index, message.attempt))
            task.add_done_callback(lambda _: self._looking.pop(index, None))

    def pending(self) -> int:
        """Objects are durable when they are there."""
        return 0

    def hurry(self) -> None:
        """There is nothing to write."""

    async def flushed(self) -> None:
        """There is nothing to write."""

    def writers(self) -> Iterable[Callable[[], Coroutine[None, None, None]]]:
        """None but that of failures."""
        return ()

    async def verify(self) -> None:
        """Every object is there, or was given up."""
        again = await index_of(self.context.store, self.run_view.layout, self.run_view.course.spec, self._samples)
        missing = [
            index
            for index in again.keys
            if again.items.state(index) is not State.OK and self.items.state(index) is not State.FAILED
        ]
        if missing:
            raise DataError(f"the hidden states of {len(missing)} sequences are gone again: `eyas resume` takes them")

    async def close(self) -> None:
        """Looks no more."""
        for task in self._looking.values():
            task.cancel()
        await super().close()

    async def _look(self, name: str, index: int, attempt: int) -> None:
        """Waits for the object. One of the wrong size is in the way of the right one: it goes."""
        store, key, sizes = self.context.store, self._key(index), Sizes(self.run_view.course.spec)
        until = self.context.now() + self.context.settings.hidden_states_seconds
        pause, detail = _FIRST_LOOK, "the hidden states did not arrive"
        while self.context.now() < until:
            try:
                size = (await store.head(key)).size
                if sizes.right(size, self._index.tokens[index]):
                    if self.work.finished(name, index, attempt, 0, Finish.STOP):
                        self.work.committed([index])
                    self.pump()
                    return
                detail = f"{key} has {size} bytes, not those of {self._index.tokens[index]} tokens"
                await store.delete(key)
                break
            except NotFoundError:
                pass
            except UnavailableError as error:
                until += pause
                self.run_view.trouble(str(error), False)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)
        self.work.interrupted(name, index, attempt, Cause.HIDDEN_STATES, detail, self.context.now())
        self.pump()

    def _key(self, index: int) -> str:
        return self.run_view.layout.hidden_states(self._index.keys[index].hex())


def _answers(table: pa.Table) -> Iterable[tuple[int, _Answer]]:
    """Position and answer of each row, without a Python object for each id."""
    columns: list[Any] = [table.column(name).combine_chunks() for name in ("position", "turn", "prompt_ids", "ids")]
    positions, turns, prompts, answers = columns
    for row in range(table.num_rows):
        yield positions[row].as_py(), _Answer(turns[row].as_py(), _ids(prompts[row]), _ids(answers[row]))


def _ids(value: Any) -> "array[int]":
    found, values = ids(), value.values
    start = values.offset * found.itemsize
    if len(values):
        found.frombytes(memoryview(values.buffers()[1])[start : start + len(values) * found.itemsize])
    return found
