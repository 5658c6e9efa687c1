"""The log on a real S3 server (SeaweedFS) and in a folder: processes are killed, and the server is away for a while."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from eyas.errors import AlreadyExistsError, EyasError, NotFoundError
from eyas.storage.log import Log
from eyas.storage.objects import open_store
from eyas.storage.tables import JsonFormat

ROWS = 120
WEED = Path(sys.executable).with_name("weed")

WRITER = f"""
import asyncio, sys
from eyas.errors import ReplacedError
from eyas.storage.log import Log
from eyas.storage.objects import open_store, outlast
from eyas.storage.tables import JsonFormat


async def main(uri, nonce):
    log = Log(open_store(uri), "run/generations", ".json", JsonFormat(), nonce=nonce)
    todo = list(range({ROWS}))

    def drop(part):
        todo[:] = [row for row in todo if row not in part.value["rows"]]

    async def absorb():
        async for part in log.catch_up():
            drop(part)

    def away(error, seconds):
        print("away", flush=True)

    await outlast(absorb, report=away, longest=0.5)
    log.epoch = log.newest[0] + 1
    while todo:
        batch = todo[:3]
        part = await outlast(lambda: log.append({{"rows": batch}}), report=away, longest=0.5)
        if part is None:
            del todo[:len(batch)]
        else:
            drop(part)
        print("step", flush=True)


try:
    asyncio.run(main(*sys.argv[1:]))
except ReplacedError:
    print("replaced", flush=True)
"""


class Weed:
    """SeaweedFS in one process, with a bucket named eyas."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("s3.port", "master.port", "filer.port", "volume.port", "admin.port", "webdav.port", "s3.port.iceberg")
        self.ports = dict(zip((*names, "s3.port.lance"), free_ports(len(names) + 1), strict=True))
        self.url = f"http://127.0.0.1:{self.ports['s3.port']}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log: IO[bytes] = (folder / "weed.log").open("ab")

    def start(self) -> None:
        arguments = [f"-{name}={port}" for name, port in self.ports.items()]
        self.process = subprocess.Popen(
            [WEED, "mini", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-bucket=eyas",
             "-admin.ui=false", "-master.telemetry=false", *arguments],
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        store, deadline = open_store("s3://eyas/ready"), time.monotonic() + 60
        while True:
            try:
                store.put_blocking("ready", b"")
            except EyasError:
                assert time.monotonic() < deadline, (self.folder / "weed.log").read_text()
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
            self.process = None


def free_ports(count: int) -> list[int]:
    """Ports whose gRPC neighbours, 10,000 higher, are free as well."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(20_000, 45_000)
            try:
                for number in (port, port + 10_000):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            found.append(port)
    return found


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    server = Weed(tmp_path_factory.mktemp("weed"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "eyas")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "only-for-tests")
        patch.setenv("AWS_REGION", "us-east-1")
        server.start()
        yield server
        server.stop()
    server.log.close()


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path)
    request.getfixturevalue("weed")
    return f"s3://eyas/{tmp_path.name}"


@contextlib.contextmanager
def writing(uri: str, nonce: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, uri, nonce], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """So many lines, or those until the process ends."""
    assert process.stdout
    return [line.strip() for line, _ in zip(process.stdout, range(count), strict=False)]


async def check(uri: str) -> None:
    parts = [part async for part in Log(open_store(uri), "run/generations", ".json", JsonFormat()).catch_up()]
    assert [part.number for part in parts] == list(range(len(parts)))
    assert sorted(row for part in parts for row in part.value["rows"]) == list(range(ROWS))
    writers = [(part.epoch, part.nonce) for part in parts]
    assert writers == sorted(writers)


async def test_killed_writers_leave_no_row_twice_and_no_gap(uri: str):
    rng = random.Random(7)
    for life in range(4):
        with contextlib.ExitStack() as stack:
            pair = [stack.enter_context(writing(uri, f"{life}{side}")) for side in "ab"]
            for process in pair:
                lines(process, rng.randrange(5))
                process.send_signal(signal.SIGKILL)
    with writing(uri, "last") as process:
        assert set(lines(process, 1000)) <= {"step"}
        assert process.wait() == 0
    await check(uri)


async def test_a_writer_outlasts_a_server_that_is_away(weed: Weed, tmp_path: Path):
    uri = f"s3://eyas/{tmp_path.name}"
    with writing(uri, "a") as process:
        assert lines(process, 3) == ["step"] * 3
        weed.stop()
        said = ""
        while said != "away":
            (said,) = lines(process, 1)
        weed.start()
        assert set(lines(process, 1000)) <= {"step", "away"}
        assert process.wait() == 0
    await check(uri)


async def test_s3_keeps_the_promises_of_the_store(weed: Weed, tmp_path: Path):
    store = open_store(f"s3://eyas/{tmp_path.name}")
    await store.create("a/1", b"one")
    with pytest.raises(AlreadyExistsError):
        await store.create("a/1", b"two")
    big = os.urandom(12 << 20)
    await store.put("a/big", big)
    assert await store.get_range("a/big", 7 << 20, 100) == big[7 << 20 : (7 << 20) + 100]
    assert (await store.head("a/big")).size == len(big)
    for number in range(12):
        await store.put(f"p/{number:06d}.json", json.dumps(number).encode())
    assert [info.key async for info in store.list("p", after="p/000009.json")] == ["p/000010.json", "p/000011.json"]
    assert await store.folders() == ("a", "p")
    await store.delete("a/1")
    with pytest.raises(NotFoundError):
        await store.head("a/1")
