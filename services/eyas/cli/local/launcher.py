"""The launcher of a local run: makes the processes there are those that the dispatcher wants.

It holds no opinion. The dispatcher says which processes there should be; what is there too much is ended first, then
what lacks is started, so that two stages never hold a GPU at once. A process that ended is reported, and started again
only when the dispatcher wants a further generation of it.
"""

from __future__ import annotations  # the stubs of gRPC know more types than its modules

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from grpc import aio

from eyas.cli.local.child import Child
from eyas.cli.local.service import last_word
from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.errors import EyasError
from eyas.run.v1 import run_pb2
from eyas.vllm import launch

_RECONNECT_SECONDS = 0.5
_JOB_GRACE = 60.0
"""For a checkpoint on its way."""
_MODULES = {
    pb.ROLE_EXTRACTOR: "eyas.extractor",
    pb.ROLE_TRAINER: "eyas.trainer",
    pb.ROLE_EVALUATOR: "eyas.evaluator",
}
_log = structlog.get_logger()


@dataclass
class _Process:
    wanted: pb.Process
    task: asyncio.Task[None] = field(init=False)
    status: pb.ProcessStatus = field(default_factory=pb.ProcessStatus)
    child: Child | None = None


@dataclass
class Launcher:
    """Starts and ends processes; `run` speaks with the dispatcher until it is cancelled, then ends all of them."""

    storage_uri: str
    vllm_python: Path
    logs: Path
    environment: Mapping[str, str]
    """Settings of the jobs."""
    _processes: dict[str, _Process] = field(default_factory=dict)
    _name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _report: Callable[[pb.ProcessStatus], None] = field(default=lambda _: None)

    async def run(self, stub: dispatch_pb2_grpc.DispatchAsyncStub) -> None:
        """Follows the dispatcher through its restarts. Processes go on while it is away."""
        try:
            while True:
                try:
                    await self._follow(stub)
                except aio.AioRpcError as error:
                    _log.warning("the dispatcher does not answer", code=error.code().name)
                await asyncio.sleep(_RECONNECT_SECONDS)
        finally:
            await self._end(list(self._processes))

    def kill(self) -> None:
        """SIGKILL for the jobs. Servers have a short grace of their own."""
        for process in self._processes.values():
            if process.child is not None:
                process.child.kill()

    async def _follow(self, stub: dispatch_pb2_grpc.DispatchAsyncStub) -> None:
        outbox: asyncio.Queue[pb.LaunchRequest | None] = asyncio.Queue()
        outbox.put_nowait(pb.LaunchRequest(hello=pb.LauncherHello(launcher=self._name)))
        for process in self._processes.values():
            outbox.put_nowait(pb.LaunchRequest(status=process.status))
        self._report = lambda status: outbox.put_nowait(pb.LaunchRequest(status=status))
        latest: asyncio.Queue[pb.LaunchResponse] = asyncio.Queue(maxsize=1)
        reconciling = asyncio.create_task(self._reconcile(latest))
        try:
            async for response in stub.Launch(_drain(outbox), wait_for_ready=True):
                if latest.full():
                    latest.get_nowait()
                latest.put_nowait(response)
        finally:
            self._report = lambda _: None
            outbox.put_nowait(None)
            reconciling.cancel()
            await asyncio.wait([reconciling])

    async def _reconcile(self, latest: asyncio.Queue[pb.LaunchResponse]) -> None:
        while True:
            wanted = {process.name: process for process in (await latest.get()).processes}
            await self._end([name for name, process in self._processes.items() if not _same(process, wanted.get(name))])
            for name, process in wanted.items():
                if name not in self._processes:
                    self._start(process)

    def _start(self, wanted: pb.Process) -> None:
        process = self._processes[wanted.name] = _Process(wanted)
        process.task = asyncio.create_task(self._keep(process))

    async def _end(self, names: list[str]) -> None:
        tasks = [self._processes[name].task for name in names]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for name in names:
            del self._processes[name]

    async def _keep(self, process: _Process) -> None:
        """The life of one process, from STARTING to EXITED."""
        self._say(process, state=pb.PROCESS_STATE_STARTING)
        try:
            if process.wanted.role in _MODULES:
                code, detail = await self._job(process)
            else:
                code, detail = await self._server(process)
        except EyasError as error:
            code, detail = 1, str(error)
        except asyncio.CancelledError:
            self._say(process, state=pb.PROCESS_STATE_EXITED, detail="ended as asked")
            raise
        self._say(process, state=pb.PROCESS_STATE_EXITED, exit_code=code, detail=detail)

    async def _job(self, process: _Process) -> tuple[int, str]:
        module = _MODULES[process.wanted.role]
        log = self.logs / f"{module.rpartition('.')[2]}.log"
        environment = {**self.environment, "EYAS_RUN": process.wanted.spec.name}
        child = process.child = await Child.start([sys.executable, "-m", module], environment, log, _JOB_GRACE)
        try:
            self._say(process, state=pb.PROCESS_STATE_READY)
            code = await child.wait()
        finally:
            await child.stop()
        tail = child.tail()
        return code, last_word(tail) or tail.rpartition("\n")[2]

    async def _server(self, process: _Process) -> tuple[int, str]:
        spec = process.wanted.spec
        log = self.logs / f"{_log_name(process.wanted.role)}.log"
        async with launch.VllmServer(self._command(process.wanted.role, spec), log, spec.vllm.start_seconds) as server:
            self._say(process, state=pb.PROCESS_STATE_READY, url=server.url)
            code = await server.wait()
            return code, server.reason()

    def _command(self, role: pb.Role.ValueType, spec: run_pb2.RunSpec) -> launch.Command:
        host = launch.Host.detect(self.vllm_python)
        if role == pb.ROLE_VLLM_EXTRACT:
            return launch.extracting(spec, host, self.storage_uri)
        return launch.generating(spec, host)

    def _say(self, process: _Process, **fields: object) -> None:
        wanted = process.wanted
        process.status = pb.ProcessStatus(name=wanted.name, generation=wanted.generation, **fields)  # type: ignore[arg-type]
        _log.info(
            "process", name=wanted.name, state=pb.ProcessState.Name(process.status.state), detail=process.status.detail
        )
        self._report(process.status)


def _same(process: _Process, wanted: pb.Process | None) -> bool:
    return wanted is not None and wanted.generation == process.wanted.generation


def _log_name(role: pb.Role.ValueType) -> str:
    return pb.Role.Name(role).removeprefix("ROLE_").lower().replace("_", "-")


async def _drain(outbox: asyncio.Queue[pb.LaunchRequest | None]) -> AsyncIterator[pb.LaunchRequest]:
    while (request := await outbox.get()) is not None:
        yield request
