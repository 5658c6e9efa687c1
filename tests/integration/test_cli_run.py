"""`eyas generate` as a user has it: interrupted, killed, controlled, and always with the same rows at the end."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.command_line import alive, descendants, eyas, outcome, own_mounts, process_of, start

from eyas.simulator.model import SimulatedModel
from eyas.simulator.server import serve
from eyas.simulator.settings import SimulatorSettings

QUESTIONS = 50
MAX_TOKENS = 300
MODEL = SimulatedModel(vocab_size=49152, marker_id=198, median_tokens=150)
"""The id that ends every prompt of SmolLM2 is a newline."""


@pytest.fixture
async def endpoint(model_folder):
    """A simulator whose answers take a few seconds."""
    settings = SimulatorSettings(
        listen="127.0.0.1:0",
        model=str(model_folder),
        vocab_size=MODEL.vocab_size,
        marker_id=MODEL.marker_id,
        median_tokens=MODEL.median_tokens,
        tokens_per_second=60,
        max_num_seqs=16,
    )
    async with serve(settings) as url:
        yield url


@pytest.fixture
def command(tmp_path, model_folder, endpoint):
    """The command that all tests give; the run is `demo`."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(json.dumps({"prompt": f"What is {number}?"}) for number in range(QUESTIONS)))

    return (
        *("generate", "--model", model_folder, "--endpoint", endpoint, "--dataset", questions),
        *("--max-tokens", str(MAX_TOKENS), "--concurrency", "16", "--sampling-params", '{"temperature": 0}'),
        *("--output", tmp_path / "demo"),
    )


def check(folder: Path):
    """Every answer is there, once, and is the one that an unbroken request gets."""
    found = [
        row for part in sorted((folder / "generations").glob("*.parquet")) for row in pq.read_table(part).to_pylist()
    ]
    assert len(found) == len({(row["position"], row["turn"]) for row in found}) == QUESTIONS
    for row in found:
        assert row["ids"] == MODEL.answer(row["prompt_ids"], MAX_TOKENS)
        assert row["finish_reason"] == ("stop" if row["ids"][-1] == MODEL.eos_id else "length")


async def some_tokens(process):
    """Waits until the command says that answers are on their way."""
    async for line in process.stdout:
        if b"tokens/s" in line:
            return
    raise AssertionError((await process.stderr.read()).decode())


async def test_a_run_from_its_start_to_its_end(command, tmp_path):
    done = await eyas(*command)
    assert done.status == 0, done
    assert f"dataset: {QUESTIONS} conversations to train on, {QUESTIONS} answers to generate" in done.out
    assert f"done {QUESTIONS}/{QUESTIONS}" in done.out
    assert "\x1b" not in done.out
    check(tmp_path / "demo")
    again = await eyas(*command)
    assert again.status == 0
    check(tmp_path / "demo")


async def test_interrupted_and_killed_it_ends_with_the_same_answers(command, tmp_path):
    process = await start(*command)
    await some_tokens(process)
    below = descendants(process)
    process.send_signal(signal.SIGINT)
    stopped = await outcome(process)
    assert stopped.status == 130
    assert "the same command goes on where it was" in stopped.out
    assert not any(map(alive, below))
    process = await start(*command)
    await some_tokens(process)
    below = descendants(process)
    process.kill()
    await process.wait()
    async with asyncio.timeout(60):
        while any(map(alive, below)):  # noqa: ASYNC110 - other processes end
            await asyncio.sleep(0.1)
    last = await eyas(*command)
    assert last.status == 0, last
    assert "resuming: generating, " in last.out
    check(tmp_path / "demo")


@pytest.mark.parametrize("service", ["eyas.dispatcher", "eyas.generator", "eyas.tokenizer"])
async def test_a_service_that_is_killed_costs_nothing(command, tmp_path, service):
    process = await start(*command)
    await some_tokens(process)
    os.kill(process_of(process, service), signal.SIGKILL)
    done = await outcome(process)
    assert done.status == 0, done
    check(tmp_path / "demo")
    assert "a service died and is started again" in (tmp_path / "demo/logs/eyas.log").read_text()


async def test_a_running_run_is_watched_paused_and_changed(command, tmp_path):
    process = await start(*command)
    await some_tokens(process)
    demo = tmp_path / "demo"
    paused = await eyas("pause", demo, "--reason", "lunch")
    assert "paused" in paused.out
    assert "paused by hand: lunch" in paused.out
    twice = await eyas(*command)
    assert twice.status == 1
    assert "another eyas works on" in twice.err
    changed = await eyas("set", demo, "generation.concurrency=8", "timeouts.stall=77")
    assert changed.status == 0, changed
    refused = await eyas("set", demo, "model.uri=other")
    assert refused.status == 1
    assert "model.uri cannot change on a run" in refused.err
    resumed = await eyas("resume", demo)
    assert resumed.status == 0
    watched = await eyas("watch", demo)
    assert watched.status == 0, watched
    assert f"/{QUESTIONS} · ok" in watched.out
    done = await outcome(process)
    assert done.status == 0, done
    listed = await eyas("list", tmp_path)
    assert f"│ demo │ done  │ {QUESTIONS}" in listed.out
    report = await eyas("report", demo)
    assert report.out.strip() == f"{demo}/report.html"
    assert (demo / "report.html").stat().st_size > 1000


async def test_a_storage_that_fills_up_ends_the_run_with_the_remedy(command, tmp_path):
    out = tmp_path / "out"
    prefix = own_mounts('mount -t tmpfs -o size=112k none "$0"', out)
    full = await eyas(*command[:-1], out / "demo", prefix=prefix)
    assert full.status == 1, full
    assert "No space left" in full.err
    assert "make room" in full.err
    assert full.err.count("\n") == 1


async def test_a_cancelled_run_ends_with_a_sentence(command, tmp_path):
    process = await start(*command)
    await some_tokens(process)
    assert (await eyas("cancel", tmp_path / "demo")).status == 0
    ended = await outcome(process)
    assert ended.status == 1
    assert "was cancelled" in ended.err


async def test_other_settings_of_the_same_run_are_set(command, tmp_path):
    process = await start(*command)
    await some_tokens(process)
    process.send_signal(signal.SIGTERM)
    assert (await outcome(process)).status == 130
    done = await eyas(*command, "--concurrency", "4", "timeouts.stall=55")
    assert done.status == 0, done
    entries = [json.loads(path.read_text()) for path in sorted((tmp_path / "demo/control").iterdir())]
    (values,) = [entry["set"]["values"] for entry in entries if "set" in entry]
    assert values == {"generation.concurrency": "4", "timeouts.stall": "55.0"}
