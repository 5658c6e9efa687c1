"""The evaluation of a run: each drafter is stored when it is measured, so that an interrupted evaluation goes on."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas import report
from eyas.errors import EyasError, InputError, NotFoundError
from eyas.evaluator import agreement, drafters, result
from eyas.evaluator.measure import Measured, Server
from eyas.evaluator.progress import Progress, telling
from eyas.evaluator.prompts import held_out
from eyas.evaluator.settings import Settings
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore, open_store
from eyas.storage.runs import read_spec
from eyas.telemetry import process
from eyas.vllm import launch
from eyas.vllm.client import VllmClient
from eyas.vllm.phases import Limits

ENDPOINT = "endpoint"
"""Name under which a server is measured as it is."""


async def run(settings: Settings) -> None:
    """Evaluates until it is done or a signal comes. Raises EyasError when it could not be finished."""
    store = open_store(settings.storage_uri)
    spec = await read_spec(store, settings.run)
    prompts = await held_out(store, settings.run, spec.evaluation.max_prompts)
    stopped = asyncio.create_task(process.stop_event().wait())
    async with (
        telling(settings.run, settings.dispatcher, settings.token.get_secret_value()) as progress,
        VllmClient(settings.api_key.get_secret_value()) as client,
    ):
        work = asyncio.create_task(Evaluation(settings, store, spec, prompts, client, progress).run())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            raise EyasError("the evaluation was interrupted: the same command goes on after what is measured")
        await work


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one run."""

    settings: Settings
    store: ObjectStore
    spec: pb.RunSpec
    prompts: list[list[int]]
    client: VllmClient
    progress: Progress

    async def run(self) -> None:
        """Measures what is not measured yet, then writes result and report."""
        found: dict[str, dict[str, Any]] = {}
        names = self._names()
        for done, name in enumerate(names):
            stored = await self._stored(name)
            if stored is None:
                await self.progress.tell(done, len(names), f"starting a server with drafter {name}")
                stored = await self._measure(name, done, len(names))
            found[name] = stored["measurement"]
            values = {f"acceptance_length_{name}": found[name]["acceptance_length"]}
            await self.progress.tell(done + 1, len(names), f"measured drafter {name}", values)
        layout, tokens = RunLayout(self.spec.name), self.spec.evaluation.num_speculative_tokens
        data = result.whole(specs.evaluation_hash(self.spec), tokens, len(self.prompts), found)
        await self.store.put(layout.report, await report.build(self.store, self.spec.name))
        await self.store.put(layout.evaluation_result, data)

    def _names(self) -> list[str]:
        if self.settings.endpoint:
            return [ENDPOINT]
        # The model alone comes first: the others are compared with its answers.
        return sorted(dict.fromkeys(self.spec.evaluation.drafters), key=lambda name: name != "none")

    async def _measure(self, name: str, done: int, total: int) -> dict[str, Any]:
        async with self._server(name) as server:
            await self.progress.tell(done, total, f"asking {len(self.prompts)} prompts with drafter {name}")
            measured = await server.measure(self.prompts)
            found = result.measurement(measured, await self._differences(name, server, measured))
        data = result.part(specs.evaluation_hash(self.spec), found, measured.answers)
        await self.store.put(RunLayout(self.spec.name).measurement(name), data)
        return {"measurement": found, "answers": measured.answers}

    async def _differences(self, name: str, server: Server, measured: Measured) -> list[dict[str, Any]] | None:
        """How greedy answers differ from the model's own, while the server that gave them can still be asked."""
        base = None if name == "none" or self.spec.evaluation.temperature else await self._stored("none")
        if base is None:
            return None
        bound = agreement.near_tie(self.spec.model.fingerprint.dtype or self.spec.vllm.dtype)
        found = []
        for parting in agreement.partings(base["answers"], measured.answers):
            shared = self.prompts[parting.prompt] + measured.answers[parting.prompt][: parting.position]
            gap = agreement.gap(parting, await server.logprobs(shared))
            found.append(result.difference(parting, gap, bound))
        return found

    @asynccontextmanager
    async def _server(self, name: str) -> AsyncIterator[Server]:
        timeouts, evaluation = self.spec.timeouts, self.spec.evaluation
        limits = Limits(timeouts.connect, timeouts.first_token, timeouts.stall, timeouts.total)
        model = launch.served_name(self.spec)
        if name == ENDPOINT:
            url = self.settings.endpoint
            info = await self.client.probe(url)
            if model not in info.models:
                raise InputError(
                    f"{url} serves {', '.join(info.models)} and not {model}: give the server of this model"
                )
            yield Server(self.client, url, model, limits, evaluation)
            return
        host = launch.Host.detect(self.settings.vllm_python)
        scratch = Path(tempfile.mkdtemp(prefix="eyas-evaluator-"))
        command = await drafters.command(name, self.spec, host, self.store, scratch)
        async with launch.VllmServer(command, scratch / "vllm.log", self.spec.vllm.start_seconds) as server:
            yield Server(self.client, server.url, model, limits, evaluation)
        # Kept when anything fails, for its log.
        shutil.rmtree(scratch)

    async def _stored(self, name: str) -> dict[str, Any] | None:
        """What was measured before with these settings; None when it was not."""
        try:
            data = await self.store.get(RunLayout(self.spec.name).measurement(name))
        except NotFoundError:
            return None
        value: dict[str, Any] = json.loads(data)
        return value if value["settings_hash"] == specs.evaluation_hash(self.spec) else None
