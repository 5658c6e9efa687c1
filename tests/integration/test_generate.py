"""Dispatcher and generator as processes, against the simulator, killed in the middle: every answer once, and whole."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from eyas.run.v1 import run_pb2
from eyas.simulator.faults import Kind, Rule
from support.generating import Generating

SAMPLES = 60
GENERATION = {"maxTokens": 120, "concurrency": 20}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Generating]:
    async with Generating(tmp_path, median_tokens=60, sigma=0.7, tokens_per_second=60) as made:
        yield made


def done(progress: run_pb2.Progress) -> bool:
    return progress.state == run_pb2.STATE_DONE


async def begin(stack: Generating) -> None:
    await stack.start(hint_seconds=0.5)
    await stack.start_generator()
    await stack.create(stack.spec(samples=SAMPLES, generation=GENERATION))


async def in_the_middle(stack: Generating) -> None:
    """Until more rows are there, and many answers are on their way."""
    rows = len(stack.rows())
    running = stack.server.engine.running
    await stack.until(lambda progress: progress.items.ok > rows + 5 and len(running) > 10)


async def test_nothing_happens(stack: Generating) -> None:
    await begin(stack)
    progress = await stack.until(done)
    stack.check_answers(SAMPLES, 120)
    assert stack.useful_share() > 0.99  # the probe's token
    assert progress.tokens.generated == progress.tokens.useful == sum(len(row["ids"]) for row in stack.rows())
    assert await stack.kill_generator(signal.SIGTERM) == 0


async def test_the_generator_is_killed(stack: Generating) -> None:
    await begin(stack)
    for _ in range(2):
        await in_the_middle(stack)
        await stack.kill_generator()
        await stack.start_generator()
    await stack.until(done)
    stack.check_answers(SAMPLES, 120)
    assert stack.useful_share() > 0.7  # what was not yet reported, twice; more on a busy machine


async def test_one_of_two_generators_is_killed_and_the_other_takes_over(stack: Generating) -> None:
    await begin(stack)
    await stack.start_generator()
    await in_the_middle(stack)
    await stack.kill_generator()
    await stack.until(done)
    stack.check_answers(SAMPLES, 120)


async def test_the_dispatcher_is_killed(stack: Generating) -> None:
    await begin(stack)
    for _ in range(2):
        await in_the_middle(stack)
        await stack.kill()
        await stack.start(hint_seconds=0.5)
    await stack.until(done)
    stack.check_answers(SAMPLES, 120)
    assert stack.useful_share() > 0.99  # it costs nothing


async def test_both_are_killed(stack: Generating) -> None:
    await begin(stack)
    await in_the_middle(stack)
    await asyncio.gather(stack.kill(), stack.kill_generator())
    await stack.start(hint_seconds=0.5)
    await stack.start_generator()
    await stack.until(done)
    stack.check_answers(SAMPLES, 120)


async def test_both_are_asked_to_end(stack: Generating) -> None:
    await begin(stack)
    await in_the_middle(stack)
    assert await stack.kill_generator(signal.SIGTERM) == 0
    assert await stack.kill(signal.SIGTERM) == 0
    await stack.start(hint_seconds=0.5)
    await stack.start_generator(grace_seconds=0.2)
    await stack.until(lambda _: len(stack.server.engine.running) > 10)
    assert await stack.kill_generator(signal.SIGTERM) == 0
    await stack.start_generator()
    await stack.until(done)
    stack.check_answers(SAMPLES, 120)
    assert stack.useful_share() > 0.99  # all of it was given back


async def test_faults_of_the_server_cost_no_row(tmp_path: Path) -> None:
    faults = [Rule(kind=kind, share=0.08, after=7) for kind in Kind if kind is not Kind.HANG]
    faults.append(Rule(kind=Kind.HANG, share=0.05, after=7))
    async with Generating(tmp_path, median_tokens=40, tokens_per_second=200, faults=faults) as stack:
        await stack.start()
        await stack.start_generator()
        timeouts = {"firstToken": 5.0, "stall": 0.5}
        await stack.create(stack.spec(samples=SAMPLES, generation=GENERATION, timeouts=timeouts))
        progress = await stack.until(done, seconds=60)
        stack.check_answers(SAMPLES, 120)
    assert progress.items.failed == 0
    assert progress.timeouts["stall"] > 0
    assert progress.attempts["endpoint"] > 10


async def test_protocol_chat(tmp_path: Path) -> None:
    async with Generating(tmp_path, median_tokens=40, tokens_per_second=200) as stack:
        await stack.start()
        await stack.start_generator()
        await stack.create(stack.spec(samples=20, generation=GENERATION | {"protocol": "chat"}))
        await stack.until(done)
        stack.check_answers(20, 120)
