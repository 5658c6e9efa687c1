"""Trains the drafter of a run: settings, build, train, close."""

import asyncio
import contextlib

from prometheus_client import CollectorRegistry

from eyas.storage.objects import open_store
from eyas.telemetry import http, logs, process
from eyas.trainer.job import train
from eyas.trainer.parallel import local_rank
from eyas.trainer.progress import Progress, sending
from eyas.trainer.settings import Settings

INTERRUPTED = 75
"""Exit status of a training that was told to stop: BSD's EX_TEMPFAIL, so that no supervisor counts it as complete."""


async def run(settings: Settings) -> None:
    """Trains in a thread, while this one serves metrics and tells of the progress."""
    stop, registry = process.stop_event(), CollectorRegistry()
    progress = Progress(settings.run, registry)
    async with contextlib.AsyncExitStack() as stack:
        if local_rank() == 0:
            await stack.enter_async_context(http.serve(settings.metrics_listen, registry, lambda: True))
            token = settings.token.get_secret_value()
            await stack.enter_async_context(sending(progress, settings.dispatcher, token))
        store = open_store(settings.storage_uri)
        complete = await asyncio.to_thread(train, store, settings.run, stop.is_set, progress.tell)
    if not complete:
        raise SystemExit(INTERRUPTED)


def main() -> None:
    """Entry point of the process."""
    settings = process.settings(Settings)
    logs.configure("trainer", settings.log_json)
    process.run(run(settings))
