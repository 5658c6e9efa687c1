"""Watches the endpoints of a stage: a probe for each that is in doubt, until it answers."""

import asyncio
import contextlib
from collections.abc import Callable

from eyas.dispatcher.core.limit import Endpoint, Health
from eyas.dispatcher.core.work import Work
from eyas.errors import EndpointError
from eyas.run.v1 import run_pb2
from eyas.vllm import launch
from eyas.vllm.client import ServerInfo, VllmClient

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_LOOK = 0.25
_HEALTH_SECONDS = 10.0


class Monitor:
    """One task for each endpoint of `work`. `changed` is called when one comes or goes."""

    def __init__(  # noqa: PLR0917
        self,
        work: Work,
        spec: Callable[[], run_pb2.RunSpec],
        client: VllmClient,
        now: Callable[[], float],
        changed: Callable[[], None],
        progress_seconds: float,
        probe_seconds: float,
    ) -> None:
        self._work = work
        self._spec = spec
        self._client = client
        self._now = now
        self._changed = changed
        self._progress_seconds = progress_seconds
        self._probe_seconds = probe_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._doubts: dict[str, asyncio.Event] = {}
        self._started_at: dict[str, float] = {}

    def watch(self, urls: set[str], limit: int) -> None:
        """Makes these the endpoints, each with this limit."""
        for url in urls:
            self._work.endpoint(url).limit = limit
            if url not in self._tasks:
                self._work.endpoint(url).removed = False
                self._doubts[url] = asyncio.Event()
                self._tasks[url] = asyncio.create_task(self._keep(url))
        for url in set(self._tasks) - urls:
            self._tasks.pop(url).cancel()
            self._work.remove_endpoint(url, self._now())

    def probe(self, url: str) -> None:
        """An endpoint is in doubt."""
        if url in self._doubts:
            self._doubts[url].set()

    async def close(self) -> None:
        """Ends all probes."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, url: str) -> None:
        pause = _FIRST_PAUSE
        while True:
            endpoint = self._work.endpoint(url)
            if endpoint.health is Health.UP:
                self._doubts[url].clear()
                await self._doubts[url].wait()
                continue
            try:
                await self._ask(url, endpoint)
            except EndpointError as error:
                self._work.endpoint_down(url, str(error), self._now())
                self._changed()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                started_at = await self._process_start(url)
                before = self._started_at.get(url, 0.0)
                self._started_at[url] = started_at
                self._work.endpoint_up(url, restarted=0.0 < before != started_at > 0.0, now=self._now())
                self._changed()
                pause = _FIRST_PAUSE

    async def _ask(self, url: str, endpoint: Endpoint) -> None:
        """Raises EndpointError unless the endpoint is the right one, and works."""
        spec = self._spec()
        check(url, await self._client.probe(url), spec)
        chat = spec.generation.protocol == run_pb2.PROTOCOL_CHAT
        if not chat and not await self._client.healthy(url, _HEALTH_SECONDS):
            raise EndpointError(f"{url}/health says that the engine does not work")
        ping = asyncio.create_task(
            self._client.ping(url, launch.served_name(spec), chat=chat, seconds=self._probe_seconds)
        )
        try:
            # A full server answers a ping late; tokens for others prove the same.
            while not ping.done() and not endpoint.alive_since_doubt(self._progress_seconds):
                await asyncio.wait([ping], timeout=_LOOK)
            if ping.done():
                ping.result()
        finally:
            ping.cancel()
            with contextlib.suppress(asyncio.CancelledError, EndpointError):
                await ping

    async def _process_start(self, url: str) -> float:
        try:
            return (await self._client.scrape(url)).started_at
        except EndpointError:
            return 0.0  # not a vLLM: it can't say


def check(url: str, server: ServerInfo, spec: run_pb2.RunSpec) -> None:
    """Raises EndpointError when a server is not what the run was pinned to."""
    pinned, name = spec.model.fingerprint, launch.served_name(spec)
    if name not in server.models:
        raise EndpointError(
            f"{url} serves {', '.join(server.models)}, not {name}: serve the run's model there, or start another run"
        )
    if pinned.root and server.root and server.root != pinned.root:
        raise EndpointError(
            f"{url} serves {name} from {server.root}, the run was pinned to {pinned.root}: "
            "serve that there, or start another run"
        )
    if pinned.context and server.context and server.context != pinned.context:
        raise EndpointError(
            f"{url} serves a context of {server.context} tokens, the run was pinned to {pinned.context}: "
            f"start it with --max-model-len {pinned.context}, or start another run"
        )
