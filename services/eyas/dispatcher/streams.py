"""The Work streams: one for each generator, with a bounded outbox and one writer, the handler itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher import messages
from eyas.dispatcher.context import Context
from eyas.dispatcher.run import Run
from eyas.dispatcher.stage import ItemStage

_log = structlog.get_logger()


class _Stream:
    """Messages on their way to a generator."""

    def __init__(self, most: int) -> None:
        self.outbox: asyncio.Queue[pb.WorkResponse] = asyncio.Queue()
        self.handler = asyncio.current_task()
        self._most = most

    def send(self, response: pb.WorkResponse) -> None:
        """Queues a message; too many drop the stream, since its generator does not read."""
        self.outbox.put_nowait(response)
        if self.outbox.qsize() > self._most:
            self.drop()

    def drop(self) -> None:
        """Ends the stream. The generator connects again, and says what it holds."""
        if self.handler is not None:
            self.handler.cancel()


class Streams:
    """All streams by generator, and what their messages mean for the runs."""

    def __init__(self, runs: dict[str, Run]) -> None:
        self._runs = runs
        self._streams: dict[str, _Stream] = {}
        self.context: Context

    def send(self, name: str, response: pb.WorkResponse) -> None:
        """To a generator, if it is connected."""
        stream = self._streams.get(name)
        if stream is not None:
            stream.send(response)

    def tick(self, pulse: bool) -> None:
        """Ends leases of silent generators; sends signs of life."""
        for name in self.context.leases.expire(self.context.now()):
            _log.warning("generator lost", generator=name)
            self._lost(name)
        if pulse:
            for stream in list(self._streams.values()):
                stream.send(pb.WorkResponse(pulse=pb.Pulse()))

    async def serve(self, requests: AsyncIterator[pb.WorkRequest]) -> AsyncIterator[pb.WorkResponse]:
        """One generator, until it leaves. That releases nothing."""
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("hello"):
            return
        hello, context = first.hello, self.context
        stream = _Stream(context.settings.outbox_messages)
        before = self._streams.get(hello.generator)
        if before is not None:
            before.drop()
        self._streams[hello.generator] = stream
        context.leases.hello(hello.generator, hello.capacity, context.now())
        stream.send(pb.WorkResponse(welcome=self._welcome()))
        _log.info("generator connected", generator=hello.generator, capacity=hello.capacity)
        reader = asyncio.create_task(self._read(hello.generator, requests))

        def over(_: asyncio.Task[None]) -> None:
            if not reader.cancelled() and (error := reader.exception()) is not None:
                _log.error("a generator's message could not be taken", generator=hello.generator, exc_info=error)
            stream.drop()

        reader.add_done_callback(over)
        try:
            while True:
                yield await stream.outbox.get()
        finally:
            reader.cancel()
            if self._streams.get(hello.generator) is stream:
                del self._streams[hello.generator]
                self._left(hello.generator)

    async def _read(self, name: str, requests: AsyncIterator[pb.WorkRequest]) -> None:
        async for request in requests:
            if not self.context.leases.heard(name, self.context.now()):
                return  # its leases ended while it was silent
            self._receive(name, request)

    def _welcome(self) -> pb.Welcome:
        settings = self.context.settings
        return pb.Welcome(
            epoch=self.context.epoch,
            lease_seconds=settings.lease_seconds,
            silence_seconds=settings.silence_seconds,
            heartbeat_seconds=settings.heartbeat_seconds,
            progress_seconds=settings.progress_seconds,
        )

    def _left(self, name: str) -> None:
        generator = self.context.leases.generators.get(name)
        if generator is None:
            return
        generator.ready = False
        if generator.draining and not any(stage.holds(name) for stage in self._stages()):
            del self.context.leases.generators[name]
            self._lost(name)

    def _lost(self, name: str) -> None:
        for stage in self._stages():
            stage.work.lost(name)
            stage.pump()
        stream = self._streams.get(name)
        if stream is not None:
            stream.drop()

    def _stages(self) -> list[ItemStage]:
        return [stage for run in self._runs.values() if (stage := run.items) is not None]

    def _receive(self, name: str, request: pb.WorkRequest) -> None:
        kind = request.WhichOneof("message")
        if kind == "heartbeat":
            if request.heartbeat.draining:
                self.context.leases.generators[name].draining = True
                for stage in self._stages():
                    stage.draining(name)
        elif kind == "holding_done":
            for stage in self._stages():
                stage.work.holding_done(name)
                stage.pump()
            self.context.leases.generators[name].ready = True
        elif kind not in (None, "hello"):
            self._about(name, getattr(request, kind))

    def _about(self, name: str, message: "_About") -> None:
        """A message about an item."""
        item = message.item
        run = self._runs.get(item.run)
        stage = run.items if run is not None else None
        if stage is None or stage.stage != item.stage:
            # Of a stage that is over, all is durable; of an unknown run, nothing is wanted.
            durable = run is not None and not run.course.cancelled and item.stage <= run.course.completed
            self.send(name, _over(item, message.attempt, durable))
            return
        index = stage.items.index(item.position, item.turn)
        if index is None:
            self.send(name, _over(item, message.attempt, durable=False))
            return
        _HANDLERS[type(message)](stage, name, index, message, self.context.now())
        stage.pump()


_About = pb.Holding | pb.Prompt | pb.Tokens | pb.Finished | pb.Interrupted | pb.Released


def _over(item: pb.Item, attempt: int, durable: bool) -> pb.WorkResponse:
    if durable:
        return pb.WorkResponse(durable=pb.Durable(item=item, attempt=attempt))
    return pb.WorkResponse(stop=pb.Stop(item=item, attempt=attempt, reason=pb.STOP_REASON_FORGET))


def _holding(stage: ItemStage, name: str, index: int, message: pb.Holding, now: float) -> None:
    stage.work.holding(
        name, index, message.attempt, message.prompt_length, message.length, message.endpoint.rstrip("/"), now
    )


def _prompt(stage: ItemStage, name: str, index: int, message: pb.Prompt, _: float) -> None:
    stage.work.prompt(name, index, message.attempt, message.offset, message.ids, message.total)


def _tokens(stage: ItemStage, name: str, index: int, message: pb.Tokens, now: float) -> None:
    stage.work.tokens(name, index, message.attempt, message.offset, message.ids, now)


def _finished(stage: ItemStage, name: str, index: int, message: pb.Finished, _: float) -> None:
    stage.finished(name, index, message)


def _interrupted(stage: ItemStage, name: str, index: int, message: pb.Interrupted, now: float) -> None:
    detail = f"HTTP {message.http_status}: {message.detail}" if message.http_status else message.detail
    stage.work.interrupted(name, index, message.attempt, messages.cause(message.cause), detail, now)


def _released(stage: ItemStage, name: str, index: int, message: pb.Released, _: float) -> None:
    stage.work.released(name, index, message.attempt)


_HANDLERS: dict[type, Callable[[ItemStage, str, int, Any, float], None]] = {
    pb.Holding: _holding,
    pb.Prompt: _prompt,
    pb.Tokens: _tokens,
    pb.Finished: _finished,
    pb.Interrupted: _interrupted,
    pb.Released: _released,
}
