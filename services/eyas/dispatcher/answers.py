"""The log of answers as the dispatcher reads it: which item is done, and how long its answer is; not the answers."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eyas.errors import DataError
from eyas.storage.tables import GENERATIONS, GenerationRow, Message, SampleRow

_READ = GENERATIONS.only("position", "turn", "finish_reason")
_READ_CONTENT = GENERATIONS.only("position", "turn", "finish_reason", "content")


@dataclass(frozen=True)
class Answers:
    """A part: with `rows` when it is written, with the columns when it is read."""

    rows: Sequence[GenerationRow] = ()
    positions: Sequence[int] = ()
    turns: Sequence[int] = ()
    finishes: Sequence[str] = ()
    contents: Sequence[str] = ()
    tokens: int = 0
    """Generated ids of all rows."""


@dataclass(frozen=True)
class AnswersFormat:
    """The codec of the log. `contents`: answers are needed too, for the turns that follow."""

    contents: bool = False

    def encode(self, value: Answers, epoch: int, nonce: str) -> bytes:
        """The part as Parquet."""
        return GENERATIONS.encode(value.rows, epoch, nonce)

    def decode(self, data: bytes) -> tuple[Answers, int, str]:
        """The columns; the ids are counted from the file's footer, without being read."""
        columns = _READ_CONTENT if self.contents else _READ
        try:
            metadata = pq.read_metadata(pa.BufferReader(data))
        except pa.ArrowException as error:
            raise DataError(f"the table of generations cannot be read: {error}") from error
        table = columns.read(data)
        rest = table.schema.metadata or {}
        answers = Answers(
            positions=array("q", table.column("position").to_pylist()),
            turns=array("i", table.column("turn").to_pylist()),
            finishes=table.column("finish_reason").to_pylist(),
            contents=table.column("content").to_pylist() if self.contents else (),
            tokens=_leaves(metadata, "ids"),
        )
        return answers, int(rest.get(b"eyas.epoch", b"0")), rest.get(b"eyas.nonce", b"").decode()


@dataclass
class Contents:
    """Answers of earlier turns, by position and turn, for the conversations that are not over."""

    texts: dict[int, dict[int, str]] = field(default_factory=dict)

    def keep(self, position: int, turn: int, text: str) -> None:
        """Keeps an answer."""
        self.texts.setdefault(position, {})[turn] = text

    def drop(self, position: int) -> None:
        """The conversation is over."""
        self.texts.pop(position, None)

    def history(self, sample: SampleRow, turn: int) -> list[Message]:
        """The messages to render for a turn: the sample's up to its user message, with the answers between them."""
        messages = sample["messages"]
        users = [number for number, message in enumerate(messages) if message["role"] == "user"]
        answered = users[len(users) - sample["turns"] :][: turn + 1]
        history = messages[: answered[0] + 1]
        for earlier, user in enumerate(answered[1:]):
            history.append({"role": "assistant", "content": self.texts[sample["position"]][earlier]})
            history.append(messages[user])
        return history


def _leaves(metadata: Any, column: str) -> int:
    total = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            if group.column(index).path_in_schema.partition(".")[0] == column:
                total += group.column(index).num_values
    return total
