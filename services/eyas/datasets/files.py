"""Files of a dataset, row by row: JSON lines, a JSON array, Parquet, Arrow; plain, gzip or zstd; alone or in folders.

What a file is, its first bytes say, and the end of its name only where they leave it open.
"""

import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from eyas.datasets.rows import FIELDS, FORMS, UnusableRowError
from eyas.errors import InputError

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
_LINES = (".jsonl", ".ndjson")
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_BOM = b"\xef\xbb\xbf"
_BATCH = 256
_BUFFER = 1 << 20
_FORMS_HELP = (
    "rows need `conversations`, `messages`, `turns`, `prompt`, `question` or `instruction`, "
    "in JSON lines, a JSON array, Parquet, or a folder of these"
)


def find(source: str) -> list[Path]:
    """The files of a source: itself, or those of a folder in the order of their names. Raises InputError."""
    path = Path(source).expanduser()
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise InputError(
                f"the dataset {source} does not exist: give a file or a folder; a dataset of a hub is downloaded first"
            )
        return _saved_by_datasets(path) or _in_folder(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Line or row number, from 1, and the row; an UnusableRowError in place of a row that is not JSON.

    Raises InputError when the file cannot be read, or is of no known format.
    """
    try:
        with path.open("rb") as file:
            yield from _rows(path, file)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    said = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    return InputError(f"the dataset {path} cannot be read: {said}; give readable, whole files")


def _saved_by_datasets(folder: Path) -> list[Path]:
    """Files of a folder that `save_to_disk` wrote, in its order; none if it is another folder."""
    splits = _metadata(folder / "dataset_dict.json").get("splits", [])
    if len(splits) > 1:
        raise InputError(
            f"the dataset {folder} has the splits {', '.join(splits)}: give one, such as {folder / splits[0]}"
        )
    folder = folder.joinpath(*splits)
    return [folder / file["filename"] for file in _metadata(folder / "state.json").get("_data_files", [])]


def _metadata(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: give the dataset as a whole, as it was saved") from error
    return value if isinstance(value, dict) else {}


def _in_folder(folder: Path) -> list[Path]:
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.name not in _METADATA
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.name.removesuffix(".gz").removesuffix(".zst").endswith(_SUFFIXES)
        and path.is_file()
    ]
    if not found:
        raise InputError(
            f"the folder {folder} holds no dataset: files named {', '.join(_SUFFIXES)}, or those with .gz or .zst"
        )
    return found


def _rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, Any]]:
    magic = file.read(8)
    file.seek(0)
    for prefix, compression in _COMPRESSIONS.items():
        if magic.startswith(prefix):
            stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), compression)
            with io.BufferedReader(cast(Any, stream), _BUFFER) as plain:
                yield from _json_rows(path, cast(BinaryIO, plain))
            return
    if magic.startswith(b"PAR1"):
        yield from _parquet_rows(path)
    elif magic.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        yield from _arrow_rows(path, magic)
    else:
        yield from _json_rows(path, file)


def _json_rows(path: Path, file: BinaryIO) -> Iterator[tuple[int, Any]]:
    number, first = next(((n, line) for n, line in enumerate(file, 1) if line.strip(_BOM + b" \t\r\n")), (1, b""))
    first = first.removeprefix(_BOM)
    lines = itertools.chain([first], file)
    named_lines = path.name.removesuffix(".gz").removesuffix(".zst").endswith(_LINES)
    if first.lstrip().startswith(b"[") and not named_lines:
        yield from _array_rows(path, b"".join(lines))
    elif named_lines or not first or _is_json(first):
        yield from _line_rows(enumerate(lines, number))
    else:
        raise InputError(f"the dataset {path} is of no known format: {_FORMS_HELP}")


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _line_rows(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Any]]:
    """Lines end at newline bytes only: U+2028 and its like are text."""
    for number, line in lines:
        try:
            yield number, orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if line.strip():
                text = line[:400].decode(errors="replace")
                yield number, UnusableRowError("not_json", f"{error.msg} at {error.colno}: {text}")


def _array_rows(path: Path, data: bytes) -> Iterator[tuple[int, Any]]:
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(
            f"the dataset {path} is a JSON array that is damaged at line {error.lineno}: {error.msg}"
        ) from error
    yield from enumerate(values, 1)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with pq.ParquetFile(path) as file:
        columns = _columns(path, file.schema_arrow.names)
        yield from _batch_rows(file.iter_batches(_BATCH, columns=columns))


def _arrow_rows(path: Path, magic: bytes) -> Iterator[tuple[int, Any]]:
    """Arrow files, and the streams that `save_to_disk` writes."""
    with pa.memory_map(str(path)) as source:
        if magic.startswith(b"ARROW1"):
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
        else:
            file = batches = pa.ipc.open_stream(source)
        columns = _columns(path, file.schema.names)
        yield from _batch_rows(
            batch.slice(start, _BATCH).select(columns)
            for batch in batches
            for start in range(0, batch.num_rows, _BATCH)
        )


def _columns(path: Path, names: list[str]) -> list[str]:
    if not set(names).intersection(FORMS):
        raise InputError(f"the dataset {path} has the columns {', '.join(names)}: {_FORMS_HELP}")
    return [name for name in names if name in FIELDS]


def _batch_rows(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    return enumerate((row for batch in batches for row in batch.to_pylist()), 1)
