"""The generator as a process: how it starts, and how it ends."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from eyas.simulator.model import SimulatedModel
from eyas.simulator.server import serve
from eyas.simulator.settings import SimulatorSettings
from support.services import Dispatcher, Entry, Tokenizer, add_dispatcher, add_tokenizer, serving

MODEL = SimulatedModel(median_tokens=30)
SECONDS = 15


async def start(folder: Path, **settings: str) -> asyncio.subprocess.Process:
    addresses = {"EYAS_DISPATCHER": f"unix:{folder}/d", "EYAS_TOKENIZER": f"unix:{folder}/t"}
    environment = {**os.environ, "EYAS_METRICS_LISTEN": "127.0.0.1:0", **addresses, **settings}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "eyas.generator"), env=environment, stderr=asyncio.subprocess.PIPE
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(SECONDS):
        _, said = await process.communicate()
    return process.returncode, said.decode()


def entries(count: int) -> list[Entry]:
    return [Entry(k, json.dumps([{"role": "user", "content": str(k)}])) for k in range(count)]


async def test_settings_that_are_missing_are_named(tmp_path: Path) -> None:
    code, said = await ended(await start(tmp_path, EYAS_CAPACITY="many"))
    assert code == 1
    assert "EYAS_CAPACITY" in said
    assert "Traceback" not in said


async def test_it_waits_for_a_dispatcher_and_ends_at_once_when_asked(tmp_path: Path) -> None:
    process = await start(tmp_path)
    assert process.stderr is not None
    async with asyncio.timeout(SECONDS):
        while b"not connected" not in await process.stderr.readline():
            pass
    process.terminate()
    assert (await ended(process))[0] == 0


async def test_rows_are_acknowledged_before_it_ends(tmp_path: Path) -> None:
    simulated = SimulatorSettings(listen="127.0.0.1:0", median_tokens=30, tokens_per_second=0)
    async with serve(simulated) as url:
        dispatcher = Dispatcher(url, entries(5))
        dispatcher.durable_at_once = False
        async with (
            serving(add_tokenizer(Tokenizer(MODEL)), tmp_path / "t", "secret"),
            serving(add_dispatcher(dispatcher), tmp_path / "d", "secret"),
        ):
            process = await start(tmp_path, EYAS_TOKEN="secret")
            await dispatcher.until(lambda: dispatcher.all_finished)
            process.terminate()
            await dispatcher.until(lambda: dispatcher.draining)
            assert process.returncode is None
            dispatcher.commit_all()
            code, said = await ended(process)
    assert code == 0
    assert "secret" not in said


async def test_a_second_signal_ends_it_without_them(tmp_path: Path) -> None:
    simulated = SimulatorSettings(listen="127.0.0.1:0", median_tokens=30, tokens_per_second=0)
    async with serve(simulated) as url:
        dispatcher = Dispatcher(url, entries(5))
        dispatcher.durable_at_once = False
        async with (
            serving(add_tokenizer(Tokenizer(MODEL)), tmp_path / "t"),
            serving(add_dispatcher(dispatcher), tmp_path / "d"),
        ):
            process = await start(tmp_path)
            await dispatcher.until(lambda: dispatcher.all_finished)
            process.send_signal(signal.SIGINT)
            await dispatcher.until(lambda: dispatcher.draining)
            process.terminate()
            code, said = await ended(process)
    assert code == 1
    assert "5 items" in said.splitlines()[-1]
