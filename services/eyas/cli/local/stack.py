"""The services of a local run: which processes, with which settings, over which sockets."""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from grpc_health.v1 import health_pb2, health_pb2_grpc

from eyas.cli.local.claim import Claim
from eyas.cli.local.service import Service, running
from eyas.cli.place import Place
from eyas.cli.settings import Settings
from eyas.errors import InputError
from eyas.rpc.channels import open_channel

_Result = TypeVar("_Result")
_SHORT_GRACE = 5.0
_DISPATCHER_GRACE = 60.0
"""For rows and partial answers on their way to a slow storage."""
_GENERATOR_GRACE = 25.0
"""More than it takes to give back what it holds."""


@dataclass
class Stack:
    """Starts services of a run, and stops waiting when one of them can't go on."""

    place: Place
    claim: Claim
    logs: Path
    settings: Settings
    vllm_python: Path
    services: list[Service] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """Settings of every process of this run."""
        return {
            "EYAS_API_KEY": self.settings.api_key.get_secret_value(),
            "EYAS_DISPATCHER": self.claim.dispatcher,
            "EYAS_LOG_JSON": "false",
            "EYAS_METRICS_LISTEN": "127.0.0.1:0",
            "EYAS_RUN": self.place.run,
            "EYAS_STORAGE_URI": self.place.root,
            "EYAS_TOKEN": self.claim.token,
            "EYAS_TOKENIZER": self.claim.tokenizer,
            "EYAS_VLLM_PYTHON": str(self.vllm_python),
        }

    @asynccontextmanager
    async def tokenizer(self, model: str) -> AsyncIterator[None]:
        """The tokenizer, while the block runs; healthy when it begins."""
        if importlib.util.find_spec("transformers") is None:
            raise InputError("the tokenizer needs transformers: install it with `pip install 'eyas[tokenizer]'`")
        more = {"EYAS_MODEL": model, "EYAS_LISTEN": self.claim.tokenizer}
        more["EYAS_TRUST_REMOTE_CODE"] = str(self.settings.trust_remote_code)
        async with self._service("tokenizer", more, _SHORT_GRACE) as service:
            await self._healthy(service, self.claim.tokenizer)
            yield

    @asynccontextmanager
    async def dispatcher(self) -> AsyncIterator[None]:
        """The dispatcher, while the block runs; healthy when it begins."""
        more = {"EYAS_LISTEN": self.claim.dispatcher}
        async with self._service("dispatcher", more, _DISPATCHER_GRACE) as service:
            await self._healthy(service, self.claim.dispatcher)
            yield

    @asynccontextmanager
    async def generator(self, capacity: int) -> AsyncIterator[None]:
        """A generator of so many requests at once, while the block runs."""
        more = {"EYAS_CAPACITY": str(capacity), "EYAS_GRACE_SECONDS": "1", "EYAS_ACKNOWLEDGE_SECONDS": "20"}
        async with self._service("generator", more, _GENERATOR_GRACE):
            yield

    async def unless_ended(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Result of some work; raises instead when a service ends for good meanwhile."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait(
                {task, *(service.ended for service in self.services)}, return_when=asyncio.FIRST_COMPLETED
            )
            if task.done():
                return task.result()
            for service in self.services:
                if service.ended.done():
                    service.ended.result()
            raise AssertionError("a service ends only by an error")
        finally:
            task.cancel()
            await asyncio.wait([task])

    def kill(self) -> None:
        """SIGKILL for all services."""
        for service in self.services:
            service.kill()

    @asynccontextmanager
    async def _service(self, name: str, more: dict[str, str], grace: float) -> AsyncIterator[Service]:
        command = (sys.executable, "-m", f"eyas.{name}")
        environment = self.environment() | more
        async with running(name, command, environment, self.logs / f"{name}.log", grace) as service:
            self.services.append(service)
            try:
                yield service
            finally:
                self.services.remove(service)

    async def _healthy(self, service: Service, target: str) -> None:
        async with open_channel(target) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            check = asyncio.ensure_future(stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True))
            try:
                await asyncio.wait({check, service.ended}, return_when=asyncio.FIRST_COMPLETED)
                if service.ended.done():
                    service.ended.result()
            finally:
                check.cancel()
