"""Uploads: create-only, bounded, tried again for a while, and never an exception for the engine."""

import threading

import pytest

from eyas.errors import AlreadyExistsError, StorageFullError, UnavailableError
from eyas.storage.objects import open_store
from eyas.vllm.connector.plan import Save
from eyas.vllm.connector.uploads import Tally, Uploads
from eyas.vllm.connector.work import Work


def make(store, *, most=100, seconds=60.0, threads=2):
    tally = Tally()
    return Uploads(store, tally, threads=threads, bytes_in_flight=most, seconds=seconds), tally


def upload(store, data=b"abc", size=None, **settings):
    uploads, tally = make(store, **settings)
    uploads.start("a/b", len(data) if size is None else size, lambda: memoryview(data))
    uploads.close(10)
    return tally.take()


def test_written_once():
    store = open_store("memory:///")
    assert upload(store) == {"written": 1, "bytes": 3}
    assert store.get_blocking("a/b") == b"abc"
    assert upload(store) == {"existing": 1}


def test_an_object_of_another_size_is_never_replaced(caplog):
    store = open_store("memory:///")
    store.create_blocking("a/b", b"older")
    assert upload(store) == {"failed": 1}
    assert store.get_blocking("a/b") == b"older"
    assert "5 bytes instead of 3" in caplog.text


class Storage:
    """Raises what it is given, one error a call, then accepts."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.written = []

    def create_blocking(self, key, data):
        if self.errors:
            raise self.errors.pop(0)
        self.written.append(bytes(data))


def test_an_outage_is_waited_out():
    store = Storage(UnavailableError("away"))
    assert upload(store) == {"written": 1, "bytes": 3}
    assert store.written == [b"abc"]


def test_an_outage_that_lasts_is_counted(caplog):
    assert upload(Storage(*[UnavailableError("away")] * 9), seconds=0.1) == {"failed": 1}
    assert "away" in caplog.text


def test_a_shutdown_ends_the_waiting():
    uploads, tally = make(Storage(*[UnavailableError("away")] * 99))
    uploads.start("a/b", 3, lambda: memoryview(b"abc"))
    uploads.close(0.05)
    uploads.close(5)
    assert tally.take() == {"failed": 1}


@pytest.mark.parametrize("error", [StorageFullError("full"), RuntimeError("anything")])
def test_other_errors_are_counted_at_once(error, caplog):
    assert upload(Storage(error)) == {"failed": 1}
    assert "are lost" in caplog.text


def test_memory_is_bounded_and_given_back():
    uploads, _ = make(Storage(), most=10)
    assert uploads.has_room(1000)
    hold = threading.Event()

    def data():
        hold.wait(5)
        return memoryview(b"abcdef")

    uploads.start("a/b", 6, data)
    assert uploads.has_room(4)
    assert not uploads.has_room(5)
    hold.set()
    uploads.close(5)
    assert uploads.has_room(1000)


class Copy:
    def __init__(self):
        self.ready = threading.Event()

    def done(self):
        return self.ready.is_set()

    def bytes(self):
        self.ready.wait(5)
        return memoryview(b"abcdef")


class Copier:
    """Copies of six bytes that end when they are told to."""

    def __init__(self):
        self.copies = {}

    def size(self, save):
        return 6

    def start(self, save):
        if save.request_id == "broken":
            raise RuntimeError("no memory")
        return self.copies.setdefault(save.request_id, Copy())


def save(name):
    return Save(name, f"a/{name}", [1], [1])


def test_each_request_is_reported_once_when_its_copy_is_done():
    copier = Copier()
    uploads, tally = make(Storage())
    work = Work(copier, uploads, tally)
    assert work.step([save("one"), save("two")], idle=False) == set()
    copier.copies["two"].ready.set()
    assert work.step([], idle=False) == {"two"}
    copier.copies["one"].ready.set()
    assert work.step([], idle=True) == {"one"}
    assert work.step([], idle=True) == set()
    work.close(5)
    assert tally.take() == {"written": 2, "bytes": 12}


def test_a_copy_that_fails_gives_its_blocks_back(caplog):
    uploads, tally = make(Storage())
    work = Work(Copier(), uploads, tally)
    assert work.step([save("broken")], idle=False) == {"broken"}
    assert tally.take() == {"failed": 1}
    assert "no memory" in caplog.text


def test_copies_wait_for_memory_and_are_finished_at_shutdown():
    copier, store = Copier(), Storage()
    uploads, tally = make(store, most=6)
    work = Work(copier, uploads, tally)
    work.step([save("one"), save("two")], idle=False)
    assert list(copier.copies) == ["one"]
    copier.copies["one"].ready.set()
    copier.copies["two"] = Copy()
    copier.copies["two"].ready.set()
    work.close(5)
    assert tally.take() == {"written": 2, "bytes": 12}
    assert uploads.has_room(6)


def test_work_that_never_ends_does_not_stop_a_shutdown(caplog):
    copier = Copier()
    uploads, tally = make(Storage(), most=6)
    work = Work(copier, uploads, tally)
    work.step([save("one"), save("two")], idle=False)
    work.close(0.02)
    assert "a/two are lost" in caplog.text
    copier.copies["one"].ready.set()


def test_already_exists_needs_the_right_size_also_after_an_outage():
    class Existing(Storage):
        def head_blocking(self, key):
            return type("Info", (), {"size": 3})

    store = Existing(UnavailableError("reply lost"), AlreadyExistsError("there"))
    assert upload(store) == {"existing": 1}
