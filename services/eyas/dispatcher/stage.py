"""What generating and extracting have in common: items handed to generators, failures, endpoints, the hint."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

import structlog

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher import hint, messages
from eyas.dispatcher.context import Context, patient, wait_for
from eyas.dispatcher.core.course import Course
from eyas.dispatcher.core.effects import Ack, Assign, Durable, GaveUp, Pause, Probe, Stop
from eyas.dispatcher.core.items import Items, State
from eyas.dispatcher.core.partial import Partial, Rules
from eyas.dispatcher.core.policy import Thresholds
from eyas.dispatcher.core.work import Work
from eyas.dispatcher.endpoints import Monitor
from eyas.dispatcher.samples import Samples
from eyas.dispatcher.writer import Writer
from eyas.errors import StorageFullError, UnavailableError
from eyas.run.v1 import run_pb2
from eyas.storage.layout import RunLayout
from eyas.storage.log import Log, Part
from eyas.storage.objects import outlast
from eyas.storage.tables import FAILURES, FailureRow

_TURN_FLUSH_SECONDS = 1.0
_log = structlog.get_logger()


class RunView(Protocol):
    """What a stage needs of its run."""

    name: str
    layout: RunLayout
    course: Course
    notice: str

    def pause(self, reason: str) -> None:
        """Asks for a pause, which is written down."""

    def trouble(self, sentence: str, fatal: bool) -> None:
        """Storage fails, or works again when the sentence is empty. `fatal`: waiting will not help."""

    def server_urls(self) -> set[str]:
        """Servers launched for the stage that are ready."""


class ItemStage(ABC):
    """A stage whose items generators work on. `run` returns when every item is closed and the data says so."""

    stage: int
    name: Literal["generate", "extract"]
    items: Items
    work: Work
    monitor: Monitor
    failures: Writer[FailureRow, Sequence[FailureRow]]

    def __init__(self, run: RunView, context: Context) -> None:
        self.run_view = run
        self.context = context
        self.opened = False
        self.news = asyncio.Event()
        self._closed = asyncio.Event()
        self._hint_at = context.now()
        self._hint_due = False
        self._holders: frozenset[str] = frozenset()
        self._calm = True
        self._loading: asyncio.Lock = asyncio.Lock()

    # What differs.

    @abstractmethod
    async def build(self) -> Items:
        """Reads what is done. Returns the items."""

    @abstractmethod
    def rules(self) -> Rules:
        """What holds for the items, by the spec as it is now."""

    @abstractmethod
    def concurrency(self) -> int:
        """Requests at once, for each endpoint."""

    @abstractmethod
    def urls(self) -> set[str]:
        """The endpoints."""

    @abstractmethod
    def loaded(self, index: int) -> bool:
        """Whether an item can be handed out at once."""

    @abstractmethod
    async def load(self, index: int) -> None:
        """Makes an item ready to be handed out."""

    @abstractmethod
    def assignment(self, partial: Partial) -> pb.Assign:
        """What a generator needs to know of an item, ids excepted."""

    @abstractmethod
    def finished(self, name: str, index: int, message: pb.Finished) -> None:
        """An answer ended."""

    @abstractmethod
    def pending(self) -> int:
        """Entries that are not durable yet, failures excepted."""

    @abstractmethod
    def hurry(self) -> None:
        """Writes what is queued at once."""

    @abstractmethod
    async def flushed(self) -> None:
        """Returns when all that was queued is durable."""

    @abstractmethod
    def writers(self) -> Iterable[Callable[[], Coroutine[None, None, None]]]:
        """Tasks that the stage runs."""

    @abstractmethod
    async def verify(self) -> None:
        """Reads the data back. Raises DataError when it is not complete."""

    # Life.

    async def open(self) -> None:
        """Reads storage, however long that takes."""
        report = patient(lambda sentence: self.run_view.trouble(sentence, False))
        self.items = await outlast(self.build, report=report)
        view, context = self.run_view, self.context
        self.work = Work(view.name, self.items, context.leases, self.rules(), context.next_attempt)
        self.work.stopped = True
        self.monitor = Monitor(
            self.work,
            lambda: view.course.spec,
            context.client,
            context.now,
            self.news.set,
            context.settings.progress_seconds,
            context.settings.probe_seconds,
        )
        await outlast(self._open_failures, report=report)
        rows = await outlast(lambda: hint.read(context.store, view.layout.partials, self.name), report=report)
        names = hint.restore(self.work, rows, context.now())
        self.work.await_generators(names, context.started + context.settings.lease_seconds)
        self.opened = True
        view.trouble("", False)
        _log.info("stage opened", run=view.name, stage=self.name, items=self.items.total, done=self.items.closed)

    async def run(self) -> None:
        """Works until all items are closed, then checks the data."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(writer()) for writer in (*self.writers(), self.failures.run, self._assign)]
                await self._closed.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await self.monitor.close()
        report = patient(lambda sentence: self.run_view.trouble(sentence, False))
        await outlast(self.verify, report=report)
        await outlast(lambda: self.context.store.delete(self.run_view.layout.partials), report=report)

    async def close(self) -> None:
        """Makes durable what is here, as well as storage allows, and writes the hint."""
        await self.flushed()
        await self.failures.flushed()
        await self._write_hint()

    # Events.

    def tick(self, working: bool) -> None:
        """Time passes. `working`: the run is the one that is worked on, and not paused."""
        now, work = self.context.now(), self.work
        work.rules = self.rules()
        if working and work.stopped:
            work.resume()
        elif not working and not work.stopped:
            work.stop()
            self.hurry()
        work.held = self.context.ending or self.uncommitted_bytes() > self.context.settings.uncommitted_bytes
        self.monitor.watch(self._endpoints(now), self.concurrency())
        work.tick()
        holders = frozenset(p.generator for p in work.partials.values() if p.generator)
        calm = work.stopped and not self.items.counts[State.LEASED]
        self._hint_due = self._hint_due or not holders <= self._holders or (calm and not self._calm)
        self._holders, self._calm = holders, calm
        self.pump()

    def hint_due(self) -> Callable[[], Coroutine[None, None, None]] | None:
        """What writes the hint, when that is due."""
        age = self.context.now() - self._hint_at
        if self.work.partials and (self._hint_due or age > self.context.settings.hint_seconds):
            self._hint_at, self._hint_due = self.context.now(), False
            return self._write_hint
        return None

    def pump(self) -> None:
        """Carries out what the state machine wants, and looks whether the stage is over."""
        out, self.work.out = self.work.out, []
        for effect in out:
            self._carry_out(effect)
        counts = self.items.counts
        ready = counts[State.NEW] + counts[State.WAITING] + counts[State.SUSPECT]
        busy = counts[State.LEASED] + counts[State.HELD]
        turn_waits = counts[State.BLOCKED] and self.uncommitted_age() > _TURN_FLUSH_SECONDS
        if counts[State.ENDED] and not ready and (turn_waits or not busy):
            self.hurry()
        if not ready and not busy:
            self.failures.hurry()
        if self.items.closed == self.items.total and not self.pending() and not len(self.failures):
            self._closed.set()
        self.news.set()

    def holds(self, name: str) -> bool:
        """Whether a generator holds anything."""
        return any(partial.generator == name for partial in self.work.partials.values())

    def draining(self, name: str) -> None:
        """A generator is about to end: its rows are written soon."""
        if any(p.generator == name and self.items.state(p.index) is State.ENDED for p in self.work.partials.values()):
            self.hurry()

    def retry(self) -> None:
        """Items that were given up are tried again."""
        failed = [index for index in range(len(self.items)) if self.items.state(index) is State.FAILED]
        self.work.retry(failed)
        self.pump()

    def uncommitted_bytes(self) -> int:
        """Bytes that are not durable."""
        return self.failures.bytes

    def uncommitted_age(self) -> float:
        """Seconds since the oldest entry that is not durable ended."""
        return 0.0

    # Within.

    def _endpoints(self, now: float) -> set[str]:
        """Known ones; and those that adopted items use, until their launcher had time to name them."""
        urls = self.urls()
        if now < self.context.started + self.context.settings.lease_seconds:
            urls |= {url for url, endpoint in self.work.endpoints.items() if endpoint.in_flight}
        return urls

    def _carry_out(self, effect: Assign | Ack | Durable | Stop | GaveUp | Pause | Probe) -> None:
        match effect:
            case Assign(partial, complete):
                assign = self.assignment(partial)
                assign.item.CopyFrom(self._item(partial.index))
                for response in messages.assignment(assign, partial, complete):
                    self.context.send(partial.generator, response)
            case Ack(name, index, attempt, prompt_length, length):
                ack = pb.Ack(item=self._item(index), attempt=attempt, prompt_length=prompt_length, length=length)
                self.context.send(name, pb.WorkResponse(ack=ack))
            case Durable(name, index, attempt):
                durable = pb.Durable(item=self._item(index), attempt=attempt)
                self.context.send(name, pb.WorkResponse(durable=durable))
            case Stop(name, index, attempt, forget):
                reason = pb.STOP_REASON_FORGET if forget else pb.STOP_REASON_RELEASE
                stop = pb.Stop(item=self._item(index), attempt=attempt, reason=reason)
                self.context.send(name, pb.WorkResponse(stop=stop))
            case GaveUp(index, reason, detail, tries):
                position, turn = self.items.place(index)
                _log.warning("gave up", run=self.run_view.name, position=position, turn=turn, reason=reason)
                self.failures.add(
                    {
                        "sample_id": "",
                        "turn": turn,
                        "position": position,
                        "stage": self.name,
                        "reason": reason,
                        "detail": detail,
                        "attempts": tries,
                        "at": datetime.now(UTC),
                    }
                )
            case Pause(reason):
                self.run_view.pause(reason)
            case Probe(url):
                self.monitor.probe(url)

    def _item(self, index: int) -> pb.Item:
        return messages.item(self.run_view.name, self.stage, self.items, index)

    async def _assign(self) -> None:
        while True:
            await wait_for(self.news, 0.25)
            self.news.clear()
            missing = self.work.assign(self.context.now(), self.loaded)
            self.pump()
            if missing is None:
                self.news.clear()
                continue
            await outlast(
                lambda index=missing: self.load(index),  # type: ignore[misc]
                report=patient(lambda sentence: self.run_view.trouble(sentence, False)),
            )
            self.news.set()

    async def _write_hint(self) -> None:
        rows = hint.snapshot(self.work, self.name)
        try:
            await hint.write(self.context.store, self.run_view.layout.partials, rows)
        except (UnavailableError, StorageFullError) as error:
            _log.warning("the partial answers could not be written", run=self.run_view.name, error=str(error))

    # Failures.

    async def _open_failures(self) -> None:
        view, settings = self.run_view, self.context.settings
        log: Log[Sequence[FailureRow]] = Log(
            self.context.store, view.layout.failures, ".parquet", FAILURES, self.context.epoch, self.context.nonce
        )
        async for part in log.catch_up():
            if part.number >= view.course.retried:
                self._failed_elsewhere(part)
        self.context.outbid(log)
        self.failures = Writer(
            log,
            rows=settings.flush_rows,
            seconds=settings.flush_seconds,
            size=lambda row: 500 + len(row["detail"]),
            build=self._failure_rows,
            absorbed=self._failed_elsewhere,
            committed=lambda _: self.news.set(),
            trouble=view.trouble,
            clock=self.context.now,
        )

    def _failed_elsewhere(self, part: Part[Sequence[FailureRow]]) -> None:
        for row in part.value:
            index = self.items.index(row["position"], row["turn"])
            if row["stage"] != self.name or index is None:
                continue
            if self.items.state(index) in (State.NEW, State.BLOCKED, State.WAITING):
                self.items.move(index, State.FAILED)

    async def _failure_rows(self, rows: Sequence[FailureRow]) -> Sequence[FailureRow] | None:
        samples = await self.samples().rows(row["position"] for row in rows)
        for row in rows:
            row["sample_id"] = samples[row["position"]]["sample_id"]
        return rows

    @abstractmethod
    def samples(self) -> Samples:
        """The samples of the run."""


def thresholds(spec: run_pb2.RunSpec) -> Thresholds:
    """The core's thresholds."""
    given = spec.thresholds
    return Thresholds(
        given.attempts_warn,
        given.attempts_alert,
        given.given_up_pause,
        given.minimum_volume,
        given.max_attempts,
    )
