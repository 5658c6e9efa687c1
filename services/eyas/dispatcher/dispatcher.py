"""The dispatcher: all runs of a storage, one of which is worked on at a time, oldest first."""

from __future__ import annotations  # the stubs of gRPC know more types than its modules

import asyncio
from collections.abc import AsyncIterator

import structlog

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher import importing
from eyas.dispatcher.context import Context, patient
from eyas.dispatcher.core.course import STAGES
from eyas.dispatcher.gauges import Gauges
from eyas.dispatcher.launching import Launching
from eyas.dispatcher.run import Run
from eyas.dispatcher.streams import Streams
from eyas.errors import DataError, InputError, NotFoundError
from eyas.rpc.errors import translated
from eyas.run.v1 import run_pb2
from eyas.storage.objects import outlast
from eyas.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc

_TICK_SECONDS = 0.25
_DESCRIBE_SECONDS = 30.0
_CLOSE_SECONDS = 15.0
_log = structlog.get_logger()


class Dispatcher:
    """Owns the runs. `fatal` is set with the error that must end the process."""

    def __init__(
        self, context: Context, streams: Streams, runs: dict[str, Run], tokenizer: tokenizer_pb2_grpc.TokenizerAsyncStub
    ) -> None:
        self.runs = runs
        self.streams = streams
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.launching = Launching(context.now, self._process_news)
        self.ready = False
        self._context = context
        self._tokenizer = tokenizer
        self._gauges = Gauges(context.metrics)
        self._current: Run | None = None
        self._pulse_at = 0.0
        self._creating = asyncio.Lock()

    # Life.

    async def open(self) -> None:
        """Loads all runs, or the one of the settings, and goes on with those that are not finished."""
        report = patient(lambda sentence: _log.warning("storage", reason=sentence))
        only = self._context.settings.run
        names = (only,) if only else await outlast(self._context.store.folders, report=report)
        for name in names:
            try:
                await outlast(lambda name=name: self._load(name), report=report)  # type: ignore[misc]
            except NotFoundError:
                continue  # an import that did not come to its end, or no run
            except (InputError, DataError) as error:
                _log.error("a run cannot be read", run=name, reason=str(error))
        self.ready = True
        for run in sorted(self.runs.values(), key=lambda run: run.created):
            if not run.course.finished:
                run.start()

    async def run(self) -> None:
        """Passes the time until it is cancelled."""
        while True:
            now = self._context.now()
            pulse = now >= self._pulse_at
            if pulse:
                self._pulse_at = now + self._context.settings.heartbeat_seconds
            self.streams.tick(pulse)
            self._current = self._choose()
            for run in list(self.runs.values()):
                run.tick(run is self._current)
            if not self._context.ending:
                self.launching.want(self._current.wanted() if self._current else [])
            self._gauges.update(self._current)
            await asyncio.sleep(_TICK_SECONDS)

    async def close(self) -> None:
        """Hands out nothing more, makes durable what is here, writes the hints."""
        self._context.ending = True
        await asyncio.gather(*(run.close(_CLOSE_SECONDS) for run in self.runs.values()))

    def _choose(self) -> Run | None:
        """The run to work on: as before while it can be; else the oldest that can."""
        current = self._current
        if current is not None and current.runnable:
            return current
        for run in sorted(self.runs.values(), key=lambda run: run.created):
            if run.runnable:
                return run
        return current if current is not None and not current.course.finished else None

    async def _load(self, name: str) -> Run:
        run = await Run.load(name, self._context, self.launching, self.fatal, self.describe)
        self.runs[name] = run
        return run

    def _process_news(self) -> None:
        for run in self.runs.values():
            run.process_news()

    # What people ask.

    def find(self, name: str) -> Run:
        """A run by name. Raises NotFoundError."""
        if name not in self.runs:
            known = ", ".join(sorted(self.runs)) or "none"
            raise NotFoundError(f"there is no run {name} in {self._context.store.uri}; there are: {known}")
        return self.runs[name]

    def progress(self, run: Run) -> run_pb2.Progress:
        """Where a run stands."""
        return run.progress(len(self._context.leases.generators))

    async def create(
        self, header: pb.CreateRunHeader, requests: AsyncIterator[pb.CreateRunRequest]
    ) -> tuple[Run, bool]:
        """Creates a run, or finds the same one. Raises InputError for another one of that name."""
        name = header.spec.name
        async with self._creating:
            original = await importing.existing(self._context, name)
            if original is None:
                await importing.create(self._context, await self.describe(), header, requests)
            run = self.runs.get(name) or await self._load(name)
            if original is not None:
                importing.compare(header.spec, original, run.course.spec)
            if not run.course.finished:
                run.start()
        _log.info("run", run=name, created=original is None, stage=STAGES[run.course.stage])
        return run, original is None

    def report(self, request: pb.ReportJobRequest) -> None:
        """A job says how far it is."""
        self.find(request.run).report(request.progress)

    async def describe(self) -> tokenizer_pb2.DescribeResponse:
        """What the tokenizer is."""
        with translated("tokenizer"):
            return await self._tokenizer.Describe(
                tokenizer_pb2.DescribeRequest(), timeout=_DESCRIBE_SECONDS, wait_for_ready=True
            )
