"""Object storage in memory, in a folder and on S3, and what becomes of its errors."""

import asyncio
import http.server
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore import exceptions as foreign

from eyas.errors import (
    AlreadyExistsError,
    InputError,
    NotFoundError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from eyas.storage.objects import ObjectStore, open_store, outlast


@pytest.fixture(params=["memory", "folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "s3":
        return open_store(request.getfixturevalue("s3_uri"))
    return open_store("memory:///" if request.param == "memory" else str(tmp_path / "new" / "folder"))


async def test_put_replaces_and_create_does_not(store: ObjectStore):
    await store.put("a/b.txt", b"one")
    await store.put("a/b.txt", b"two")
    assert await store.get("a/b.txt") == b"two"
    with pytest.raises(AlreadyExistsError, match="txt exists already"):
        await store.create("a/b.txt", b"three")
    await store.create("a/c.txt", b"")
    assert await store.get("a/b.txt") == b"two"
    assert await store.get("a/c.txt") == b""


async def test_parts_of_objects_and_their_sizes(store: ObjectStore):
    await store.put("x", bytes(range(100)))
    assert await store.get_range("x", 10, 5) == bytes(range(10, 15))
    assert await store.get_range("x", 95, 50) == bytes(range(95, 100))
    info = await store.head("x")
    assert (info.key, info.size) == ("x", 100)
    assert info.modified.tzinfo is not None


async def test_lists_are_sorted_and_keep_to_their_prefix(store: ObjectStore):
    for key in ("p/3", "p/1", "p/sub/2", "pq/1", "q"):
        await store.put(key, b"x")
    assert [info.key async for info in store.list("p")] == ["p/1", "p/3", "p/sub/2"]
    assert [info.key async for info in store.list("p/", after="p/1")] == ["p/3", "p/sub/2"]
    assert [info.key async for info in store.list("none")] == []
    assert [info.key async for info in store.list("")] == ["p/1", "p/3", "p/sub/2", "pq/1", "q"]
    assert await store.folders() == ("p", "pq")
    assert await store.folders("p") == ("sub",)


async def test_what_is_missing(store: ObjectStore):
    for operation in (store.get("none"), store.head("none"), store.get_range("none", 0, 1)):
        with pytest.raises(NotFoundError, match="none does not exist"):
            await operation
    await store.delete("none")
    await store.put("some", b"x")
    await store.delete("some")
    with pytest.raises(NotFoundError):
        await store.head("some")


def test_the_blocking_twins(store: ObjectStore):
    store.put_blocking("a/x", b"0123")
    store.create_blocking("a/y", memoryview(b"4567"))
    with pytest.raises(AlreadyExistsError):
        store.create_blocking("a/y", b"")
    assert store.get_blocking("a/x") == b"0123"
    assert store.get_range_blocking("a/y", 1, 2) == b"56"
    assert store.head_blocking("a/y").size == 4
    assert [info.key for info in store.list_blocking("a")] == ["a/x", "a/y"]
    with pytest.raises(NotFoundError):
        store.get_blocking("none")


async def test_of_many_creates_exactly_one_wins(store: ObjectStore):
    ends = await asyncio.gather(*(store.create("k", b"%d" % n) for n in range(8)), return_exceptions=True)
    (winner,) = [n for n, end in enumerate(ends) if end is None]
    assert all(isinstance(end, AlreadyExistsError) for n, end in enumerate(ends) if n != winner)
    assert await store.get("k") == b"%d" % winner


async def test_names_that_cannot_be_keys_are_input_errors(store: ObjectStore):
    with pytest.raises(InputError, match="no usable name"):
        await store.get("a//b")


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    open_store(f"file://{tmp_path}/with%20space").put_blocking("x", b"1")
    assert (tmp_path / "with space" / "x").read_bytes() == b"1"
    monkeypatch.chdir(tmp_path)
    open_store("relative").put_blocking("x", b"2")
    assert (tmp_path / "relative" / "x").read_bytes() == b"2"
    for uri in ("ftp://host/x", ""):
        with pytest.raises(InputError, match="is no storage"):
            open_store(uri)


def test_a_file_in_place_of_the_folder(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    for uri in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="is a file: give a folder"):
            open_store(str(uri))


async def test_a_bucket_that_is_not_there(s3_server: str):
    store = open_store("s3://eyas-no-such-bucket/x")
    with pytest.raises(InputError, match="does not exist: create it"):
        await store.put("k", b"x")
    with pytest.raises(InputError, match="does not exist: create it"):
        _ = [info async for info in store.list("k")]


_REFUSED = """
import os, resource, sys
from eyas.errors import StorageFullError
from eyas.storage.objects import open_store

folder, how = sys.argv[1:]
if how == "rights" and os.getuid() == 0:
    os.setuid(65534)
if how == "room":
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
for attempt in (
    lambda: open_store(folder).put_blocking("x", bytes(100_000)),
    lambda: open_store(folder).create_blocking("y/z", bytes(100_000)),
    lambda: open_store(folder + "/new").create_blocking("x", bytes(100_000)),
):
    try:
        attempt()
    except StorageFullError as error:
        print(error)
"""


@pytest.mark.parametrize("how", ["rights", "room"])
def test_a_folder_that_refuses_writes(how: str):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555 if how == "rights" else 0o755)
        result = subprocess.run(
            [sys.executable, "-c", _REFUSED, folder, how], capture_output=True, text=True, check=True, timeout=60
        )
        left = [path for path in Path(folder).rglob("*") if path.is_file()]
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result
    assert all("cannot be written: make room, or give write access" in line for line in lines)
    assert left == []


class Answering(http.server.ThreadingHTTPServer):
    """An S3 server that gives one answer to everything."""

    daemon_threads = True
    status = 200

    class Handler(http.server.BaseHTTPRequestHandler):
        server: "Answering"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.server.status == 0:
                self.close_connection = True
                return
            self.send_response(self.server.status)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_PUT = do_HEAD = do_DELETE = answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    server = Answering(("127.0.0.1", 0), Answering.Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (401, StorageFullError, "check AWS_ACCESS_KEY_ID"),
        (403, StorageFullError, "clock"),
        (400, StorageError, "400"),
        (413, StorageError, "413"),
    ],
)
def test_refusals_are_not_waited_out(answering: Answering, status: int, kind: type[StorageError], says: str):
    answering.status = status
    store = open_store("s3://bucket/x")
    for operation in (
        lambda: store.get_blocking("k"),
        lambda: store.put_blocking("k", b"x"),
        lambda: list(store.list_blocking("k")),
    ):
        with pytest.raises(kind, match=says) as caught:
            operation()
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Server returned non-2xx status code: 500 Internal Server Error: ", UnavailableError),
        ("Server returned non-2xx status code: 503 Service Unavailable: SlowDown", UnavailableError),
        ("Server returned non-2xx status code: 429 Too Many Requests: x", UnavailableError),
        (
            "Error performing PUT http://h/k in 2.0s, after 10 retries - HTTP error: error sending request",
            UnavailableError,
        ),
        ("Unable to copy data to file: Stale file handle (os error 116)", UnavailableError),
        ("Error performing PUT http://169.254.169.254/latest/api/token: status code: 403 Forbidden", UnavailableError),
        ("Server returned non-2xx status code: 507 Insufficient Storage: ", StorageFullError),
        ("Unable to copy data to file: No space left on device (os error 28)", StorageFullError),
        ("Unable to open file /x#1: Read-only file system (os error 30)", StorageFullError),
        ("Unable to copy data to file: Disk quota exceeded (os error 122)", StorageFullError),
        ("Unable to rename file: Is a directory (os error 21)", StorageError),
    ],
)
def test_sentences_of_obstore(monkeypatch: pytest.MonkeyPatch, said: str, kind: type[StorageError]):
    def fail(*_: object, **__: object) -> None:
        raise foreign.GenericError(f"Generic error: {said}\n\nDebug source:\nGeneric {{ code: 28 }}")

    monkeypatch.setattr(obstore, "put", fail)
    with pytest.raises(kind) as caught:
        open_store("memory:///").put_blocking("k", b"x")
    assert type(caught.value) is kind
    assert "Debug source" not in str(caught.value)


def test_a_server_that_nobody_listens_for(monkeypatch: pytest.MonkeyPatch):
    """Told from a refusal by obstore's own words, so a real refused connection must be asked."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(UnavailableError, match="s3://bucket/x/k is out of reach"):
        open_store("s3://bucket/x").head_blocking("k")


async def test_outages_are_outlasted():
    now = 0.0
    waits: list[float] = []
    reports: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        waits.append(seconds)

    async def operation() -> str:
        if now < 3600:
            raise UnavailableError("out of reach")
        return "done"

    result = await outlast(operation, report=lambda _, age: reports.append(age), sleep=sleep, clock=lambda: now)
    assert result == "done"
    assert waits[:7] == [0.5, 1, 2, 4, 8, 15, 15]
    assert reports[0] == 0
    assert reports[-1] > 3600 - 15 - 1
    assert len(reports) == len(waits)


async def test_other_errors_are_not_outlasted():
    async def operation() -> None:
        raise StorageFullError("full")

    with pytest.raises(StorageFullError):
        await outlast(operation, report=lambda *_: None)


def test_nothing_half_written_is_ever_seen(tmp_path: Path):
    """A reader of a folder sees whole objects only, while a writer replaces a large one over and over."""
    store = open_store(str(tmp_path))
    whole = [os.urandom(1) * 1_000_000 for _ in range(2)]
    store.put_blocking("x", whole[0])
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for data in whole:
                store.put_blocking("x", data)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        seen = {(tmp_path / "x").read_bytes() for _ in range(100)}
    finally:
        stop.set()
        thread.join()
    assert seen <= set(whole)
