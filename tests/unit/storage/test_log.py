"""The log under lost replies, several writers, and crashes between any two steps.

Writers run as tasks whose every request to storage waits at a gate. The test opens one gate at a time, in an order that
hypothesis chooses, and decides what becomes of the request: done, done with its reply lost, lost, or late (done at a
moment when the writer has long given it up).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from eyas.errors import AlreadyExistsError, DataError, ReplacedError, UnavailableError
from eyas.storage.log import Log, Part
from eyas.storage.objects import ObjectInfo, ObjectStore, open_store
from eyas.storage.tables import REJECTED, JsonFormat

ROWS = range(12)


@dataclass
class Request:
    writer: str
    writes: bool
    perform: Callable[[], Awaitable[Any]]
    reply: asyncio.Future[Any]


@dataclass
class World:
    """What lies between the writers and the real store."""

    store: ObjectStore
    requests: list[Request] = field(default_factory=list)
    late: list[Request] = field(default_factory=list)

    async def send(self, writer: str, perform: Callable[[], Awaitable[Any]], *, writes: bool = False) -> Any:
        request = Request(writer, writes, perform, asyncio.get_running_loop().create_future())
        self.requests.append(request)
        return await request.reply

    async def answer(self, request: Request, fate: str) -> None:
        self.requests.remove(request)
        result: Any = None
        failure: Exception | None = None
        if fate == "late" and request.writes:
            self.late.append(request)
        elif fate != "lost":
            try:
                result = await request.perform()
            except AlreadyExistsError as error:
                failure = error
        if request.reply.cancelled():
            return
        if fate != "done":
            request.reply.set_exception(UnavailableError(fate))
        elif failure:
            request.reply.set_exception(failure)
        else:
            request.reply.set_result(result)

    async def arrive(self, request: Request) -> None:
        self.late.remove(request)
        try:
            await request.perform()
        except AlreadyExistsError:
            return


class GatedStore(ObjectStore):
    """One writer's way to the world's store."""

    def __init__(self, world: World, writer: str) -> None:
        super().__init__(None, "world")
        self.world, self.writer = world, writer

    async def get(self, key: str) -> bytes:
        return await self.world.send(self.writer, lambda: self.world.store.get(key))

    async def create(self, key: str, data: bytes) -> None:
        await self.world.send(self.writer, lambda: self.world.store.create(key, data), writes=True)

    async def list(self, prefix: str, after: str | None = None) -> AsyncIterator[ObjectInfo]:
        async def collect() -> Any:
            return [info async for info in self.world.store.list(prefix, after)]

        for info in await self.world.send(self.writer, collect):
            yield info


def open_log(store: ObjectStore, nonce: str = "") -> Log[dict[str, Any]]:
    return Log(store, "run/generations", ".json", JsonFormat(), 0, nonce)


async def again(operation: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await operation()
        except UnavailableError:
            continue


async def write(store: ObjectStore, nonce: str, batch_size: Callable[[], int]) -> str:
    """A dispatcher in small: reads what is done, then appends the rest until all is done or it is replaced."""
    log = open_log(store, nonce)
    todo = list(ROWS)

    async def absorb() -> None:
        async for part in log.catch_up():
            drop(part)

    def drop(part: Part[dict[str, Any]]) -> None:
        for row in part.value["rows"]:
            if row in todo:
                todo.remove(row)

    await again(absorb)
    log.epoch = log.newest[0] + 1
    while todo:
        size = batch_size()
        try:
            part = await log.append({"rows": todo[:size]})
        except UnavailableError:
            continue
        except ReplacedError:
            return "replaced"
        if part is None:
            del todo[:size]
        else:
            drop(part)
    return "done"


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def live(store: ObjectStore, data: st.DataObject) -> None:
    """Up to three writers at once, some of which crash and are started again; then one that ends the work."""
    world = World(store)
    nonces = iter(data.draw(st.permutations([f"{number:02d}" for number in range(40)])))
    writers: dict[str, asyncio.Task[str]] = {}

    def start() -> None:
        nonce = next(nonces)
        writers[nonce] = asyncio.create_task(
            write(GatedStore(world, nonce), nonce, lambda: data.draw(st.integers(1, 3), label="rows"))
        )

    start()
    for _ in range(data.draw(st.integers(5, 40), label="steps")):
        await settle()
        running = [nonce for nonce, task in writers.items() if not task.done()]
        choices = ["start"] * (len(running) < 3) + ["crash"] * bool(running) + ["arrive"] * bool(world.late)
        step = data.draw(st.sampled_from(["answer"] * 8 * bool(world.requests) + choices), label="step")
        if step == "start":
            start()
        elif step == "crash":
            writers[data.draw(st.sampled_from(running), label="who")].cancel()
        elif step == "arrive":
            await world.arrive(data.draw(st.sampled_from(world.late)))
        else:
            request = data.draw(st.sampled_from(world.requests))
            fates = ["done"] * 4 + ["reply lost", "lost", "late"]
            await world.answer(request, data.draw(st.sampled_from(fates), label=f"fate of {request.writer}"))
    for task in writers.values():
        task.cancel()
    ended = await asyncio.gather(*writers.values(), return_exceptions=True)
    assert all(end in ("done", "replaced") or isinstance(end, asyncio.CancelledError) for end in ended), ended
    for request in list(world.late):
        await world.arrive(request)
    assert await write(store, "last", lambda: 5) == "done"
    await check(store)


async def check(store: ObjectStore) -> None:
    parts = [part async for part in open_log(store).catch_up()]
    assert [part.number for part in parts] == list(range(len(parts)))
    assert sorted(row for part in parts for row in part.value["rows"]) == list(ROWS)
    writers = [(part.epoch, part.nonce) for part in parts]
    assert writers == sorted(writers), "an older writer wrote after a newer one"


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_never_a_row_twice_and_never_a_gap_in_memory(data):
    asyncio.run(live(open_store("memory:///"), data))


@settings(max_examples=15, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_never_a_row_twice_and_never_a_gap_in_a_folder(data, tmp_path: Path):
    asyncio.run(live(open_store(str(tmp_path / uuid4().hex)), data))


@settings(max_examples=4, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_never_a_row_twice_and_never_a_gap_on_s3(data, s3_uri: str):
    asyncio.run(live(open_store(f"{s3_uri}/{uuid4().hex}"), data))


@pytest.mark.parametrize("kind", ["folder", "s3"])
async def test_writers_that_really_run_at_once_agree(kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    uri = str(tmp_path) if kind == "folder" else request.getfixturevalue("s3_uri")
    ends = await asyncio.gather(*(write(open_store(uri), f"writer {n}", lambda: 2) for n in range(4)))
    assert "done" in ends
    await check(open_store(uri))


async def claim(store: ObjectStore, nonce: str) -> Log[dict[str, Any]]:
    log = open_log(store, nonce)
    async for _ in log.catch_up():
        pass
    log.epoch = log.newest[0] + 1
    return log


class Unlucky(ObjectStore):
    """Loses the reply of the next create."""

    lose = True

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        if self.lose:
            self.lose = False
            raise UnavailableError("no reply")


async def test_a_lost_reply_is_a_success_when_the_same_is_asked_again():
    store = Unlucky(MemoryStore(), "memory:///")
    log = await claim(store, "a")
    with pytest.raises(UnavailableError):
        await log.append({"rows": [0]})
    assert await log.append({"rows": [0]}) is None
    assert await log.append({"rows": [1]}) is None
    assert [part.value["rows"] async for part in open_log(store).catch_up()] == [[0], [1]]


async def test_a_lost_reply_of_other_rows_is_handed_back():
    store = Unlucky(MemoryStore(), "memory:///")
    log = await claim(store, "a")
    with pytest.raises(UnavailableError):
        await log.append({"rows": [0]})
    assert await log.append({"rows": [0, 1]}) == Part(0, 1, "a", {"rows": [0]})
    assert await log.append({"rows": [1]}) is None


async def test_a_replaced_writer_stops_and_writes_nothing():
    store = open_store("memory:///")
    old = await claim(store, "old")
    assert await old.append({"rows": [0]}) is None
    new = await claim(store, "new")
    assert await new.append({"rows": [1]}) is None
    for _ in range(2):
        with pytest.raises(ReplacedError, match="epoch 2"):
            await old.append({"rows": [2]})
    assert [part.value["rows"] async for part in open_log(store).catch_up()] == [[0], [1]]
    assert await new.append({"rows": [2]}) is None


async def test_a_newer_writer_absorbs_what_an_older_one_wrote_meanwhile():
    store = open_store("memory:///")
    old, new = await claim(store, "old"), await claim(store, "new")
    new.epoch = 2
    assert await old.append({"rows": [0]}) is None
    part = await new.append({"rows": [0, 1]})
    assert part == Part(0, 1, "old", {"rows": [0]})
    assert await new.append({"rows": [1]}) is None


async def test_of_two_writers_with_one_epoch_the_nonce_decides():
    store = open_store("memory:///")
    low, high = await claim(store, "a"), await claim(store, "b")
    assert await low.append({"rows": [0]}) is None
    assert (await high.append({"rows": [1]})).nonce == "a"
    assert await high.append({"rows": [1]}) is None
    with pytest.raises(ReplacedError):
        await low.append({"rows": [2]})


async def test_a_reader_cannot_append_to_a_log_that_has_a_writer():
    store = open_store("memory:///")
    await (await claim(store, "a")).append({"rows": [0]})
    reader = open_log(store, "reader")
    with pytest.raises(ReplacedError):
        await reader.append({"rows": [1]})


async def test_a_gap_is_an_error_that_names_the_part(tmp_path: Path):
    store = open_store(str(tmp_path))
    log = await claim(store, "a")
    for row in range(3):
        await log.append({"rows": [row]})
    await store.delete(log.key(1))
    with pytest.raises(DataError, match=r"run/generations/000001\.json is missing"):
        _ = [part async for part in open_log(store).catch_up()]


async def test_a_damaged_part_is_an_error_that_names_it(tmp_path: Path):
    store = open_store(str(tmp_path))
    await store.put("run/failures/000000.parquet", b"half of a")
    with pytest.raises(DataError, match="run/failures/000000"):
        _ = [part async for part in Log(store, "run/failures", ".parquet", REJECTED).catch_up()]


async def test_other_files_in_the_folder_are_left_alone(tmp_path: Path):
    store = open_store(str(tmp_path))
    log = await claim(store, "a")
    await log.append({"rows": [0]})
    for name in ("notes.txt", "000001.parquet", "1.json", "000005.json.bak"):
        await store.put(f"run/generations/{name}", b"{}")
    assert len([part async for part in open_log(store).catch_up()]) == 1
    assert await log.append({"rows": [1]}) is None


async def test_catching_up_again_yields_only_what_is_new():
    store = open_store("memory:///")
    writer, reader = await claim(store, "a"), open_log(store)
    for row in range(40):
        await writer.append({"rows": [row]})
    assert [part.number async for part in reader.catch_up()] == list(range(40))
    assert [part.number async for part in reader.catch_up()] == []
    await writer.append({"rows": [40]})
    assert [part.number async for part in reader.catch_up()] == [40]
    assert reader.newest == (1, "a")
