"""The writer: batches, outages of any length, other writers."""

import asyncio
import contextlib

import pytest

from eyas.dispatcher import writer as writers
from eyas.dispatcher.writer import Writer
from eyas.errors import ReplacedError, StorageFullError, UnavailableError
from eyas.storage.log import Part


class FakeLog:
    def __init__(self):
        self.parts = []
        self.replies = []
        self.next_number = 0

    async def append(self, value):
        reply = self.replies.pop(0) if self.replies else None
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            self.parts.append(list(value))
        return reply


@pytest.fixture
async def desk(monkeypatch):
    monkeypatch.setattr(writers, "_FIRST_PAUSE", 0.0)

    class Desk:
        def __init__(self):
            self.log, self.dropped, self.durable, self.said, self.now = FakeLog(), set(), [], [], 0.0

        async def build(self, entries):
            rows = [entry for entry in entries if entry not in self.dropped]
            return rows or None

    desk = Desk()
    desk.writer = Writer(
        desk.log,
        rows=3,
        seconds=30.0,
        size=lambda entry: 10,
        build=desk.build,
        absorbed=lambda part: desk.dropped.update(part.value),
        committed=desk.durable.extend,
        trouble=lambda sentence, fatal: desk.said.append((sentence, fatal)),
        clock=lambda: desk.now,
    )
    desk.task = asyncio.create_task(desk.writer.run())
    yield desk
    desk.task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ReplacedError):
        await desk.task


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


async def test_rows_are_written_in_batches_and_the_rest_on_request(desk):
    for entry in range(7):
        desk.writer.add(entry)
    await settle()
    assert desk.log.parts == [[0, 1, 2], [3, 4, 5]]
    assert (len(desk.writer), desk.writer.bytes) == (1, 10)
    await desk.writer.flushed()
    assert desk.log.parts[-1] == [6]
    assert desk.durable == list(range(7))
    assert (desk.writer.bytes, desk.writer.oldest) == (0, None)


async def test_an_outage_is_waited_out_and_told(desk):
    desk.log.replies = [UnavailableError("away")] * 3 + [StorageFullError("no room")]
    desk.writer.add(1)
    await desk.writer.flushed()
    assert desk.log.parts == [[1]]
    assert desk.said == [("away", False)] * 3 + [("no room", True), ("", False)]


async def test_what_another_writer_stored_is_left_out(desk):
    desk.log.replies = [Part(0, 1, "x", [1, 2])]
    for entry in (1, 2, 3):
        desk.writer.add(entry)
    await desk.writer.flushed()
    assert desk.log.parts == [[3]]
    desk.log.replies = [Part(2, 1, "x", [4])]
    desk.writer.add(4)
    await desk.writer.flushed()
    assert desk.log.parts == [[3]], "nothing is left to write"


async def test_a_newer_writer_ends_it(desk):
    desk.log.replies = [ReplacedError("taken over")]
    desk.writer.add(1)
    desk.writer.hurry()
    with pytest.raises(ReplacedError):
        await desk.task
