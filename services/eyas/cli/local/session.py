"""One command's work on a run, from the first process started to the last one ended.

Ctrl-C cancels the work, and the processes end in order: the generator gives its tokens back, jobs keep a checkpoint,
the dispatcher writes what it holds. A second Ctrl-C kills them; what is in storage stays true either way.
"""

from __future__ import annotations  # the stubs of gRPC know more types than its modules

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import uvloop
from rich.console import Console

from eyas.cli import describing, pinning, samples
from eyas.cli import progress as texts
from eyas.cli.console import say
from eyas.cli.control import BY_HAND
from eyas.cli.local import opening
from eyas.cli.local.claim import claimed
from eyas.cli.local.following import follow
from eyas.cli.local.launcher import Launcher
from eyas.cli.local.stack import Stack
from eyas.cli.request import Request, changes, stored
from eyas.cli.screen import Screen
from eyas.cli.settings import Settings
from eyas.datasets import Imported, load_for
from eyas.dispatch.v1 import dispatch_pb2, dispatch_pb2_grpc
from eyas.errors import EyasError, InputError
from eyas.rpc.channels import open_channel
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2 as pb
from eyas.telemetry import logs
from eyas.vllm.client import ServerInfo
from eyas.vllm.launch import Host

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def work(request: Request, settings: Settings, console: Console) -> None:
    """Does what a command asks; ends the process with 130 when it was interrupted. Raises EyasError."""
    folder = request.place.logs()
    with claimed(request.place) as claim, (folder / "eyas.log").open("a") as log:
        logs.configure("eyas", as_json=False, stream=log)
        stack = Stack(request.place, claim, folder, settings, request.vllm_python)
        if not uvloop.run(_Session(request, console, stack).interruptible()):
            say(console, "stopped; the same command goes on where it was")
            sys.exit(INTERRUPTED)


@dataclass
class _Session:
    request: Request
    console: Console
    stack: Stack
    launchers: list[Launcher] = field(default_factory=list)

    async def interruptible(self) -> bool:
        """Runs to the end. False when a signal ended it."""
        task = asyncio.create_task(self._run())
        signals = 0

        def interrupt() -> None:
            nonlocal signals
            signals += 1
            if signals == 1:
                say(self.console, "stopping in good order; press Ctrl-C again to stop at once")
                task.cancel()
            if signals > 1:
                self.stack.kill()
                for launcher in self.launchers:
                    launcher.kill()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
        await asyncio.wait([task])
        if signals and (task.cancelled() or task.exception()):
            return False
        task.result()
        return True

    async def _run(self) -> None:
        there = await stored(self.request.place)
        with contextlib.ExitStack() as held:
            imported: Imported | None = None
            if self.request.mapping is None:
                spec = specs.change(self._known(there), self.request.changes)
            else:
                spec = specs.build(self.request.mapping)
                imported = held.enter_context(await asyncio.to_thread(load_for, spec.dataset))
                imported.fill(spec.dataset)
                for text in samples.remarks(imported):
                    say(self.console, text)
            self._check_vllm(spec)
            server = await describing.probe(spec, self.stack.settings.api_key.get_secret_value())
            async with self.stack.tokenizer(spec.model.uri):
                await self.stack.unless_ended(self._pin(spec, server))
                request, creating = self.request, None
                if there is None and imported is not None:
                    creating = samples.parts(spec, request.until, imported)
                elif imported is not None:
                    request = replace(request, changes=changes(spec, self._known(there), request.place))
                async with self.stack.dispatcher():
                    await self._reach(spec, request, creating)

    async def _reach(
        self, spec: pb.RunSpec, request: Request, creating: Iterator[dispatch_pb2.CreateRunRequest] | None
    ) -> None:
        """Creates or opens the run at the dispatcher, and follows it to the stage that is asked for."""
        claim = self.stack.claim
        async with open_channel(claim.dispatcher, claim.token) as channel:
            runs = dispatch_pb2_grpc.RunsStub(channel)
            opened = opening.create(runs, creating) if creating else opening.reopen(runs, request)
            await self.stack.unless_ended(opened)
            async with self._workers(spec, dispatch_pb2_grpc.DispatchStub(channel)):
                await self.stack.unless_ended(self._follow(runs, resuming=creating is None))

    def _known(self, there: pb.RunSpec | None) -> pb.RunSpec:
        if there is None:
            output = self.request.place.output
            raise InputError(
                f"there is no run in {output}: start one with `eyas run --model … --dataset … --output {output}`"
            )
        return there

    def _check_vllm(self, spec: pb.RunSpec) -> None:
        """Finds the vLLM that a stage will need before hours are spent on the stages before it."""
        extracting = (
            spec.hidden_states.backend == pb.HIDDEN_STATES_BACKEND_VLLM and self.request.until > pb.STAGE_GENERATE
        )
        if not spec.endpoints or extracting or self.request.until == pb.STAGE_EVALUATE:
            try:
                Host.detect(self.request.vllm_python)
            except InputError as error:
                raise InputError(f"{error}, with --vllm-python") from error

    async def _pin(self, spec: pb.RunSpec, server: ServerInfo | None) -> None:
        claim = self.stack.claim
        described = await describing.describe(claim.tokenizer, claim.token, spec.generation.chat_template_kwargs)
        pinning.complete(spec, described.model, server, described.reasons)

    @asynccontextmanager
    async def _workers(self, spec: pb.RunSpec, stub: dispatch_pb2_grpc.DispatchAsyncStub) -> AsyncIterator[None]:
        """Generator and launcher. The generator ends first, while its server still runs."""
        stack = self.stack
        launcher = Launcher(stack.place.root, stack.vllm_python, stack.logs, stack.environment())
        self.launchers.append(launcher)
        launching = asyncio.create_task(launcher.run(stub))
        try:
            async with stack.generator(_capacity(spec)):
                yield
        finally:
            launching.cancel()
            await asyncio.wait([launching])

    async def _follow(self, runs: dispatch_pb2_grpc.RunsAsyncStub, resuming: bool) -> None:
        with Screen(self.console) as screen:
            async for progress in follow(runs, self.request.place.run):
                count, total = texts.done(progress)
                if resuming and progress.state == pb.STATE_DONE:
                    screen.say("resuming: everything that is asked is done already")
                elif resuming and total:
                    screen.say(f"resuming: {texts.stage(progress)}, {count:,} of {total:,} done")
                    resuming = False
                screen.show(progress)
                if progress.state == pb.STATE_PAUSED and not progress.reason.startswith(BY_HAND):
                    break
        self._conclude(progress)

    def _conclude(self, progress: pb.Progress) -> None:
        output = self.request.place.output
        if progress.state == pb.STATE_FAILED:
            raise EyasError(f"{output} failed: {progress.reason}; its logs are in {self.stack.logs}")
        if progress.state == pb.STATE_PAUSED:
            raise EyasError(f"{output} is paused: {progress.reason}; then the same command goes on where it was")
        if progress.state == pb.STATE_CANCELLED:
            raise EyasError(f"{output} was cancelled: what is done stays there")
        say(self.console, f"{output}: done")


def _capacity(spec: pb.RunSpec) -> int:
    """Requests that a local generator must be able to hold: all that there can be."""
    servers = max(1, len(spec.endpoints))
    return max(spec.generation.concurrency * servers, spec.hidden_states.concurrency) + 16
