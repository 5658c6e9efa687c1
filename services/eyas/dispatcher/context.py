"""What every part of the shell is given: no globals."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatcher.core.leases import Leases
from eyas.dispatcher.metrics import Metrics
from eyas.dispatcher.settings import Settings
from eyas.errors import UnavailableError
from eyas.storage.log import Log
from eyas.storage.objects import ObjectStore
from eyas.vllm.client import VllmClient


@dataclass
class Context:
    """Of one dispatcher."""

    settings: Settings
    store: ObjectStore
    client: VllmClient
    metrics: Metrics
    leases: Leases
    epoch: int
    nonce: str
    send: Callable[[str, pb.WorkResponse], None]
    """To a generator by name; lost when it is not connected."""
    started: float = field(default_factory=time.monotonic)
    ending: bool = False
    """SIGTERM came: nothing is handed out."""

    _attempts: int = 0

    def next_attempt(self) -> int:
        """The number of an attempt: unique over the life of a run, and growing."""
        self._attempts += 1
        return self.epoch << 32 | self._attempts

    def outbid(self, log: Log[Any]) -> None:
        """After a log was read: makes this writer newer than all that wrote it."""
        if log.newest > (self.epoch, self.nonce):
            self.epoch = log.newest[0] + 1
        log.epoch = self.epoch

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()


def patient(report: Callable[[str], None]) -> Callable[[UnavailableError, float], None]:
    """For `outlast`: puts a storage outage into words."""

    def say(error: UnavailableError, seconds: float) -> None:
        report(f"object storage does not answer for {seconds:.0f} s: {error}")

    return say


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event, at most so long. Returns whether it came."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
