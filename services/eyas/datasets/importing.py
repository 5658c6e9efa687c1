"""The import: every row of every file once, as a sample, a duplicate, or a rejected row with its reason.

Messages wait in a temporary file between reading and writing, so a million samples need memory for their ids only.
"""

import hashlib
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Literal, NamedTuple, Self

from eyas.datasets.files import find, rows
from eyas.datasets.rows import Turns, UnusableRowError, canonical, questions
from eyas.errors import InputError, StorageFullError
from eyas.run.v1 import run_pb2
from eyas.storage.tables import RejectedRow

_IN_MEMORY = 64 << 20


class Sample(NamedTuple):
    """A sample as it is stored. `messages` is canonical JSON; `turns` counts the user messages."""

    position: int
    sample_id: str
    messages: str
    source: str
    split: Literal["train", "holdout"]
    turns: int


@dataclass
class _Pool:
    """Every distinct sample in order of arrival."""

    spool: IO[bytes]
    digests: dict[bytes, None] = field(default_factory=dict)
    ends: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    turns: "array[int]" = field(default_factory=lambda: array("I"))
    sources: "array[int]" = field(default_factory=lambda: array("I"))
    names: list[str] = field(default_factory=list)
    rejected: list[RejectedRow] = field(default_factory=list)
    duplicates: int = 0

    def read(self, source: str, turns: Turns) -> None:
        for path in find(source):
            name, number = str(path), len(self.names)
            self.names.append(name)
            for line, row in rows(path):
                try:
                    if type(row) is UnusableRowError:
                        raise row
                    messages = questions(row, turns)
                except UnusableRowError as error:
                    self.rejected.append({"source": name, "line": line, "reason": error.reason, "detail": error.detail})
                    continue
                self.add(canonical(messages), sum(message["role"] == "user" for message in messages), number)

    def add(self, messages: bytes, turns: int, source: int) -> None:
        digest = hashlib.sha256(messages).digest()
        if digest in self.digests:
            self.duplicates += 1
            return
        self.digests[digest] = None
        self.spool.write(messages)
        self.ends.append(self.ends[-1] + len(messages))
        self.turns.append(turns)
        self.sources.append(source)

    def messages(self, index: int) -> str:
        self.spool.seek(self.ends[index])
        return self.spool.read(self.ends[index + 1] - self.ends[index]).decode()


class Imported:
    """What an import found. A context manager: it holds a temporary file.

    `rejected` are the rows that could not be used, in the order of the files; `rejected_counts` counts them by reason;
    `duplicates` is the number of repeated rows; `hash` is SHA-256, hex, over the ids and splits in order; `generations`
    is the number of answers asked for. `len()` is the number of samples.
    """

    def __init__(self, pool: _Pool, train: Sequence[int], holdout: Sequence[int]) -> None:
        self._pool = pool
        self._order = array("Q", [*train, *holdout])
        self._digests = list(pool.digests)
        self.train = len(train)
        self.holdout = len(holdout)
        self.rejected: Sequence[RejectedRow] = pool.rejected
        self.rejected_counts: Mapping[str, int] = dict(sorted(Counter(row["reason"] for row in pool.rejected).items()))
        self.duplicates = pool.duplicates
        self.generations = sum(pool.turns[index] for index in self._order)
        self.hash = self._hash()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the temporary file."""
        self._pool.spool.close()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Sample]:
        """Samples by position: those to train on first, then the held-out ones."""
        pool = self._pool
        for position, index in enumerate(self._order):
            yield Sample(
                position,
                self._digests[index].hex(),
                pool.messages(index),
                pool.names[pool.sources[index]],
                self._split(position),
                pool.turns[index],
            )

    def fill(self, dataset: run_pb2.Dataset) -> None:
        """Sets the counts and the hash of a spec's dataset."""
        dataset.samples, dataset.generations, dataset.hash = len(self), self.generations, self.hash
        dataset.duplicates = self.duplicates
        dataset.rejected.clear()
        dataset.rejected.update(self.rejected_counts)

    def _split(self, position: int) -> Literal["train", "holdout"]:
        return "train" if position < self.train else "holdout"

    def _hash(self) -> str:
        digest = hashlib.sha256()
        for position, index in enumerate(self._order):
            digest.update(f"{self._digests[index].hex()} {self._split(position)}\n".encode())
        return digest.hexdigest()


def load(
    sources: Sequence[str],
    *,
    turns: Turns = "first",
    max_samples: int = 0,
    shuffle_seed: int | None = None,
    holdout: int = 0,
    holdout_sources: Sequence[str] = (),
) -> Imported:
    """Imports files and folders.

    `holdout_sources` are held out altogether, and so are the `holdout` samples whose ids are the smallest: a choice
    that depends on neither order nor seed, and hardly changes when the dataset grows. `max_samples` limits what is
    trained on; 0 is no limit. A shuffle orders by a hash of seed and id, the same on every machine.

    Raises InputError for what cannot be read, and when nothing is left to train on.
    """
    if not sources:
        raise InputError("no dataset is given: say --dataset with a file or a folder")
    try:
        with ExitStack() as stack:
            pool = _Pool(stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY)))
            for source in holdout_sources:
                pool.read(source, turns)
            given = range(len(pool.digests))
            for source in sources:
                pool.read(source, turns)
            rest = range(len(given), len(pool.digests))
            train, chosen = _split(list(pool.digests), rest, holdout, shuffle_seed)
            imported = Imported(pool, train[: max_samples or None], [*given, *chosen])
            _check(imported, sources, holdout)
            stack.pop_all()
    except OSError as error:
        raise StorageFullError(
            f"the import cannot write to {tempfile.gettempdir()}: make room there, or set TMPDIR ({error})"
        ) from error
    return imported


def load_for(dataset: run_pb2.Dataset) -> Imported:
    """`load` with the settings of a complete spec."""
    return load(
        dataset.sources,
        turns="all" if dataset.turns == run_pb2.TURNS_ALL else "first",
        max_samples=dataset.max_samples,
        shuffle_seed=dataset.shuffle_seed if dataset.HasField("shuffle_seed") else None,
        holdout=dataset.holdout,
        holdout_sources=dataset.holdout_sources,
    )


def _split(ids: list[bytes], rest: range, holdout: int, shuffle_seed: int | None) -> tuple[list[int], list[int]]:
    """Indices to train on in their order, and those chosen to be held out."""
    chosen = set(sorted(rest, key=ids.__getitem__)[:holdout])
    train = [index for index in rest if index not in chosen]
    if shuffle_seed is not None:
        salt = f"{shuffle_seed} ".encode()
        train.sort(key=lambda index: hashlib.sha256(salt + ids[index]).digest())
    return train, sorted(chosen)


def _check(imported: Imported, sources: Sequence[str], holdout: int) -> None:
    if imported.train:
        return
    where = ", ".join(sources)
    if imported.holdout:
        raise InputError(
            f"all {imported.holdout} usable samples are held out, none is left of {where} to train on: "
            f"{'lower the holdout of ' + str(holdout) if holdout else 'give other questions than the held-out ones'}"
        )
    counts = ", ".join(f"{reason} {count}" for reason, count in imported.rejected_counts.items())
    first = (
        f"; first: line {imported.rejected[0]['line']}: {imported.rejected[0]['detail']}" if imported.rejected else ""
    )
    raise InputError(
        f"no row of {where} can be used ({counts or 'there is none'}{first}): "
        "each needs what a user asks, in `conversations`, `messages`, `turns`, `prompt`, `question` or `instruction`"
    )
