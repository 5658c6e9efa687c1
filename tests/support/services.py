"""Stand-ins for the services around a generator: a tokenizer for the simulator's model, and a dispatcher in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.rpc.channels import make_server
from eyas.run.v1 import run_pb2
from eyas.simulator.model import SimulatedModel
from eyas.tokenizer.v1 import tokenizer_pb2 as tokens_pb
from eyas.tokenizer.v1 import tokenizer_pb2_grpc

IDS = 4096
TIMEOUTS = run_pb2.Timeouts(connect=5.0, first_token=10.0, stall=10.0, total=0.0)


class Tokenizer(tokenizer_pb2_grpc.TokenizerServicer):
    """Renders and reads as the simulator does. Rejects messages that hold "reject"."""

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model

    async def Render(self, request: tokens_pb.RenderRequest, context: Any) -> tokens_pb.RenderResponse:
        if "reject" in request.messages:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the template rejects it")
        return tokens_pb.RenderResponse(ids=self._model.render(json.loads(request.messages)))

    async def Parse(self, request: tokens_pb.ParseRequest, context: Any) -> tokens_pb.ParseResponse:
        return tokens_pb.ParseResponse(content=self._model.text(request.ids))


@dataclass
class Entry:
    """One item, and what the dispatcher has of it."""

    position: int
    messages: str = ""
    protocol: run_pb2.Protocol.ValueType = run_pb2.PROTOCOL_TOKENS
    stage: run_pb2.Stage.ValueType = run_pb2.STAGE_GENERATE
    endpoint: str = ""
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    attempt: int = 0
    leased: bool = False
    finished: pb.Finished | None = None
    interruptions: list[pb.Interrupted] = field(default_factory=list)
    releases: int = 0
    key: str = ""

    @property
    def item(self) -> pb.Item:
        return pb.Item(run="r", stage=self.stage, position=self.position)


class Dispatcher(dispatch_pb2_grpc.DispatchServicer):
    """Hands out entries, collects what comes back, makes rows durable at once. Asserts that ids fit without gap."""

    def __init__(self, endpoint: str, works: list[Entry], **assign: Any) -> None:
        self.endpoint = endpoint
        self.works = {work.position: work for work in works}
        self.assign = {"max_tokens": 1000, "context": 8192, "model": "simulated", "timeouts": TIMEOUTS} | assign
        self.welcome = pb.Welcome(
            epoch=1, lease_seconds=20, silence_seconds=15, heartbeat_seconds=5, progress_seconds=0.05
        )
        self.durable_at_once = True
        self.mute = False
        self.draining = False
        self.streams = 0
        self.problems: list[str] = []
        self.changed = asyncio.Condition()
        self._counter = 0
        self._outbox: asyncio.Queue[pb.WorkResponse | None] = asyncio.Queue()
        self._declared: set[int] = set()

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Waits until a message made `condition` true."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(lambda: condition() or bool(self.problems))
        assert not self.problems

    @property
    def all_finished(self) -> bool:
        return all(work.finished is not None for work in self.works.values())

    def send(self, **message: Any) -> None:
        if not self.mute:
            self._outbox.put_nowait(pb.WorkResponse(**message))

    def hand_out(self, work: Entry) -> None:
        self._counter += 1
        work.attempt, work.leased = self._counter, True
        if work.protocol == run_pb2.PROTOCOL_CHAT:
            work.prompt, work.ids = [], []
        ids = work.prompt + work.ids
        self.send(
            assign=pb.Assign(
                item=work.item,
                attempt=work.attempt,
                endpoint=work.endpoint or self.endpoint,
                protocol=work.protocol,
                messages=work.messages,
                prompt_length=len(work.prompt),
                length=len(work.ids),
                ids=ids[:IDS],
                hidden_states_key=work.key,
                **self.assign,
            )
        )
        for offset in range(IDS, len(ids), IDS):
            more = pb.AssignIds(item=work.item, attempt=work.attempt, offset=offset, ids=ids[offset : offset + IDS])
            self.send(assign_ids=more)

    def hand_out_all(self) -> None:
        for work in self.works.values():
            if not work.leased and work.finished is None:
                self.hand_out(work)

    def commit_all(self) -> None:
        for work in self.works.values():
            self.send(durable=pb.Durable(item=work.item, attempt=work.attempt))

    def forget(self, work: Entry) -> None:
        work.leased = False
        self.send(stop=pb.Stop(item=work.item, attempt=work.attempt, reason=pb.STOP_REASON_FORGET))

    async def Work(self, requests: AsyncIterator[pb.WorkRequest], context: Any) -> AsyncIterator[pb.WorkResponse]:
        self._outbox = outbox = asyncio.Queue()
        self._declared = set()
        self.streams += 1
        self.send(welcome=self.welcome)
        reader = asyncio.create_task(self._read(requests, outbox))
        try:
            while (message := await outbox.get()) is not None:
                yield message
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[pb.WorkRequest], outbox: asyncio.Queue[Any]) -> None:
        async for request in requests:
            if self.mute:
                continue
            kind = request.WhichOneof("message")
            try:
                getattr(self, f"_{kind}")(getattr(request, kind))
            except AssertionError as error:
                self.problems.append(str(error))
            async with self.changed:
                self.changed.notify_all()
        outbox.put_nowait(None)

    def _hello(self, _: pb.Hello) -> None:
        pass

    def _heartbeat(self, heartbeat: pb.Heartbeat) -> None:
        self.draining = self.draining or heartbeat.draining
        self.send(pulse=pb.Pulse())

    def _holding(self, holding: pb.Holding) -> None:
        work = self.works[holding.item.position]
        if work.finished is not None and self.durable_at_once:
            self.send(durable=pb.Durable(item=work.item, attempt=holding.attempt))
        elif work.attempt == holding.attempt:
            self._declared.add(work.position)
            work.leased = True
            self._ack(work)
        else:
            self.send(stop=pb.Stop(item=work.item, attempt=holding.attempt, reason=pb.STOP_REASON_FORGET))

    def _holding_done(self, _: pb.HoldingDone) -> None:
        for work in self.works.values():
            work.leased = work.leased and work.position in self._declared
        self.hand_out_all()

    def _prompt(self, message: pb.Prompt) -> None:
        if (work := self._current(message)) is not None:
            assert message.offset == len(work.prompt), "a prompt with a gap or a repeat"
            work.prompt += message.ids

    def _tokens(self, message: pb.Tokens) -> None:
        if (work := self._current(message)) is not None:
            assert message.offset == len(work.ids), "ids with a gap or a repeat"
            assert 0 < len(message.ids) <= IDS
            work.ids += message.ids
            self._ack(work)

    def _finished(self, message: pb.Finished) -> None:
        if (work := self._current(message)) is not None:
            assert message.length == len(work.ids), "finished before all ids came"
            work.finished = message
            if self.durable_at_once:
                work.leased = False
                self.send(durable=pb.Durable(item=work.item, attempt=work.attempt))

    def _interrupted(self, message: pb.Interrupted) -> None:
        if (work := self._current(message)) is not None:
            assert message.length == len(work.ids), "interrupted before all ids came"
            work.interruptions.append(message)
            self.forget(work)
            if len(work.interruptions) < 50 and message.cause not in (pb.CAUSE_ITEM, pb.CAUSE_TEMPLATE):
                self.hand_out(work)

    def _released(self, message: pb.Released) -> None:
        if (work := self._current(message)) is not None:
            assert message.length == len(work.ids), "released before all ids came"
            work.releases += 1
            self.forget(work)

    def _current(self, message: Any) -> Entry | None:
        work = self.works[message.item.position]
        return work if work.leased and work.attempt == message.attempt else None

    def _ack(self, work: Entry) -> None:
        lengths = {"prompt_length": len(work.prompt), "length": len(work.ids)}
        self.send(ack=pb.Ack(item=work.item, attempt=work.attempt, **lengths))


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits until a condition holds that nothing tells of."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(add: Callable[[aio.Server], None], socket: Path, token: str = "") -> AsyncIterator[aio.Server]:
    """Serves on a Unix socket; ends at once on exit, as if killed."""
    server = make_server(token)
    add(server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)


def add_tokenizer(servicer: Tokenizer) -> Callable[[aio.Server], None]:
    return lambda server: tokenizer_pb2_grpc.add_TokenizerServicer_to_server(servicer, server)


def add_dispatcher(servicer: Dispatcher) -> Callable[[aio.Server], None]:
    return lambda server: dispatch_pb2_grpc.add_DispatchServicer_to_server(servicer, server)
