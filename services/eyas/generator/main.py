"""Works until SIGTERM, then drains: settings, build, run, close."""

import asyncio
import uuid

import structlog
from prometheus_client import CollectorRegistry

from eyas.errors import ServiceError
from eyas.generator.core.ledger import Ledger
from eyas.generator.metrics import Metrics
from eyas.generator.settings import Settings
from eyas.generator.stream import Attempts
from eyas.generator.tokenizing import Tokenizing
from eyas.generator.worker import Worker
from eyas.rpc.channels import open_channel
from eyas.telemetry import http, logs, process
from eyas.vllm.client import VllmClient


async def run(settings: Settings) -> None:
    """Runs a generator until it is told to stop. Raises ServiceError when the dispatcher did not take everything."""
    stop = process.stop_event()
    ledger, registry = Ledger(uuid.uuid4().hex, settings.capacity), CollectorRegistry()
    token = settings.token.get_secret_value()
    async with (
        VllmClient(settings.api_key.get_secret_value()) as client,
        open_channel(settings.dispatcher, token) as dispatcher,
        open_channel(settings.tokenizer, token) as tokenizer,
        http.serve(settings.metrics_listen, registry, lambda: ledger.connected) as address,
    ):
        attempts = Attempts(ledger, client, Tokenizing(tokenizer))
        worker = Worker(dispatcher, ledger, attempts, Metrics(registry, ledger, attempts.activities))
        structlog.get_logger().info("generator starts", metrics=address, capacity=settings.capacity)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(worker.run())
            await stop.wait()
            await _drained(worker, settings)
            working.cancel()
    if ledger.items:
        raise ServiceError(f"{len(ledger.items)} items ended that the dispatcher did not take; it hands them out again")


async def _drained(worker: Worker, settings: Settings) -> None:
    """Drains, until a second signal or the end of the time for it."""
    hurry = asyncio.create_task(process.stop_event().wait())
    drain = asyncio.create_task(worker.drain(settings.grace_seconds))
    await asyncio.wait(
        (hurry, drain),
        timeout=settings.grace_seconds + settings.acknowledge_seconds,
        return_when=asyncio.FIRST_COMPLETED,
    )
    for task in (hurry, drain):
        task.cancel()


def main() -> None:
    """Entry point of the process."""
    settings = process.settings(Settings)
    logs.configure("generator", settings.log_json)
    process.run(run(settings))
