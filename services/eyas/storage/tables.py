"""The tables of a run: schemas, and Parquet to and from rows.

Rows are plain dicts, typed by a TypedDict a table. Whoever wants columns takes `read`, which gives an Arrow table. Each
object carries its writer's epoch and nonce in its metadata, and ordinary tools read it as it is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from eyas.errors import DataError

Row = TypeVar("Row")

_EPOCH, _NONCE = b"eyas.epoch", b"eyas.nonce"


class Message(TypedDict):
    """One message of a conversation."""

    role: str
    content: str


class SampleRow(TypedDict):
    """A conversation of the dataset."""

    sample_id: str
    position: int
    messages: list[Message]
    source: str
    split: Literal["train", "holdout"]
    turns: int


class GenerationRow(TypedDict):
    """An answer of the model. `messages` is what was rendered, earlier answers included; times are UTC.

    `interruptions` has one name of a cause for each attempt that was interrupted; `lost_tokens` counts ids that were
    made for it and had to be made again.
    """

    sample_id: str
    turn: int
    position: int
    split: str
    source: str
    messages: list[Message]
    prompt_ids: Sequence[int]
    ids: Sequence[int]
    finish_reason: Literal["stop", "length"]
    stop_reason: str
    reasoning: str
    content: str
    tool_calls: str
    attempts: int
    interruptions: list[str]
    lost_tokens: int
    endpoint: str
    model: str
    started_at: datetime
    finished_at: datetime
    first_token_seconds: float
    seconds: float


class FailureRow(TypedDict):
    """An item that was given up. `reason` is the name of the cause."""

    sample_id: str
    turn: int
    position: int
    stage: Literal["generate", "extract"]
    reason: str
    detail: str
    attempts: int
    at: datetime


class RejectedRow(TypedDict):
    """A row of the dataset that could not be imported. `line` counts from 1."""

    source: str
    line: int
    reason: str
    detail: str


class PartialRow(TypedDict):
    """What is held of an item that is not done. `generator` works on it; empty when nobody does."""

    position: int
    turn: int
    stage: Literal["generate", "extract"]
    attempt: int
    prompt_ids: Sequence[int]
    ids: Sequence[int]
    interruptions: list[str]
    lost_tokens: int
    endpoint_deaths: int
    generator: str


@dataclass(frozen=True)
class TableFormat(Generic[Row]):
    """A table's schema, and its bytes. It is the codec of a log whose parts are such tables."""

    name: str
    schema: pa.Schema

    def encode(self, value: Sequence[Row], epoch: int = 0, nonce: str = "") -> bytes:
        """Rows as Parquet. Raises DataError for a row that does not fit the schema."""
        try:
            table = pa.Table.from_pylist(value, schema=self.schema)
            table = table.replace_schema_metadata({_EPOCH: str(epoch), _NONCE: nonce})
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd", store_schema=True)
        except (pa.ArrowException, KeyError, OverflowError) as error:
            raise DataError(f"a row does not fit the table of {self.name}: {error}") from error
        return cast(bytes, sink.getvalue().to_pybytes())

    def decode(self, data: bytes) -> tuple[list[Row], int, str]:
        """Rows, epoch and nonce. Raises DataError."""
        table = self.read(data)
        metadata = table.schema.metadata or {}
        return table.to_pylist(), int(metadata.get(_EPOCH, b"0")), metadata.get(_NONCE, b"").decode()

    def rows(self, data: bytes) -> list[Row]:
        """Rows only. Raises DataError."""
        return cast(list[Row], self.read(data).to_pylist())

    def read(self, data: bytes) -> pa.Table:
        """The Arrow table, with the columns of this format only. Raises DataError."""
        try:
            table = pq.read_table(pa.BufferReader(data), columns=self.schema.names)
            return table.select(self.schema.names)
        except (pa.ArrowException, KeyError, OSError) as error:
            raise DataError(f"the table of {self.name} cannot be read: {' '.join(str(error).split())}") from error

    def only(self, *columns: str) -> "TableFormat[dict[str, Any]]":
        """The format that reads these columns, and skips the bytes of all others."""
        return cast(
            "TableFormat[dict[str, Any]]",
            replace(self, schema=pa.schema([self.schema.field(name) for name in columns])),
        )


class JsonFormat:
    """One JSON object, with its writer's epoch and nonce among its keys: the codec of the control log."""

    def encode(self, value: dict[str, Any], epoch: int = 0, nonce: str = "") -> bytes:
        """The object as JSON, indented for people."""
        return json.dumps({**value, "epoch": epoch, "nonce": nonce}, indent=2).encode() + b"\n"

    def decode(self, data: bytes) -> tuple[dict[str, Any], int, str]:
        """The object without epoch and nonce, and these. Raises DataError."""
        try:
            value = json.loads(data)
            epoch, nonce = int(value.pop("epoch")), str(value.pop("nonce"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not a JSON object with epoch and nonce: {error}") from error
        return value, epoch, nonce


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


_TEXT, _SHORT, _LONG, _REAL = pa.string(), pa.int32(), pa.int64(), pa.float64()
_TIME = pa.timestamp("us", tz="UTC")
_IDS = pa.list_(pa.int32())
_MESSAGES = pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)]))

SAMPLES: TableFormat[SampleRow] = TableFormat(
    "samples",
    _schema(sample_id=_TEXT, position=_LONG, messages=_MESSAGES, source=_TEXT, split=_TEXT, turns=_SHORT),
)
GENERATIONS: TableFormat[GenerationRow] = TableFormat(
    "generations",
    _schema(
        sample_id=_TEXT,
        turn=_SHORT,
        position=_LONG,
        split=_TEXT,
        source=_TEXT,
        messages=_MESSAGES,
        prompt_ids=_IDS,
        ids=_IDS,
        finish_reason=_TEXT,
        stop_reason=_TEXT,
        reasoning=_TEXT,
        content=_TEXT,
        tool_calls=_TEXT,
        attempts=_SHORT,
        interruptions=pa.list_(_TEXT),
        lost_tokens=_LONG,
        endpoint=_TEXT,
        model=_TEXT,
        started_at=_TIME,
        finished_at=_TIME,
        first_token_seconds=_REAL,
        seconds=_REAL,
    ),
)
FAILURES: TableFormat[FailureRow] = TableFormat(
    "failures",
    _schema(
        sample_id=_TEXT,
        turn=_SHORT,
        position=_LONG,
        stage=_TEXT,
        reason=_TEXT,
        detail=_TEXT,
        attempts=_SHORT,
        at=_TIME,
    ),
)
REJECTED: TableFormat[RejectedRow] = TableFormat(
    "rejected rows", _schema(source=_TEXT, line=_LONG, reason=_TEXT, detail=_TEXT)
)
PARTIALS: TableFormat[PartialRow] = TableFormat(
    "partial answers",
    _schema(
        position=_LONG,
        turn=_SHORT,
        stage=_TEXT,
        attempt=_LONG,
        prompt_ids=_IDS,
        ids=_IDS,
        interruptions=pa.list_(_TEXT),
        lost_tokens=_LONG,
        endpoint_deaths=_SHORT,
        generator=_TEXT,
    ),
)
