"""Training data of a run: sequences from the log of generations, hidden states by the hash of their ids."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from eyas.errors import DataError, NotFoundError, UnavailableError
from eyas.run.v1 import run_pb2 as pb
from eyas.storage import hidden_states, hidden_states_check, sequences, tables
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import ObjectStore
from eyas.trainer.batch import Document
from eyas.trainer.order import Window

T = TypeVar("T")

_AHEAD = 3  # rows read ahead
_READERS = 4


@dataclass(frozen=True)
class Example:
    """A sequence to train on. `mask` is True on generated ids."""

    sample_id: str
    key: str
    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]


@dataclass(frozen=True)
class _Answer:
    turn: int
    prompt_ids: list[int]
    ids: list[int]


@dataclass
class Corpus:
    """What a run has to train on, and what it has not."""

    train: list[Example] = field(default_factory=list)
    held_out: list[Example] = field(default_factory=list)
    generated: dict[str, int] = field(default_factory=dict)
    """Generated tokens of every training sample, skipped ones included."""
    skipped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Samples by the reason that they are not trained on."""


def read_corpus(store: ObjectStore, spec: pb.RunSpec) -> Corpus:
    """Reads all generations and pairs them with the hidden states that are there.

    Raises DataError when nothing is left, or more is missing than `thresholds.givenUpPause`.
    """
    layout = RunLayout(spec.name)
    prefix = layout.hidden_states_prefix
    there = {info.key for info in _outlasting(lambda: list(store.list_blocking(prefix)))}
    corpus = Corpus()
    for sample_id, (split, answers) in asyncio.run(_answers(store, layout)).items():
        training = split == "train"
        if training:
            corpus.generated[sample_id] = sum(len(answer.ids) for answer in answers)
        for sequence in sequences.sequences(answers, sequences.longest(spec)):
            key = hidden_states.key(sequence.ids)
            example = Example(
                sample_id, key, np.asarray(sequence.ids, dtype=np.int32), np.asarray(sequence.mask, dtype=bool)
            )
            if layout.hidden_states(key) not in there:
                reason = "hidden_states_missing"
            elif not example.mask[1:].any():
                reason = "nothing_generated"
            else:
                (corpus.train if training else corpus.held_out).append(example)
                continue
            if training:
                corpus.skipped[reason].append(sample_id)
    _check(corpus, spec)
    return corpus


async def _answers(store: ObjectStore, layout: RunLayout) -> dict[str, tuple[str, list[_Answer]]]:
    codec = tables.GENERATIONS.only("sample_id", "turn", "split", "prompt_ids", "ids")
    samples: dict[str, tuple[str, list[_Answer]]] = {}
    async for part in Log(store, layout.generations, ".parquet", codec).catch_up():
        for row in part.value:
            _, answers = samples.setdefault(row["sample_id"], (row["split"], []))
            answers.append(_Answer(row["turn"], row["prompt_ids"], row["ids"]))
    return samples


def _check(corpus: Corpus, spec: pb.RunSpec) -> None:
    missing = corpus.skipped.get("hidden_states_missing", [])
    asked = len(corpus.train) + sum(map(len, corpus.skipped.values()))
    if not corpus.train:
        why = (
            "; ".join(f"{len(ids)} samples: {reason}" for reason, ids in corpus.skipped.items()) or "it has no answers"
        )
        raise DataError(f"run {spec.name} has nothing to train on ({why}): generate and extract first")
    if len(missing) > spec.thresholds.given_up_pause * asked:
        raise DataError(
            f"hidden states of {len(missing)} of {asked} sequences of run {spec.name} are missing, first of sample "
            f"{missing[0]}: extract again, or raise thresholds.givenUpPause"
        )


class Reader:
    """Reads windows of examples as documents, some rows ahead, and counts what can't be used."""

    def __init__(
        self,
        store: ObjectStore,
        layout: RunLayout,
        layer_ids: Sequence[int],
        examples: Sequence[Example],
        most_broken: float,
    ) -> None:
        self._store, self._layout, self._layer_ids = store, layout, tuple(layer_ids)
        self._examples, self._most_broken = examples, most_broken
        self._sound: set[str] = set()
        self.broken: dict[str, str] = {}
        """Sample ids and what is wrong with their hidden states."""

    def rows(self, rows: Sequence[Sequence[Window]]) -> Iterator[list[Document]]:
        """Documents of each row, in order. What can't be used is left out and counted in `broken`.

        Raises DataError when that is more than the share `most_broken` of the examples.
        """
        pool = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        try:
            pending: list[list[Future[Document | None]]] = []
            for index, row in enumerate(rows):
                pending.append([pool.submit(self._document, window) for window in row])
                if index >= _AHEAD:
                    yield self._sound_ones(pending.pop(0))
            for futures in pending:
                yield self._sound_ones(futures)
        finally:
            pool.shutdown(cancel_futures=True)

    def _sound_ones(self, futures: Sequence[Future[Document | None]]) -> list[Document]:
        documents = [document for future in futures if (document := future.result()) is not None]
        if len(self.broken) > self._most_broken * len(self._examples):
            sample, why = next(iter(self.broken.items()))
            raise DataError(
                f"hidden states of {len(self.broken)} of {len(self._examples)} sequences cannot be used, first of "
                f"sample {sample}: {why}. Extract again into another run, or raise thresholds.givenUpPause"
            )
        return documents

    def _document(self, window: Window) -> Document | None:
        example = self._examples[window.index]
        try:
            return self._read(example, window)
        except (DataError, NotFoundError) as error:
            self.broken[example.sample_id] = str(error)
            return None

    def _read(self, example: Example, window: Window) -> Document:
        key = self._layout.hidden_states(example.key)
        name = f"sample {example.sample_id} ({key})"
        data = _outlasting(lambda: self._store.get_blocking(key))
        states = hidden_states.parse(data, name)
        if example.key not in self._sound:
            hidden_states_check.check(states, example.ids.tolist(), self._layer_ids, name)
            self._sound.add(example.key)
        _, layers, hidden = states.shape
        row_bytes = layers * hidden * hidden_states.ITEM_BYTES[states.dtype]
        cut = bytearray(states.values[window.start * row_bytes : window.stop * row_bytes])
        values = torch.frombuffer(cut, dtype=getattr(torch, states.dtype)).view(-1, layers, hidden)
        supervised = torch.from_numpy(example.mask[window.start : window.stop].copy())
        supervised[: max(1, window.fresh - window.start)] = False
        return Document(
            name=f"{example.key}:{window.start}",
            ids=torch.from_numpy(example.ids[window.start : window.stop].astype(np.int64)),
            inputs=values[:, :-1].flatten(1),
            last=values[:, -1],
            supervised=supervised,
        )


def _outlasting(operation: Callable[[], T]) -> T:
    """Does it again until storage answers."""
    wait = 0.5
    while True:
        try:
            return operation()
        except UnavailableError:
            time.sleep(wait)
            wait = min(2 * wait, 15.0)


def by_decile(generated: dict[str, int], supervised: dict[str, int]) -> list[dict[str, int]]:
    """Samples in ten groups by generated tokens: their range, number, and tokens generated and supervised."""
    order = sorted(generated, key=lambda sample: (generated[sample], sample))
    groups = [part.tolist() for part in np.array_split(np.array(order, dtype=object), 10)]
    return [
        {
            "shortest": generated[group[0]],
            "longest": generated[group[-1]],
            "samples": len(group),
            "generated": sum(generated[sample] for sample in group),
            "supervised": sum(supervised.get(sample, 0) for sample in group),
        }
        for group in groups
        if group
    ]
