"""Tables of a run: what goes in comes out, and ordinary tools read it."""

import io
from array import array
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import DataError
from eyas.storage.layout import RunLayout
from eyas.storage.tables import (
    FAILURES,
    GENERATIONS,
    PARTIALS,
    REJECTED,
    SAMPLES,
    FailureRow,
    GenerationRow,
    JsonFormat,
    PartialRow,
    SampleRow,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)
messages = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": text}), max_size=3)
times = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
counts = st.integers(0, 2**31 - 1)
samples = st.builds(
    SampleRow,
    sample_id=text,
    position=st.integers(0, 2**40),
    messages=messages,
    source=text,
    split=st.sampled_from(["train", "holdout"]),
    turns=counts,
)
generations = st.builds(
    GenerationRow,
    sample_id=text,
    turn=counts,
    position=counts,
    split=text,
    source=text,
    messages=messages,
    prompt_ids=ids,
    ids=ids,
    finish_reason=st.sampled_from(["stop", "length"]),
    stop_reason=text,
    reasoning=text,
    content=text,
    tool_calls=text,
    attempts=counts,
    interruptions=st.lists(text, max_size=3),
    lost_tokens=counts,
    endpoint=text,
    model=text,
    started_at=times,
    finished_at=times,
    first_token_seconds=st.floats(0, 1e6),
    seconds=st.floats(0, 1e6),
)
failures = st.builds(
    FailureRow,
    sample_id=text,
    turn=counts,
    position=counts,
    stage=st.sampled_from(["generate", "extract"]),
    reason=text,
    detail=text,
    attempts=counts,
    at=times,
)
partials = st.builds(
    PartialRow,
    position=counts,
    turn=counts,
    stage=st.sampled_from(["generate", "extract"]),
    attempt=st.integers(0, 2**63 - 1),
    prompt_ids=ids,
    ids=ids,
    interruptions=st.lists(text, max_size=3),
    lost_tokens=counts,
    endpoint_deaths=counts,
    generator=text,
)
tables = st.one_of(
    st.tuples(st.just(SAMPLES), st.lists(samples, max_size=4)),
    st.tuples(st.just(GENERATIONS), st.lists(generations, max_size=4)),
    st.tuples(st.just(FAILURES), st.lists(failures, max_size=4)),
    st.tuples(st.just(PARTIALS), st.lists(partials, max_size=4)),
)


@settings(max_examples=60, deadline=None)
@given(table=tables, epoch=st.integers(0, 2**31), nonce=text)
def test_rows_come_back_as_they_were(table: Any, epoch: int, nonce: str):
    kind, rows = table
    data = kind.encode(rows, epoch, nonce)
    assert kind.decode(data) == (rows, epoch, nonce)
    assert kind.rows(data) == rows
    assert kind.encode(rows, epoch, nonce) == data, "the log compares bytes"


SAMPLE: SampleRow = {
    "sample_id": "ab" * 32,
    "position": 3,
    "messages": [{"role": "user", "content": "Why?"}],
    "source": "q.jsonl",
    "split": "train",
    "turns": 1,
}
PARTIAL: PartialRow = {
    "position": 1,
    "turn": 0,
    "stage": "generate",
    "attempt": 5 << 32 | 7,
    "prompt_ids": array("i", [1, 2]),
    "ids": (3, 4),
    "interruptions": ["connection"],
    "lost_tokens": 3,
    "endpoint_deaths": 1,
    "generator": "g",
}


def test_other_tools_read_them():
    table = pq.read_table(io.BytesIO(SAMPLES.encode([SAMPLE], 4, "me")))
    assert table.to_pylist() == [SAMPLE]
    assert table.schema.metadata == {b"eyas.epoch": b"4", b"eyas.nonce": b"me"}


def test_ids_may_be_any_sequence():
    (row,) = PARTIALS.rows(PARTIALS.encode([PARTIAL]))
    assert (row["prompt_ids"], row["ids"]) == ([1, 2], [3, 4])
    assert row["attempt"] == 5 << 32 | 7


def test_some_columns_only():
    data = SAMPLES.encode([SAMPLE], 4, "me")
    assert SAMPLES.only("position", "split").decode(data) == ([{"position": 3, "split": "train"}], 4, "me")
    assert SAMPLES.read(data).column("sample_id").to_pylist() == ["ab" * 32]


@pytest.mark.parametrize(
    "change", [{"position": None}, {"position": "three"}, {"turns": 2**40}, {"messages": "Why?"}, {"split": 3}]
)
def test_rows_that_do_not_fit_are_errors(change: dict[str, Any]):
    with pytest.raises(DataError, match="does not fit the table of samples"):
        SAMPLES.encode([{**SAMPLE, **change}])  # type: ignore[typeddict-item]


def test_a_row_that_lacks_a_column_is_an_error():
    with pytest.raises(DataError, match="samples"):
        SAMPLES.encode([{key: value for key, value in SAMPLE.items() if key != "split"}])  # type: ignore[list-item]


def test_what_is_no_such_table_is_an_error():
    for data in (b"", b"junk", REJECTED.encode([]), SAMPLES.encode([SAMPLE])[:-9]):
        with pytest.raises(DataError, match="samples cannot be read"):
            SAMPLES.rows(data)


def test_json_objects_carry_their_writer():
    kind = JsonFormat()
    data = kind.encode({"pause": {"reason": "ö"}}, 3, "n")
    assert kind.decode(data) == ({"pause": {"reason": "ö"}}, 3, "n")
    for bad in (b"", b"[]", b"{}", b'"x"', b'{"epoch": null, "nonce": "x"}'):
        with pytest.raises(DataError):
            kind.decode(bad)


def test_keys_of_a_run_are_distinct_and_below_it():
    run = RunLayout("demo")
    keys = [getattr(run, name) for name in dir(RunLayout) if isinstance(getattr(RunLayout, name), property)]
    keys += [run.samples_part(7), run.hidden_states("ab"), run.training("h"), run.training_steps("h")]
    assert all(key.startswith("demo/") and not key.endswith("/") for key in keys)
    assert len(set(keys)) == len(keys)
    assert run.samples_part(7) == "demo/samples/000007.parquet"
    assert run.hidden_states("ab") == "demo/hidden_states/ab.safetensors"
