"""A dispatcher as a process, with a tokenizer, a model server and generators that follow a script."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from grpc import aio

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.rpc.channels import make_server, open_channel
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2
from eyas.storage.tables import GENERATIONS
from eyas.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc

EOS = 2
MODEL = "/models/m"


def prompt_of(position: int, turn: int, messages: str = "") -> list[int]:
    return [10, position + 100, turn + 50, len(json.loads(messages)) if messages else 0]


def answer_of(position: int, turn: int) -> list[int]:
    return [1000 + (position * 7 + k) % 5000 for k in range(5 + position % 9 + turn)] + [EOS]


class Tokenizer(tokenizer_pb2_grpc.TokenizerServicer):
    hash = "tokenizer"

    async def Describe(self, request, context):
        return tokenizer_pb2.DescribeResponse(
            model=MODEL, vocab_size=49152, eos_token_ids=[EOS], context=2048, hash=self.hash, num_layers=30,
            hidden_size=8, dtype="float16",
        )  # fmt: skip


class ModelServer:
    """Answers what the dispatcher asks of a server."""

    def __init__(self):
        self.root = MODEL
        self.context = 2048
        self.names = ["m"]
        self.up = True
        self.started_at = 1000.0
        self.pings = 0

    async def handle(self, request: web.Request) -> web.Response:
        if not self.up:
            return web.Response(status=503, text="down")
        match request.path:
            case "/v1/models":
                cards = [{"id": n, "root": self.root, "max_model_len": self.context} for n in self.names]
                return web.json_response({"data": cards})
            case "/health":
                return web.Response()
            case "/version":
                return web.json_response({"version": "0.32.0"})
            case "/metrics":
                return web.Response(text=f"vllm:num_requests_running 0\nprocess_start_time_seconds {self.started_at}\n")
            case "/v1/completions":
                self.pings += 1
                return web.json_response({"choices": [{"text": ""}]})
        return web.Response(status=404)


class Stack:
    """Everything but generators. `kill` and `start` are the dispatcher's."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.storage = folder / "storage"
        self.tokenizer = Tokenizer()
        self.model_server = ModelServer()
        self.processes: list[asyncio.subprocess.Process] = []
        self.settings: dict[str, str] = {}

    async def __aenter__(self):
        self.exits = contextlib.AsyncExitStack()
        server = make_server()
        tokenizer_pb2_grpc.add_TokenizerServicer_to_server(self.tokenizer, server)
        server.add_insecure_port(f"unix:{self.folder}/tokenizer")
        await server.start()
        self.exits.push_async_callback(server.stop, None)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.model_server.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        self.exits.push_async_callback(runner.cleanup)
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        await web.SockSite(runner, sock).start()
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.channel = await self.exits.enter_async_context(open_channel(self.address))
        self.runs = dispatch_pb2_grpc.RunsStub(self.channel)
        return self

    async def __aexit__(self, *error):
        for process in self.processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
        await self.exits.aclose()

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/dispatcher"

    async def start(self, name: str = "dispatcher", **settings: Any) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "EYAS_LISTEN": f"unix:{self.folder}/{name}",
            "EYAS_STORAGE_URI": str(self.storage),
            "EYAS_TOKENIZER": f"unix:{self.folder}/tokenizer",
            "EYAS_METRICS_LISTEN": "127.0.0.1:0",
            "EYAS_FLUSH_SECONDS": "0.5",
            "EYAS_LEASE_SECONDS": "3",
            "EYAS_SILENCE_SECONDS": "2",
            "EYAS_HEARTBEAT_SECONDS": "0.5",
            "EYAS_PROGRESS_SECONDS": "0.1",
            **{f"EYAS_{key.upper()}": str(value) for key, value in {**self.settings, **settings}.items()},
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "eyas.dispatcher", env=environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        process = self.processes[-1]
        process.send_signal(number)
        return await process.wait()

    def spec(self, name: str = "r", samples: int = 20, turns: int = 1, **more: Any) -> run_pb2.RunSpec:
        mapping = specs.merge(
            {
                "name": name,
                "model": {"uri": MODEL, "servedName": "m"},
                "endpoints": [{"url": self.url}],
                "generation": {"maxTokens": 100, "concurrency": 8},
                "dataset": {"samples": samples, "generations": samples * turns, "hash": "h"},
            },
            more,
        )
        return specs.build(mapping)

    async def create(self, spec: run_pb2.RunSpec, turns: int = 1, until: int = run_pb2.STAGE_GENERATE):
        async def parts():
            yield pb.CreateRunRequest(header=pb.CreateRunHeader(spec=spec, until=until))
            batch = pb.SampleBatch()
            for position in range(spec.dataset.samples):
                messages = [{"role": "user", "content": f"{position}.{turn}"} for turn in range(turns)]
                batch.samples.add(
                    sample_id=f"id{position}", messages=json.dumps(messages), source="s", split="train", turns=turns
                )
            yield pb.CreateRunRequest(samples=batch)

        return await self.runs.CreateRun(parts(), wait_for_ready=True, timeout=30)

    async def progress(self, name: str = "r") -> run_pb2.Progress:
        response = await self.runs.GetRun(pb.GetRunRequest(run=name), wait_for_ready=True, timeout=30)
        return response.progress

    async def until(self, holds: Callable[[run_pb2.Progress], bool], name: str = "r", seconds: float = 30.0):
        """Waits for a progress, also through a restart of the dispatcher."""
        progress = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(aio.AioRpcError):
                        progress = await self.progress(name)
                        if holds(progress):
                            return progress
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log = (self.folder / "dispatcher.log").read_text()
            raise AssertionError(f"it did not come to that: {progress}\n{log[-5000:]}") from None

    async def control(self, name: str = "r", **action: Any) -> run_pb2.Progress:
        response = await self.runs.ControlRun(pb.ControlRunRequest(run=name, **action), wait_for_ready=True, timeout=30)
        return response.progress

    def rows(self, name: str = "r") -> list[dict[str, Any]]:
        return [row for path in sorted((self.storage / name / "generations").glob("*.parquet"))
                for row in GENERATIONS.rows(path.read_bytes())]  # fmt: skip

    def check_rows(self, expected: int, name: str = "r", *, but: frozenset[int] = frozenset()) -> None:
        rows = self.rows(name)
        places = [(row["position"], row["turn"]) for row in rows]
        assert len(set(places)) == len(places), "a row is there twice"
        assert len(rows) == expected
        for row in rows:
            assert row["ids"] == answer_of(row["position"], row["turn"])
            assert row["prompt_ids"][:3] == prompt_of(row["position"], row["turn"])[:3]
            assert row["finish_reason"] == "stop"


class Worker:
    """A generator by script: `tokens_at_once` ids each `step` seconds; `hook` may interrupt an item."""

    def __init__(self, address: str, capacity: int = 100, step: float = 0.02, tokens_at_once: int = 3):
        self.address = address
        self.name = uuid.uuid4().hex
        self.capacity = capacity
        self.step = step
        self.tokens_at_once = tokens_at_once
        self.held: dict[tuple[str, int, int, int], dict[str, Any]] = {}
        self.assigned: list[pb.Assign] = []
        self.generated = 0
        self.connections = 0
        self.most = 0
        self.interrupt: Callable[[pb.Item], pb.Interrupted | None] = lambda item: None
        self.hold_finish = False

    async def run(self) -> None:
        """Works, and connects again, until it is cancelled."""
        async with open_channel(self.address) as channel:
            stub = dispatch_pb2_grpc.DispatchStub(channel)
            while True:
                with contextlib.suppress(aio.AioRpcError, asyncio.CancelledError):
                    if asyncio.current_task().cancelling():
                        return
                    await self._stream(stub)
                if asyncio.current_task().cancelling():
                    return
                await asyncio.sleep(0.1)

    async def _stream(self, stub) -> None:
        call = stub.Work(wait_for_ready=True)
        await call.write(pb.WorkRequest(hello=pb.Hello(generator=self.name, capacity=self.capacity)))
        self.connections += 1
        for held in self.held.values():
            held["said"] = False
            await call.write(
                pb.WorkRequest(
                    holding=pb.Holding(
                        item=held["item"], attempt=held["attempt"], prompt_length=len(held["prompt"]),
                        length=len(held["ids"]), endpoint=held["endpoint"],
                    )
                )
            )  # fmt: skip
        await call.write(pb.WorkRequest(holding_done=pb.HoldingDone()))
        working = asyncio.create_task(self._work(call))
        try:
            while (response := await call.read()) is not aio.EOF:
                self._hear(response)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            call.cancel()

    def _hear(self, response: pb.WorkResponse) -> None:
        kind = response.WhichOneof("message")
        if kind in ("welcome", "pulse"):
            return
        message = getattr(response, kind)
        item = message.item
        key = (item.run, item.stage, item.position, item.turn)
        held = self.held.get(key)
        if kind == "assign":
            assert len(message.ids) == message.prompt_length + message.length
            self.assigned.append(message)
            prompt, ids = list(message.ids[: message.prompt_length]), list(message.ids[message.prompt_length :])
            if item.stage == run_pb2.STAGE_GENERATE:
                assert ids == answer_of(item.position, item.turn)[: len(ids)]
            self.held[key] = {
                "item": item, "attempt": message.attempt, "endpoint": message.endpoint, "prompt": prompt, "ids": ids,
                "sent_prompt": len(prompt), "sent": len(ids), "said": False, "ending": None, "assign": message,
                "release": False,
            }  # fmt: skip
            self.most = max(self.most, sum(h["ending"] is None for h in self.held.values()))
        elif held is None or held["attempt"] != message.attempt:
            return
        elif kind == "ack":
            if not held["said"]:
                held["sent_prompt"] = min(held["sent_prompt"], message.prompt_length)
                held["sent"] = min(held["sent"], message.length)
        elif kind == "durable" or message.reason == pb.STOP_REASON_FORGET:
            del self.held[key]
        else:
            held["release"] = True

    async def _work(self, call) -> None:
        beat = 0.0
        while True:
            await asyncio.sleep(self.step)
            beat += self.step
            if beat > 0.3:
                beat = 0.0
                await call.write(pb.WorkRequest(heartbeat=pb.Heartbeat()))
            for held in list(self.held.values()):
                for request in self._advance(held):
                    await call.write(request)

    def _advance(self, held: dict[str, Any]):
        item, attempt = held["item"], held["attempt"]
        if held["said"]:
            return
        extraction = item.stage == run_pb2.STAGE_EXTRACT
        if not held["prompt"]:
            held["prompt"] = prompt_of(item.position, item.turn, held["assign"].messages)
        if held["sent_prompt"] < len(held["prompt"]):
            yield pb.WorkRequest(
                prompt=pb.Prompt(item=item, attempt=attempt, ids=held["prompt"], total=len(held["prompt"]))
            )
            held["sent_prompt"] = len(held["prompt"])
        answer = [] if extraction else answer_of(item.position, item.turn)
        interrupted = None if held["ending"] or held["release"] else self.interrupt(item)
        if held["ending"] is None and not held["release"] and interrupted is None:
            before = len(held["ids"])
            if not extraction and not held["assign"].finish_reason:
                held["ids"] = answer[: before + self.tokens_at_once]
            self.generated += len(held["ids"]) - before
        if held["sent"] < len(held["ids"]):
            yield pb.WorkRequest(
                tokens=pb.Tokens(item=item, attempt=attempt, offset=held["sent"], ids=held["ids"][held["sent"] :])
            )
            held["sent"] = len(held["ids"])
        if interrupted is not None:
            interrupted.item.CopyFrom(item)
            interrupted.attempt = attempt
            interrupted.length = len(held["ids"])
            held["said"] = True
            yield pb.WorkRequest(interrupted=interrupted)
        elif held["release"] and held["ending"] is None:
            held["said"] = True
            yield pb.WorkRequest(released=pb.Released(item=item, attempt=attempt, length=len(held["ids"])))
        elif (extraction or held["ids"] == answer) and not self.hold_finish:
            held["ending"] = "stop"
            held["said"] = True
            yield pb.WorkRequest(
                finished=pb.Finished(
                    item=item, attempt=attempt, length=len(held["ids"]), finish_reason=pb.FINISH_REASON_STOP,
                    message=pb.Message(content=f"answer {item.position}.{item.turn}"), seconds=0.1,
                )
            )  # fmt: skip


@contextlib.asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def failed_precondition(error: aio.AioRpcError) -> str:
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    return error.details() or ""
