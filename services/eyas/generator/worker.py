"""The Work stream with the dispatcher, and a task for each attempt."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable

import structlog
from grpc import aio

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.errors import EyasError, ServiceError
from eyas.generator.core.held import Held, Key
from eyas.generator.core.ledger import Act, Ledger, Order
from eyas.generator.metrics import Metrics
from eyas.generator.stream import Attempts
from eyas.rpc.errors import translated
from eyas.vllm.interruption import DETAIL

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_LOOKS = 60
"""The watch for silence looks so many times in the time that is allowed."""


class Worker:
    """Carries out what the ledger orders, and sends what it says."""

    def __init__(self, channel: aio.Channel, ledger: Ledger, attempts: Attempts, metrics: Metrics) -> None:
        self._stub = dispatch_pb2_grpc.DispatchStub(channel)
        self._ledger = ledger
        self._attempts = attempts
        self._metrics = metrics
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._heard = asyncio.Event()
        self._scope: asyncio.Timeout | None = None
        self._open_stream: object | None = None
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Works until it is cancelled. Then attempts end where they are."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch_silence())
                group.create_task(self._keep_connected())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def drain(self, grace_seconds: float) -> None:
        """Lets answers end for a time, gives back the rest, and returns once the dispatcher has taken everything."""
        self._ledger.drain()
        self._news.set()
        try:
            async with asyncio.timeout(grace_seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self._log.info("gives back what did not end in time", items=len(self._tasks))
        self._carry_out(self._ledger.release_all())
        self._news.set()
        while self._ledger.items:
            self._heard.clear()
            await self._heard.wait()

    async def _keep_connected(self) -> None:
        pause, said = _FIRST_PAUSE, ""
        while True:
            try:
                await self._stream()
                reason = "the dispatcher ended the stream"
            except (EyasError, TimeoutError) as error:
                reason = str(error) or "the dispatcher is silent"
            if self._ledger.connected:
                pause, said = _FIRST_PAUSE, ""
            if reason != said:
                self._log.warning("not connected, tries again", reason=reason, items=len(self._ledger.items))
                said = reason
            self._ledger.closed()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all come at once
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _stream(self) -> None:
        """One stream, until it ends or the dispatcher is silent for too long."""
        loop, ledger = asyncio.get_running_loop(), self._ledger
        ledger.open(loop.time())
        open_stream = self._open_stream = object()
        with translated("dispatcher"):
            async with asyncio.timeout(None) as self._scope:
                call = self._stub.Work(self._requests(open_stream))
                try:
                    async for response in call:
                        known = ledger.connected
                        self._carry_out(ledger.receive(response, loop.time()))
                        self._news.set()
                        self._heard.set()
                        if ledger.connected and not known:
                            self._log.info("connected", epoch=ledger.welcome.epoch, items=len(ledger.items))
                except asyncio.CancelledError:
                    if _is_cancelled():
                        raise
                    raise ServiceError("the dispatcher cancelled the stream") from None
                finally:
                    self._open_stream = None
                    call.cancel()

    async def _requests(self, stream: object) -> AsyncIterator[pb.WorkRequest]:
        loop, ledger = asyncio.get_running_loop(), self._ledger
        while self._open_stream is stream:  # gRPC goes on to ask for messages of a call that broke: they would be lost
            self._news.clear()
            messages = ledger.take(loop.time())
            for message in messages:
                yield message
            wait = ledger.due - loop.time()
            if wait > 0:
                try:
                    async with asyncio.timeout(wait):
                        await self._news.wait()
                except TimeoutError:
                    continue

    async def _watch_silence(self) -> None:
        loop, ledger = asyncio.get_running_loop(), self._ledger
        while True:
            await asyncio.sleep(ledger.welcome.silence_seconds / _LOOKS)
            now = loop.time()
            orders = ledger.pause(now)
            if orders:
                self._log.warning("the dispatcher is silent: requests stop, tokens are kept", items=len(orders))
                self._carry_out(orders)
            if self._scope is not None and not self._scope.expired() and ledger.is_silent(now):
                self._scope.reschedule(now)

    def _carry_out(self, orders: Iterable[Order]) -> None:
        for order in orders:
            held = order.held
            if order.act is Act.START:
                self._start(held)
            elif (task := self._tasks.pop(held.key, None)) is not None:
                task.cancel()
                if held.ending is not None:
                    self._metrics.ended(held.ending)

    def _start(self, held: Held) -> None:
        task = asyncio.create_task(self._attempts.make(held))
        self._tasks[held.key] = task

        def ended(_: asyncio.Task[None]) -> None:
            if self._tasks.get(held.key) is task:
                del self._tasks[held.key]
            if task.cancelled():
                return
            if (error := task.exception()) is not None:  # a mistake of ours must not keep the item for ever
                self._log.error("an attempt failed", exc_info=error)
                self._ledger.interrupt(held, pb.CAUSE_PROTOCOL, f"the generator failed: {error!r}"[:DETAIL])
            if held.ending is not None:
                self._metrics.ended(held.ending)
            self._news.set()

        task.add_done_callback(ended)


def _is_cancelled() -> bool:
    """Whether it is this task that was cancelled, and not the call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
