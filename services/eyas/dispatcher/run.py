"""A run: its control log, the stage it is in, and the task that takes it from stage to stage."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import structlog
from google.protobuf import json_format

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher import fingerprint, progress, wants
from eyas.dispatcher.context import Context, patient
from eyas.dispatcher.core.course import STAGES, Course, check_set
from eyas.dispatcher.core.processes import ProcessState
from eyas.dispatcher.extracting import Extracting, complete
from eyas.dispatcher.generating import Generating
from eyas.dispatcher.jobs import JobStage, has_hash
from eyas.dispatcher.launching import Launching, Wanted
from eyas.dispatcher.stage import ItemStage
from eyas.errors import EyasError, InputError, ReplacedError, ServiceError
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log
from eyas.storage.objects import outlast
from eyas.storage.tables import JsonFormat
from eyas.tokenizer.v1 import tokenizer_pb2

_RETRY_SECONDS = 2.0
_log = structlog.get_logger()


class Run:
    """A run in storage. `fatal` gets the error that must end the process."""

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        course: Course,
        control: Log[dict[str, Any]],
        context: Context,
        launching: Launching,
        fatal: "asyncio.Future[None]",
        describe: Callable[[], Awaitable[tokenizer_pb2.DescribeResponse]],
    ) -> None:
        self.name = name
        self.layout = RunLayout(name)
        self.course = course
        self.notice = ""
        """What storage does to it; empty when nothing."""
        self.failure = ""
        """Why it does not go on, until `resume`."""
        self.failure_of_storage = ""
        """Why nothing can be written, when waiting will not help."""
        self.stage: ItemStage | JobStage | None = None
        self.job: run_pb2.JobProgress | None = None
        self._control = control
        self._context = context
        self._launching = launching
        self._fatal = fatal
        self._describe = describe
        self._lock = asyncio.Lock()
        self._resumed = asyncio.Event()
        self._pausing: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed_before = 0
        self._rate = progress.Rate()
        self._stage_began = context.now()
        self._closed_at_start = 0
        self._last = run_pb2.Progress()
        """What the last stage of items came to."""
        self.current = False

    @classmethod
    async def load(
        cls,
        name: str,
        context: Context,
        launching: Launching,
        fatal: "asyncio.Future[None]",
        describe: Callable[[], Awaitable[tokenizer_pb2.DescribeResponse]],
    ) -> "Run":
        """Reads spec and control log. Raises NotFoundError when there is no such run."""
        layout = RunLayout(name)
        course = Course(specs.from_json(await context.store.get(layout.spec)))
        control = control_log(context, layout)
        async for part in control.catch_up():
            course.apply(part.value)
        context.outbid(control)
        return cls(name, course, control, context, launching, fatal, describe)

    # What it is.

    @property
    def created(self) -> float:
        """When it was created, in Unix time."""
        return self.course.created

    @property
    def runnable(self) -> bool:
        """Whether it could be worked on."""
        return not (self.course.finished or self.course.paused or self.failure)

    @property
    def items(self) -> ItemStage | None:
        """The stage, when it has items and is open."""
        return self.stage if isinstance(self.stage, ItemStage) and self.stage.opened else None

    def server_urls(self) -> set[str]:
        """Servers launched for the stage that are ready."""
        processes = [want.process for want in self.wanted() if wants.is_server(want.role)]
        return {process.url for process in processes if process.state is ProcessState.READY and process.url}

    def wanted(self) -> list[Wanted]:
        """The processes that the stage needs. A paused run keeps its servers, but no job."""
        if self.course.finished:
            return []
        found = wants.of_stage(self.course, self.name, self._launching.process)
        return [
            want
            for want in found
            if not want.process.given_up and (self.runnable or (wants.is_server(want.role) and not self.failure))
        ]

    # Life.

    def start(self) -> None:
        """Begins or goes on."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drive())

    async def close(self, seconds: float) -> None:
        """Makes durable what is here, within the time, and ends. What is in flight stays with its generators."""
        stage = self.items
        if stage is not None:
            try:
                async with asyncio.timeout(seconds):
                    await stage.close()
            except TimeoutError:
                _log.warning("storage did not take everything in time: generators still hold it", run=self.name)
        await self._end_task()

    async def stop(self) -> None:
        """Calls back what is in flight, makes durable what is here, and ends."""
        stage = self.items
        if stage is not None:
            stage.tick(working=False)
            await stage.close()
        await self._end_task()

    async def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self.stage = None

    def tick(self, current: bool) -> None:
        """Time passes."""
        self.current = current
        stage = self.items
        if stage is None:
            return
        stage.tick(current and self.runnable)
        self._rate.add(self._context.now(), stage.work.counters.generated)
        closed = stage.items.closed
        servers = [want.process for want in self.wanted()]
        if closed > self._closed_before:
            self._closed_before = closed
            for process in servers:
                process.progressed()
        for want in wants.of_stage(self.course, self.name, self._launching.process):
            if want.process.given_up and not self.failure:
                self.failure = f"{want.process.name} ended {want.process.ends} times in a row: {want.process.detail}"
        write = stage.hint_due() if self._writing is None or self._writing.done() else None
        if write is not None:
            self._writing = asyncio.create_task(write())

    def report(self, job: run_pb2.JobProgress) -> None:
        """A job says how far it is."""
        if self.job is None or job.done > self.job.done:
            for want in self.wanted():
                want.process.progressed()
        self.job = run_pb2.JobProgress()
        self.job.CopyFrom(job)

    def process_news(self) -> None:
        """A process has started or ended."""
        if isinstance(self.stage, JobStage):
            self.stage.news.set()

    async def _drive(self) -> None:
        while not self.course.finished:
            if self.failure:
                self._resumed.clear()
                await self._resumed.wait()
            try:
                await self._do(self.course.stage)
            except ReplacedError as error:
                self._end(error)
                return
            except EyasError as error:
                _log.error("stage failed", run=self.name, stage=STAGES[self.course.stage], reason=str(error))
                self.failure = str(error)
            except ExceptionGroup as group:
                self._end(group.exceptions[0])
                return
            self.stage = None

    async def _do(self, number: int) -> None:
        stage = self.stage = self._make(number)
        self.job = None
        self._rate = progress.Rate()
        self._closed_before = 0
        if isinstance(stage, ItemStage):
            await self._verify_tokenizer()
            await stage.open()
            self._closed_at_start = self._closed_before = stage.items.closed
        self._stage_began = self._context.now()
        await stage.run()
        if isinstance(stage, ItemStage):
            self._last = run_pb2.Progress()
            progress.fill(self._last, stage, self._rate, 0)
            del self._last.endpoints[:]
        following = number + 1 if number < self.course.until else run_pb2.STAGE_DONE
        await self.record({"entered": STAGES[following]})
        _log.info("stage done", run=self.name, stage=STAGES[number], next=STAGES[following])

    async def _verify_tokenizer(self) -> None:
        while True:
            try:
                described = await self._describe()
                break
            except ServiceError as error:
                self.notice = str(error)
                await asyncio.sleep(_RETRY_SECONDS)
        self.notice = ""
        fingerprint.verify(self.course.spec, described)

    def _make(self, number: int) -> ItemStage | JobStage:
        store, layout, spec = self._context.store, self.layout, self.course.spec
        if number == run_pb2.STAGE_GENERATE:
            return Generating(self, self._context)
        if number == run_pb2.STAGE_EXTRACT and spec.hidden_states.backend == run_pb2.HIDDEN_STATES_BACKEND_VLLM:
            return Extracting(self, self._context)
        (job,) = wants.of_stage(self.course, self.name, self._launching.process)
        if number == run_pb2.STAGE_EXTRACT:
            return JobStage(self, self._context, number, job.process, lambda: complete(store, layout, spec))
        if number == run_pb2.STAGE_TRAIN:
            key, wanted = layout.drafter_manifest, specs.training_hash(spec)
        else:
            key, wanted = layout.evaluation_result, specs.evaluation_hash(spec)
        return JobStage(self, self._context, number, job.process, lambda: has_hash(store, key, wanted))

    def _end(self, error: BaseException) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(error)

    # What is asked of it.

    def pause(self, reason: str) -> None:
        """Asks for a pause, which is written down."""
        if self.course.paused or self._pausing is not None:
            return
        _log.warning("pauses", run=self.name, reason=reason)
        self._pausing = asyncio.create_task(self._pause(reason))

    def trouble(self, sentence: str, fatal: bool) -> None:
        """Storage fails, or works again when the sentence is empty."""
        if sentence and sentence != self.notice:
            _log.warning("storage", run=self.name, reason=sentence)
        self.notice = sentence
        self.failure_of_storage = sentence if fatal else ""

    async def control(self, request: pb.ControlRunRequest) -> None:
        """Does what a person asks, once it is durable."""
        action = request.WhichOneof("action")
        if action is None:
            raise InputError(
                "nothing is asked of the run: say pause, resume, set, cancel, retry, proceed or add endpoint"
            )
        if self.course.cancelled:
            raise InputError(f"run {self.name} was cancelled: start another one")
        message = getattr(request, action)
        if action == "set":
            check_set(message.values, self.course.spec)
        if action == "proceed" and message.until not in STAGES:
            raise InputError(f"a run cannot go on until {message.until}: name its last stage")
        name = pb.ControlRunRequest.DESCRIPTOR.fields_by_name[action].json_name
        entry: dict[str, Any] = {name: json_format.MessageToDict(message)}
        if action == "retry":
            entry["failures"] = await self._failures_end()
        await self.record(entry)
        if action == "resume":
            self.failure = ""
            self._resumed.set()
            for want in wants.of_stage(self.course, self.name, self._launching.process):
                want.process.progressed()
        if action == "retry" and isinstance(self.stage, Generating) and self.stage.opened:
            self.stage.retry()
        if self.stage is not None and (self.course.finished or self._outdated(self.stage)):
            await self.stop()
        if not self.course.finished:
            self.start()

    def _outdated(self, stage: ItemStage | JobStage) -> bool:
        """Whether the run is to do another stage by now, or the same with a job of other settings."""
        if stage.stage != self.course.stage:
            return True
        wanted = wants.of_stage(self.course, self.name, self._launching.process)
        return isinstance(stage, JobStage) and stage.process not in [want.process for want in wanted]

    async def record(self, entry: dict[str, Any]) -> None:
        """Appends to the control log, however long storage is away, and applies what stands there."""
        entry = {"at": datetime.now(UTC).isoformat(), **entry}
        async with self._lock:
            report = patient(lambda sentence: self.trouble(sentence, False))
            while (part := await outlast(lambda: self._control.append(entry), report=report)) is not None:
                self.course.apply(part.value)
            self.course.apply(entry)

    async def _pause(self, reason: str) -> None:
        try:
            await self.record({"pause": {"reason": reason}})
        except ReplacedError as error:
            self._end(error)
        self._pausing = None

    async def _failures_end(self) -> int:
        stage = self.items
        if stage is not None:
            await stage.failures.flushed()
            return stage.failures.log.next_number
        keys = [info.key async for info in self._context.store.list(self.layout.failures)]
        return len(keys)

    # What is said of it.

    def state(self) -> "run_pb2.State.ValueType":
        """Whether it moves."""
        if self.course.cancelled:
            return run_pb2.STATE_CANCELLED
        if self.course.finished:
            return run_pb2.STATE_DONE
        if self.failure or self.failure_of_storage:
            return run_pb2.STATE_FAILED
        return run_pb2.STATE_PAUSED if self.course.paused else run_pb2.STATE_RUNNING

    def progress(self, generators: int) -> run_pb2.Progress:
        """Where it stands."""
        found = progress.empty(self.name, self.course.stage, self.course.until)
        found.state = self.state()
        found.generators = generators
        found.stage_seconds.update(self.course.seconds(time.time()))
        found.reason = self._reason()
        if self.job is not None:
            found.job.CopyFrom(self.job)
        found.elapsed_seconds = self._context.now() - self._stage_began if self.stage else 0.0
        stage = self.items
        if stage is not None:
            progress.fill(found, stage, self._rate, generators)
            found.remaining_seconds = progress.remaining(
                stage, self._rate, found.elapsed_seconds, self._closed_at_start
            )
        elif self.course.finished:
            found.MergeFrom(self._last)
        elif self.job is not None and 0 < self.job.done < self.job.total:
            found.remaining_seconds = found.elapsed_seconds * (self.job.total - self.job.done) / self.job.done
        return found

    def _reason(self) -> str:
        opening = self.stage is None or (isinstance(self.stage, ItemStage) and not self.stage.opened)
        waiting = [want for want in self.wanted() if want.process.state is not ProcessState.READY]
        if self.failure or self.failure_of_storage:
            reason = self.failure or self.failure_of_storage
        elif self.course.paused or self.course.finished:
            reason = self.course.reason
        elif not self.current:
            reason = "waits for its turn: one run at a time is worked on"
        elif self.notice or opening:
            reason = self.notice or "reads what is done"
        else:
            reason = wants.reason(waiting[0], self._launching.connected) if waiting else ""
        return reason


def control_log(context: Context, layout: RunLayout) -> Log[dict[str, Any]]:
    """The log of what was asked."""
    return Log(context.store, layout.control, ".json", JsonFormat(), context.epoch, context.nonce)
