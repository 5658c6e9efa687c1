"""A stage that a job does: the job runs, and storage says whether the stage is done."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import structlog

from eyas.dispatcher.context import Context, patient, wait_for
from eyas.dispatcher.core.processes import Process, ProcessState
from eyas.dispatcher.stage import RunView
from eyas.errors import NotFoundError, ServiceError
from eyas.storage.objects import ObjectStore, outlast

_log = structlog.get_logger()


class JobStage:
    """`done` asks storage; `process` is the job."""

    def __init__(
        self, run: RunView, context: Context, stage: int, process: Process, done: Callable[[], Awaitable[bool]]
    ) -> None:
        self.stage = stage
        self.process = process
        self.news = asyncio.Event()
        self._run_view = run
        self._context = context
        self._done = done
        self._seen = (-1, ProcessState.UNKNOWN)

    async def run(self) -> None:
        """Returns when the stage is done. Raises ServiceError when the job ended too often."""
        report = patient(lambda sentence: self._run_view.trouble(sentence, False))
        while not await outlast(self._done, report=report):
            while not self._ended():
                await wait_for(self.news, 1.0)
                self.news.clear()
        self._run_view.trouble("", False)

    def _ended(self) -> bool:
        """Whether the job has ended well since the last look."""
        process = self.process
        if process.given_up:
            raise ServiceError(
                f"{process.name} ended {process.ends} times in a row, the last time with {process.exit_code}: "
                f"{process.detail or 'it said nothing'}"
            )
        now = (process.generation, process.state)
        if now == self._seen or process.state is not ProcessState.EXITED:
            return False
        self._seen = now
        if process.exit_code == 0:
            process.ended_in_vain(self._context.now())  # unless storage says that the stage is done
        return process.exit_code == 0

    async def close(self) -> None:
        """Nothing is held here."""


async def has_hash(store: ObjectStore, key: str, settings_hash: str) -> bool:
    """Whether a result is there, and is of these settings."""
    try:
        value = json.loads(await store.get(key))
    except NotFoundError:
        return False
    except ValueError:
        _log.warning("not JSON", key=key)
        return False
    return isinstance(value, dict) and value.get("settings_hash") == settings_hash
