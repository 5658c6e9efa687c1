"""The dispatcher's side of Launch: says which processes there should be, hears what became of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher.core.processes import Process, ProcessState
from eyas.run.v1 import run_pb2

_SETTLE_SECONDS = 0.5
"""A launcher that connects first says what runs already: nothing is wanted of it before that."""

_STATES = {
    pb.PROCESS_STATE_STARTING: ProcessState.STARTING,
    pb.PROCESS_STATE_READY: ProcessState.READY,
    pb.PROCESS_STATE_EXITED: ProcessState.EXITED,
}
_log = structlog.get_logger()


@dataclass(frozen=True)
class Wanted:
    """A process that there should be."""

    process: Process
    role: "pb.Role.ValueType"
    spec: run_pb2.RunSpec

    def message(self) -> pb.Process:
        """As it goes to the launcher."""
        return pb.Process(name=self.process.name, role=self.role, spec=self.spec, generation=self.process.generation)


@dataclass(eq=False)
class _Launcher:
    ready_at: float
    outbox: "asyncio.Queue[pb.LaunchResponse]" = field(default_factory=asyncio.Queue)
    sent: bytes | None = None


class Launching:
    """All processes by name, and the launchers that are connected. `changed` is called at news."""

    def __init__(self, now: Callable[[], float], changed: Callable[[], None]) -> None:
        self._now = now
        self._changed = changed
        self._processes: dict[str, Process] = {}
        self._wanted: dict[str, Wanted] = {}
        self._launchers: set[_Launcher] = set()

    @property
    def connected(self) -> bool:
        """Whether there is a launcher."""
        return bool(self._launchers)

    def process(self, name: str) -> Process:
        """A process by name."""
        return self._processes.setdefault(name, Process(name))

    def want(self, wanted: Sequence[Wanted]) -> None:
        """Says which processes there should be."""
        now = self._now()
        names = {want.process.name for want in wanted}
        for name in self._wanted.keys() - names:
            process = self.process(name)
            process.generation += 1  # what is still heard of it is of no interest
            process.state, process.url = ProcessState.UNKNOWN, ""
        for want in wanted:
            want.process.again(now)
        self._wanted = {want.process.name: want for want in wanted}
        response = pb.LaunchResponse(processes=[self._wanted[name].message() for name in sorted(self._wanted)])
        data = response.SerializeToString(deterministic=True)
        for launcher in self._launchers:
            if launcher.ready_at <= now and launcher.sent != data:
                launcher.sent = data
                launcher.outbox.put_nowait(response)

    async def serve(self, requests: AsyncIterator[pb.LaunchRequest]) -> AsyncIterator[pb.LaunchResponse]:
        """One launcher, until it leaves."""
        launcher = _Launcher(self._now() + _SETTLE_SECONDS)
        self._launchers.add(launcher)
        reader = asyncio.create_task(self._read(requests, launcher))
        try:
            while not reader.done():
                getter = asyncio.create_task(launcher.outbox.get())
                await asyncio.wait({reader, getter}, return_when=asyncio.FIRST_COMPLETED)
                if getter.done():
                    yield getter.result()
                else:
                    getter.cancel()
        finally:
            self._launchers.discard(launcher)
            reader.cancel()

    async def _read(self, requests: AsyncIterator[pb.LaunchRequest], launcher: _Launcher) -> None:
        async for request in requests:
            if request.HasField("hello"):
                _log.info("launcher connected", launcher=request.hello.launcher)
                launcher.ready_at = self._now() + _SETTLE_SECONDS
                continue
            status = request.status
            state = _STATES.get(status.state)
            if state is None:
                continue
            news = self.process(status.name).told(
                status.generation, state, status.url.rstrip("/"), status.exit_code, status.detail, self._now()
            )
            if news:
                _log.info("process", name=status.name, state=state.value, code=status.exit_code)
                self._changed()
