"""Dispatcher and generator against the simulator: rate, memory, bytes and CPU, with bare aiohttp beside them.

    PYTHONPATH=tests python tests/benchmarks/bench_generate.py

Two runs: `items`, 10,000 short answers as fast as they go, and `streams`, few long ones at a steady pace, in which
nearly all of a generator's work is chunks. Bare aiohttp is asked for the same by a process that does nothing else.
Each part is a process of its own; its CPU time is the kernel's. Prints JSON.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from eyas.run.v1 import run_pb2
from eyas.simulator.model import SimulatedModel
from eyas.vllm.client import VllmClient
from support.dispatching import Stack
from support.generating import Tokenizer

ITEMS = {"samples": 10_000, "concurrency": 256, "median_tokens": 16, "sigma": 0.5, "tokens_per_second": 0}
STREAMS = {"samples": 400, "concurrency": 400, "median_tokens": 300, "sigma": 0.0, "tokens_per_second": 50}
PEER_REQUESTS = 2_000
TICK = os.sysconf("SC_CLK_TCK")


class Watched:
    """A process, and what it costs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.before = self.cpu_seconds()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def report(self) -> dict[str, float]:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return {"cpu_s": round(self.cpu_seconds() - self.before, 2), "peak_mb": round(int(peak.split()[1]) / 1024, 1)}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def started(module: str, log: Path, **settings: Any) -> asyncio.subprocess.Process:
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module), env={**os.environ, **settings}, stdout=out, stderr=out
        )


async def simulator(stack: Stack, shape: dict[str, Any]) -> Watched:
    port = free_port()
    names = ("median_tokens", "sigma", "tokens_per_second")
    settings = {f"EYAS_SIMULATOR_{name.upper()}": str(shape[name]) for name in names}
    process = await started(
        "eyas.simulator",
        stack.folder / "simulator.log",
        EYAS_SIMULATOR_LISTEN=f"127.0.0.1:{port}",
        EYAS_SIMULATOR_MODEL="m",
        **settings,
    )
    stack.processes.insert(0, process)
    stack.url = f"http://127.0.0.1:{port}"
    async with VllmClient() as client:
        while not await client.healthy(stack.url):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return Watched(process)


async def counted(port: int) -> dict[str, float]:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
        lines = (await response.text()).splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


async def run(shape: dict[str, Any]) -> dict[str, Any]:
    """One run of eyas, then its peer against the same simulator."""
    async with AsyncExitStack() as exits:
        stack = Stack(Path(exits.enter_context(tempfile.TemporaryDirectory())))
        model = SimulatedModel(median_tokens=shape["median_tokens"], sigma=shape["sigma"])
        stack.tokenizer = Tokenizer(model)
        await exits.enter_async_context(stack)
        serving = await simulator(stack, shape)
        dispatching = Watched(await stack.start(flush_seconds=30, progress_seconds=1, lease_seconds=20))
        port = free_port()
        generating = Watched(
            await started(
                "eyas.generator",
                stack.folder / "generator.log",
                EYAS_DISPATCHER=stack.address,
                EYAS_TOKENIZER=f"unix:{stack.folder}/tokenizer",
                EYAS_METRICS_LISTEN=f"127.0.0.1:{port}",
            )
        )
        stack.processes.insert(0, generating.process)
        generation = {"maxTokens": 2000, "concurrency": shape["concurrency"]}
        await stack.create(stack.spec(samples=shape["samples"], generation=generation))
        watched = (dispatching, generating, serving)
        for each in watched:
            each.before = each.cpu_seconds()
        began = time.monotonic()
        await stack.until(lambda progress: progress.state == run_pb2.STATE_DONE, seconds=600)
        seconds = time.monotonic() - began
        metrics = await counted(port)
        rows = stack.rows()
        assert len(rows) == len({row["position"] for row in rows}) == shape["samples"]
        assert all(row["ids"] == model.answer(row["prompt_ids"], 2000) for row in rows[::10])
        files = [path for path in stack.storage.rglob("*") if path.is_file()]
        result = {
            "items": shape["samples"],
            "tokens": sum(len(row["ids"]) for row in rows),
            "chunks": int(metrics["eyas_generator_chunks_total"]),
            "seconds": round(seconds, 2),
            "items_per_s": round(shape["samples"] / seconds, 1),
            "tokens_per_s": round(sum(len(row["ids"]) for row in rows) / seconds),
            "stored_bytes": sum(path.stat().st_size for path in files),
            "stored_objects": len(files),
            "dispatcher": dispatching.report(),
            "generator": generating.report(),
            "simulator": serving.report(),
        }
        peer = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "peer", stack.url, json.dumps(shape)), stdout=asyncio.subprocess.PIPE
        )
        result["aiohttp"] = json.loads((await peer.communicate())[0])
        return result


async def peer(url: str, shape: dict[str, Any]) -> dict[str, Any]:
    """Bare aiohttp: the same requests, each chunk read and parsed, and nothing else."""
    import orjson  # noqa: PLC0415 - of this process alone

    model = SimulatedModel(median_tokens=shape["median_tokens"], sigma=shape["sigma"])
    requests = min(PEER_REQUESTS, shape["samples"])
    gate, chunks = asyncio.Semaphore(shape["concurrency"]), 0

    async def ask(position: int) -> None:
        nonlocal chunks
        prompt = model.render([{"role": "user", "content": f"{position}.0"}])
        body = {"model": "m", "prompt": prompt, "max_tokens": 2000, "stream": True, "return_token_ids": True}
        ids: list[int] = []
        async with gate, session.post(f"{url}/v1/completions", json=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    ids += orjson.loads(line[6:])["choices"][0]["token_ids"]
                    chunks += 1
        assert ids == model.answer(prompt, 2000)

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        before = time.process_time()
        await asyncio.gather(*(ask(position) for position in range(requests)))
        cpu = time.process_time() - before
    return {"items": requests, "chunks": chunks, "cpu_s": round(cpu, 2)}


def costs(items: dict[str, Any], streams: dict[str, Any], name: str) -> tuple[float, float]:
    """CPU a chunk in microseconds, and a request in milliseconds: two runs, two unknowns."""
    (a, b), (c, d) = (
        ((r["chunks"], r["items"]) if name == "generator" else (r[name]["chunks"], r[name]["items"]))
        for r in (items, streams)
    )
    x, y = items[name]["cpu_s"], streams[name]["cpu_s"]
    determinant = a * d - b * c
    return round((x * d - b * y) / determinant * 1e6, 1), round((a * y - x * c) / determinant * 1e3, 3)


def main() -> None:
    if sys.argv[1:2] == ["peer"]:
        import uvloop  # noqa: PLC0415

        print(json.dumps(uvloop.run(peer(sys.argv[2], json.loads(sys.argv[3])))))
        return
    items, streams = asyncio.run(run(ITEMS)), asyncio.run(run(STREAMS))
    generator_us, generator_ms = costs(items, streams, "generator")
    aiohttp_us, aiohttp_ms = costs(items, streams, "aiohttp")
    summary = {
        "generator_us_per_chunk": generator_us,
        "aiohttp_us_per_chunk": aiohttp_us,
        "generator_ms_per_request": generator_ms,
        "aiohttp_ms_per_request": aiohttp_ms,
    }
    print(json.dumps({"items": items, "streams": streams} | summary, indent=2))


if __name__ == "__main__":
    main()
