"""A service of eyas as a child process that is started again when it dies."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from eyas.cli.local.child import Child
from eyas.errors import EyasError, ServiceError

_HEALTHY_SECONDS = 30.0
"""A life this long makes earlier deaths forgotten."""
_MOST_DEATHS = 5
_LONGEST_WAIT = 10.0
_log = structlog.get_logger()


def wait_seconds(deaths: int) -> float:
    """How long to wait after so many deaths in a row before the next start."""
    return float(min(_LONGEST_WAIT, 0.25 * 2**deaths))


def last_word(tail: str) -> str | None:
    """The sentence of a process that ended on purpose (`eyas.telemetry.process`); None for any other end."""
    last = tail.rpartition("\n")[2]
    return last.removeprefix("error: ") if last.startswith("error: ") else None


@dataclass
class Service:
    """A running service. `ended` is a task that fails once there is no point in starting it again."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    grace: float
    ended: "asyncio.Task[None]" = field(init=False)
    _child: Child | None = field(default=None, init=False)

    def kill(self) -> None:
        """SIGKILL, for the impatient."""
        if self._child is not None:
            self._child.kill()

    async def _keep(self) -> None:
        deaths = 0
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            child = self._child = await Child.start(self.command, self.environment, self.log, self.grace)
            try:
                code = await child.wait()
            except asyncio.CancelledError:
                await child.stop()
                raise
            tail = child.tail()
            sentence = last_word(tail)
            if code == 1 and sentence is not None:
                raise EyasError(sentence)
            deaths = 1 if loop.time() - begin > _HEALTHY_SECONDS else deaths + 1
            if deaths >= _MOST_DEATHS:
                raise ServiceError(
                    f"the {self.name} died {deaths} times in a row (status {code}); its log is {self.log}: "
                    f"{tail.rpartition(chr(10))[2] or 'it said nothing'}"
                )
            _log.warning("a service died and is started again", name=self.name, status=code)
            await asyncio.sleep(wait_seconds(deaths))


@asynccontextmanager
async def running(
    name: str, command: tuple[str, ...], environment: Mapping[str, str], log: Path, grace: float
) -> AsyncIterator[Service]:
    """Keeps a service running while the block runs; SIGTERM, `grace` seconds, and SIGKILL when it is left."""
    service = Service(name, command, environment, log, grace)
    service.ended = asyncio.create_task(service._keep())  # noqa: SLF001 - made here
    try:
        yield service
    finally:
        service.ended.cancel()
        await asyncio.wait([service.ended])
