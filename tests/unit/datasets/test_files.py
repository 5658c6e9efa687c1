"""Files of every format, whole and damaged."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.datasets.files import find, rows
from eyas.datasets.rows import UnusableRowError
from eyas.errors import InputError

QUESTIONS = [{"prompt": f"Question {number}\u2028?\u0085"} for number in range(600)]


def lines(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in values)


def read(path: Path) -> list[tuple[int, Any]]:
    return [(line, (row.reason, row.detail) if isinstance(row, UnusableRowError) else row) for line, row in rows(path)]


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def arrow_stream(path: Path, values: list[Any]) -> Path:
    """As `save_to_disk` writes it."""
    table = pa.Table.from_pylist(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return path


def arrow_file(path: Path, values: list[Any]) -> Path:
    table = pa.Table.from_pylist(values)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return path


def parquet(path: Path, values: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(values), path, row_group_size=100)
    return path


WRITERS = {
    "q.jsonl": lambda path: write(path, lines(QUESTIONS)),
    "q.txt": lambda path: write(path, lines(QUESTIONS)),
    "q.jsonl.gz": lambda path: write(path, gzip.compress(lines(QUESTIONS[:7])) + gzip.compress(lines(QUESTIONS[7:]))),
    "q.jsonl.zst": lambda path: write(path, pa.compress(lines(QUESTIONS), codec="zstd", asbytes=True)),
    "crlf.jsonl": lambda path: write(path, lines(QUESTIONS).replace(b"\n", b"\r\n")),
    "bom.jsonl": lambda path: write(path, b"\xef\xbb\xbf" + lines(QUESTIONS)),
    "no-newline.jsonl": lambda path: write(path, lines(QUESTIONS)[:-1]),
    "q.json": lambda path: write(path, json.dumps(QUESTIONS, indent=1).encode()),
    "one-line.json": lambda path: write(path, json.dumps(QUESTIONS).encode()),
    "q.json.gz": lambda path: write(path, gzip.compress(json.dumps(QUESTIONS).encode())),
    "q.parquet": lambda path: parquet(path, QUESTIONS),
    "q.arrow": lambda path: arrow_file(path, QUESTIONS),
    "data-00000-of-00001.arrow": lambda path: arrow_stream(path, QUESTIONS),
}


@pytest.mark.parametrize("name", WRITERS)
def test_formats(tmp_path: Path, name: str):
    path = WRITERS[name](tmp_path / name)
    assert read(path) == list(enumerate(QUESTIONS, 1))


def test_lines_that_are_not_json_are_rows_with_their_line(tmp_path: Path):
    path = write(
        tmp_path / "q.jsonl", b'\n\n{"prompt": "a"}\nnonsense\n\n{"prompt": "\xff"}\n[1]\n{"prompt": "b"}\n{"pro'
    )
    found = read(path)
    assert [line for line, _ in found] == [3, 4, 6, 7, 8, 9]
    assert [row for line, row in found if line in {3, 7, 8}] == [{"prompt": "a"}, [1], {"prompt": "b"}]
    for line, shown in ((4, "nonsense"), (6, '{"prompt": "\ufffd"}'), (9, '{"pro')):
        reason, detail = dict(found)[line]
        assert reason == "not_json"
        assert detail.endswith(f": {shown}")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1), cut=st.integers(1, 6)
)
def test_a_torn_end_costs_the_last_line_only(tmp_path: Path, values: list[str], cut: int):
    data = lines([{"prompt": value} for value in values])
    path = write(tmp_path / "q.jsonl", data[:-cut])
    found = read(path)
    whole = len(values) if cut == 1 else len(values) - 1
    assert found[:whole] == [(number, {"prompt": value}) for number, value in enumerate(values[:whole], 1)]
    assert [line for line, _ in found[whole:]] == [len(values)] * (cut > 1)


def test_only_the_columns_that_matter_are_read(tmp_path: Path):
    path = parquet(tmp_path / "q.parquet", [{"prompt": "a", "blob": b"x" * 100, "score": 1.0}])
    assert read(path) == [(1, {"prompt": "a"})]


def test_conversations_in_parquet(tmp_path: Path):
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert read(parquet(tmp_path / "q.parquet", [row])) == [(1, row)]


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path):
    for name in ("b.jsonl", "a.parquet", "sub/c.json.gz", "README.md", ".hidden/x.jsonl", "dataset_info.json"):
        write(tmp_path / name, b"")
    assert [path.relative_to(tmp_path).as_posix() for path in find(str(tmp_path))] == [
        "a.parquet",
        "b.jsonl",
        "sub/c.json.gz",
    ]


def test_what_save_to_disk_wrote_is_read_in_its_order(tmp_path: Path):
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for number, name in enumerate(names):
        arrow_stream(tmp_path / "train" / name, [QUESTIONS[number]])
    arrow_stream(tmp_path / "train" / "cache-0123.arrow", [{"prompt": "stale"}])
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    write(tmp_path / "train" / "state.json", json.dumps(state).encode())
    write(tmp_path / "train" / "dataset_info.json", b"{}")
    assert [row for path in find(str(tmp_path / "train")) for _, row in rows(path)] == QUESTIONS[:2]
    write(tmp_path / "dataset_dict.json", b'{"splits": ["train"]}')
    assert [path.name for path in find(str(tmp_path))] == names
    write(tmp_path / "dataset_dict.json", b'{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match=r"has the splits train, test: give one, such as .*train"):
        find(str(tmp_path))


def damaged(path: Path, keep: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


@pytest.mark.parametrize("name", ["q.jsonl.gz", "q.jsonl.zst", "q.json.gz", "q.json", "q.parquet", "q.arrow"])
def test_damaged_files_are_named(tmp_path: Path, name: str):
    path = damaged(WRITERS[name](tmp_path / name), 0.7)
    with pytest.raises(InputError, match=name) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("q.txt", b"Why is the sky blue?\n"),
        ("q.csv", b"prompt,answer\n"),
        ("config.json", b'{\n  "model_type": "llama"\n}\n'),
        ("q.pdf", b"%PDF-1.7\n\x00"),
    ],
)
def test_files_of_no_known_format_are_named(tmp_path: Path, name: str, data: bytes):
    with pytest.raises(InputError, match=f"{name} is of no known format: rows need"):
        read(write(tmp_path / name, data))


def test_tables_without_questions_are_named(tmp_path: Path):
    with pytest.raises(InputError, match="has the columns text, label: rows need `conversations`"):
        read(parquet(tmp_path / "q.parquet", [{"text": "a", "label": 1}]))


def test_what_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="none does not exist: give a file or a folder"):
        find(str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"holds no dataset: files named \.jsonl"):
        find(str(tmp_path))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read(tmp_path)


def test_empty_files_hold_no_rows(tmp_path: Path):
    for data in (b"", b"\n\n", b"[]"):
        assert read(write(tmp_path / "q.json", data)) == []
