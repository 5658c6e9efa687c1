"""Child processes, services and the launcher, with small real processes."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from eyas.cli.local import launcher as launching
from eyas.cli.local import service as services
from eyas.cli.local.child import Child
from eyas.cli.local.claim import attached, claimed
from eyas.cli.local.service import last_word, running, wait_seconds
from eyas.cli.place import Place
from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.errors import EyasError, InputError, ServiceError
from eyas.rpc import serving
from eyas.rpc.channels import make_server, open_channel

FOREVER = "import signal; signal.pause()"


def python(code):
    return (sys.executable, "-S", "-c", code)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.01)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


async def test_a_child_gets_its_settings_and_its_last_lines_are_kept(tmp_path):
    log = tmp_path / "log"
    log.write_text("of an earlier life\n")
    code = "import os; print('hello'); print(os.environ['EYAS_X']); raise SystemExit(3)"
    child = await Child.start(python(code), {"EYAS_X": "given"}, log, 5)
    assert await child.wait() == 3
    assert child.tail() == "hello\ngiven"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGABRT, -6)])
async def test_a_death_by_signal_is_negative(tmp_path, number, code):
    child = await Child.start(python(f"import os; os.kill(os.getpid(), {int(number)})"), {}, tmp_path / "log", 5)
    assert await child.wait() == code


async def test_a_child_is_asked_to_end_and_then_made_to(tmp_path):
    polite = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"
    deaf = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True: signal.pause()"
    for code, status in ((polite, 0), (deaf, -9)):
        child = await Child.start(python(code), {}, tmp_path / str(status), 0.2)
        await until(lambda child=child: child.tail() == "up")
        await child.stop()
        assert await child.wait() == status


async def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written"):
        await Child.start(python(""), {}, tmp_path / "missing" / "log", 5)


async def test_a_service_that_dies_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "wait_seconds", lambda deaths: 0.01)
    code = f"import os; print('pid', os.getpid(), flush=True); {FOREVER}"
    log = tmp_path / "log"
    async with running("thing", python(code), {}, log, 1):
        await until(lambda: log.exists() and log.read_text().count("pid") == 1)
        os.kill(int(log.read_text().split()[1]), signal.SIGKILL)
        await until(lambda: log.read_text().count("pid") == 2)
        second = int(log.read_text().split()[3])
        assert alive(second)
    assert not alive(second)


async def test_a_service_that_ends_with_a_sentence_is_not(tmp_path):
    code = "import sys; print('error: the port is taken', file=sys.stderr); sys.exit(1)"
    async with running("thing", python(code), {}, tmp_path / "log", 1) as service:
        with pytest.raises(EyasError, match=r"^the port is taken$"):
            await asyncio.wait_for(asyncio.shield(service.ended), 20)


async def test_a_service_that_never_lives_is_given_up_with_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "wait_seconds", lambda deaths: 0.0)
    async with running("thing", python("raise ValueError('no luck')"), {}, tmp_path / "log", 1) as service:
        with pytest.raises(ServiceError, match=r"the thing died 5 times .*status 1.*ValueError: no luck"):
            await asyncio.wait_for(asyncio.shield(service.ended), 20)


def test_waits_grow_and_are_bounded():
    waits = [wait_seconds(deaths) for deaths in range(1, 12)]
    assert waits == sorted(waits)
    assert waits[0] < 1
    assert waits[-1] == 10


@pytest.mark.parametrize(
    ("tail", "word"),
    [
        ("a\nerror: it is so", "it is so"),
        ("error: before\nafter", None),
        ("", None),
        ("Traceback\nValueError: x", None),
    ],
)
def test_the_last_word_of_a_process(tail, word):
    assert last_word(tail) == word


def test_one_process_works_on_a_run(tmp_path):
    place = Place.of(f"{tmp_path}/demo")
    with claimed(place) as claim:
        assert (claim.folder / "token").stat().st_mode & 0o777 == 0o600
        with pytest.raises(InputError, match=r"another eyas works on .*eyas watch"), claimed(place):
            pass
    with claimed(place) as again:
        assert again.token != claim.token


async def test_nobody_to_attach_to_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"nothing works on .*eyas run --output"):
        async with attached(Place.of(f"{tmp_path}/demo")):
            pass


class Dispatcher(dispatch_pb2_grpc.DispatchServicer):
    """Says what it is told to, and remembers what it hears."""

    def __init__(self):
        self.wanted = asyncio.Queue()
        self.heard = []

    async def Launch(self, request_iterator, context):
        self.heard.append("hello")
        hearing = asyncio.create_task(self._hear(request_iterator))
        try:
            while (processes := await self.wanted.get()) is not None:
                yield pb.LaunchResponse(processes=processes)
        finally:
            hearing.cancel()

    async def _hear(self, request_iterator):
        async for request in request_iterator:
            if request.HasField("status"):
                status = request.status
                state = pb.ProcessState.Name(status.state).removeprefix("PROCESS_STATE_")
                self.heard.append((status.name, status.generation, state, status.exit_code))

    def states(self, name, generation=0):
        return [entry[2] for entry in self.heard if entry[:2] == (name, generation)]


@pytest.fixture
async def dispatcher(tmp_path):
    servicer, server = Dispatcher(), make_server()
    dispatch_pb2_grpc.add_DispatchServicer_to_server(servicer, server)
    async with serving.started(server, f"unix:{tmp_path}/d.sock", [], grace=0):
        yield servicer


@pytest.fixture
async def launcher(tmp_path, dispatcher, monkeypatch):
    """A launcher whose trainer waits for ever, and whose evaluator fails."""
    (tmp_path / "waits.py").write_text(f"import os; print('pid', os.getpid(), flush=True); {FOREVER}")
    (tmp_path / "fails.py").write_text("print('the last line'); raise SystemExit(4)")
    monkeypatch.setattr(launching, "_MODULES", {pb.ROLE_TRAINER: "waits", pb.ROLE_EVALUATOR: "fails"})
    monkeypatch.setattr(launching, "_RECONNECT_SECONDS", 0.01)
    environment = {"PYTHONPATH": str(tmp_path)}
    subject = launching.Launcher("/out", tmp_path / "python", tmp_path, environment)
    async with open_channel(f"unix:{tmp_path}/d.sock") as channel:
        task = asyncio.create_task(subject.run(dispatch_pb2_grpc.DispatchStub(channel)))
        yield subject
        task.cancel()
        await asyncio.wait([task])


def trainer(generation=0):
    return pb.Process(name="trainer-a", role=pb.ROLE_TRAINER, generation=generation)


async def test_what_is_wanted_runs_until_it_is_not(dispatcher, launcher, tmp_path):
    dispatcher.wanted.put_nowait([trainer()])
    log = tmp_path / "waits.log"
    await until(lambda: dispatcher.states("trainer-a") == ["STARTING", "READY"] and log.exists() and log.read_text())
    pid = int(log.read_text().split()[1])
    dispatcher.wanted.put_nowait([trainer()])
    dispatcher.wanted.put_nowait([])
    await until(lambda: dispatcher.states("trainer-a")[-1] == "EXITED")
    assert dispatcher.states("trainer-a") == ["STARTING", "READY", "EXITED"]
    assert not alive(pid)


async def test_an_end_is_reported_and_only_a_new_generation_starts_again(dispatcher, launcher):
    failing = pb.Process(name="evaluator-a", role=pb.ROLE_EVALUATOR, generation=1)
    dispatcher.wanted.put_nowait([failing])
    await until(lambda: dispatcher.states("evaluator-a", 1)[-1:] == ["EXITED"])
    assert dispatcher.heard[-1] == ("evaluator-a", 1, "EXITED", 4)
    dispatcher.wanted.put_nowait([failing])
    failing.generation = 2
    dispatcher.wanted.put_nowait([failing])
    await until(lambda: dispatcher.states("evaluator-a", 2)[-1:] == ["EXITED"])
    assert dispatcher.states("evaluator-a", 1) == ["STARTING", "READY", "EXITED"]


async def test_a_server_that_cannot_start_has_ended_with_the_reason(dispatcher, launcher):
    dispatcher.wanted.put_nowait([pb.Process(name="vllm-a", role=pb.ROLE_VLLM_GENERATE)])
    await until(lambda: dispatcher.states("vllm-a") == ["STARTING", "EXITED"])


async def test_processes_outlive_a_dispatcher_and_are_told_to_the_next(dispatcher, launcher, tmp_path):
    dispatcher.wanted.put_nowait([trainer()])
    await until(lambda: (tmp_path / "waits.log").exists() and (tmp_path / "waits.log").read_text())
    pid = int((tmp_path / "waits.log").read_text().split()[1])
    dispatcher.wanted.put_nowait(None)
    await until(lambda: dispatcher.heard.count("hello") == 2)
    await until(lambda: dispatcher.heard[-1] == ("trainer-a", 0, "READY", 0))
    dispatcher.wanted.put_nowait([trainer()])
    assert alive(pid)
    assert (tmp_path / "waits.log").read_text().count("pid") == 1


async def test_a_launcher_leaves_nothing_behind(dispatcher, tmp_path, launcher):
    dispatcher.wanted.put_nowait([trainer()])
    await until(lambda: (tmp_path / "waits.log").exists() and (tmp_path / "waits.log").read_text())
    pid = int((tmp_path / "waits.log").read_text().split()[1])
    launcher.kill()
    begin = time.monotonic()
    await until(lambda: not alive(pid))
    assert time.monotonic() - begin < 5
