"""Tells how far a training is: to Prometheus, to the log, and to the dispatcher as best effort."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog
from prometheus_client import CollectorRegistry, Gauge

from eyas.dispatch.v1 import dispatch_pb2, dispatch_pb2_grpc
from eyas.errors import EyasError
from eyas.rpc.channels import open_channel
from eyas.rpc.errors import translated
from eyas.run.v1 import run_pb2 as pb

_log = structlog.get_logger()

_EVERY_SECONDS = 2.0
_LOG_EVERY_SECONDS = 20.0


class Progress:
    """What is told last. `tell` may be called from any thread."""

    def __init__(self, run: str, registry: CollectorRegistry) -> None:
        self._run = run
        self._last = pb.JobProgress(job="trainer", message="reads the data")
        self._steps = Gauge("eyas_trainer_steps", "Optimiser steps done.", registry=registry)
        self._total = Gauge("eyas_trainer_planned_steps", "Optimiser steps in all.", registry=registry)
        self._values = Gauge("eyas_trainer_value", "Last values of the training.", ["name"], registry=registry)
        for name in ("loss", "lr", "acceptance_length", "tokens_per_second"):
            self._values.labels(name=name).set(0)

    def tell(self, done: int, total: int, values: Mapping[str, float], message: str = "") -> None:
        """`done` steps of `total`, and the last values."""
        self._last = pb.JobProgress(job="trainer", done=done, total=total, values=values, message=message)
        self._steps.set(done)
        self._total.set(total)
        for name, value in values.items():
            self._values.labels(name=name).set(value)

    async def send(self, stub: "dispatch_pb2_grpc.DispatchAsyncStub | None") -> None:
        """Sends and logs what is new, until cancelled."""
        sent, logged, passed = pb.JobProgress(), pb.JobProgress(), 0.0
        while True:
            last = self._last
            if stub is not None and last != sent:
                request = dispatch_pb2.ReportJobRequest(run=self._run, progress=last)
                with contextlib.suppress(EyasError), translated("dispatcher"):
                    await stub.ReportJob(request, timeout=_EVERY_SECONDS)
                    sent = last
            if last != logged and passed >= _LOG_EVERY_SECONDS:
                values = {name: round(value, 5) for name, value in sorted(last.values.items())}
                _log.info(last.message or "trains", step=last.done, of=last.total, **values)
                logged, passed = last, 0.0
            await asyncio.sleep(_EVERY_SECONDS)
            passed += _EVERY_SECONDS


@asynccontextmanager
async def sending(progress: Progress, dispatcher: str, token: str) -> AsyncIterator[None]:
    """Sends in the background; without a dispatcher it only logs."""
    async with contextlib.AsyncExitStack() as stack:
        stub = None
        if dispatcher:
            stub = dispatch_pb2_grpc.DispatchStub(await stack.enter_async_context(open_channel(dispatcher, token)))
        task = asyncio.create_task(progress.send(stub))
        try:
            yield
        finally:
            task.cancel()
