"""Works until SIGTERM: settings, build, run, close."""

import asyncio
import time
import uuid

import structlog
from prometheus_client import CollectorRegistry

from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.dispatcher.context import Context
from eyas.dispatcher.core.leases import Leases
from eyas.dispatcher.dispatcher import Dispatcher
from eyas.dispatcher.metrics import Metrics
from eyas.dispatcher.run import Run
from eyas.dispatcher.server import Dispatch, Runs
from eyas.dispatcher.settings import Settings
from eyas.dispatcher.streams import Streams
from eyas.rpc import serving
from eyas.rpc.channels import make_server, open_channel
from eyas.storage.objects import open_store
from eyas.telemetry import http, logs, process
from eyas.tokenizer.v1 import tokenizer_pb2_grpc
from eyas.vllm.client import VllmClient

_SERVICES = ("eyas.dispatch.v1.Runs", "eyas.dispatch.v1.Dispatch")
_EPOCH_BEGAN = 1_577_836_800
"""2020: epochs are seconds since then, and numbers of attempts have room in 63 bits until 2088."""


async def run(settings: Settings) -> None:
    """Runs a dispatcher until it is told to stop. Raises ReplacedError when another has taken over."""
    stop, registry = process.stop_event(), CollectorRegistry()
    token = settings.token.get_secret_value()
    runs: dict[str, Run] = {}
    streams = Streams(runs)
    async with (
        VllmClient(settings.api_key.get_secret_value()) as client,
        open_channel(settings.tokenizer, token) as tokenizer,
    ):
        context = streams.context = Context(
            settings=settings,
            store=open_store(settings.storage_uri),
            client=client,
            metrics=Metrics(registry),
            leases=Leases(settings.lease_seconds),
            epoch=int(time.time()) - _EPOCH_BEGAN,
            nonce=uuid.uuid4().hex,
            send=streams.send,
        )
        dispatcher = Dispatcher(context, streams, runs, tokenizer_pb2_grpc.TokenizerStub(tokenizer))
        server = make_server(token)
        dispatch_pb2_grpc.add_RunsServicer_to_server(Runs(dispatcher), server)
        dispatch_pb2_grpc.add_DispatchServicer_to_server(Dispatch(dispatcher), server)
        async with http.serve(settings.metrics_listen, registry, lambda: dispatcher.ready) as address:
            await dispatcher.open()
            async with serving.started(server, settings.listen, _SERVICES) as health:
                structlog.get_logger().info("dispatcher serves", listen=health.address, metrics=address)
                ticking = asyncio.create_task(dispatcher.run())
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait((ticking, stopping, dispatcher.fatal), return_when=asyncio.FIRST_COMPLETED)
                for task in (ticking, dispatcher.fatal):
                    if task.done():
                        task.result()
                await health.set(False)
                await dispatcher.close()
                ticking.cancel()


def main() -> None:
    """Entry point of the process."""
    settings = process.settings(Settings)
    logs.configure("dispatcher", settings.log_json)
    process.run(run(settings))
