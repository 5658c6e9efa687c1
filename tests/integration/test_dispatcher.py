"""The dispatcher as a process: a run from its creation to its closing check, through kills and restarts."""

import signal

import pytest
from grpc import aio
from tests.support.dispatching import Stack, Worker, failed_precondition, working

from eyas.run.v1 import run_pb2


@pytest.fixture
async def stack(tmp_path):
    async with Stack(tmp_path) as stack:
        yield stack


def done(progress):
    return progress.state == run_pb2.STATE_DONE


async def test_a_run_is_done_once_and_the_same_again_is_the_same_run(stack):
    await stack.start()
    created = await stack.create(stack.spec(samples=30))
    assert created.created
    assert created.progress.state == run_pb2.STATE_RUNNING
    worker = Worker(stack.address)
    async with working(worker):
        progress = await stack.until(done)
    assert (progress.items.total, progress.items.ok, progress.items.waiting) == (0, 0, 0)
    stack.check_rows(30)
    assert worker.most <= 8
    again = await stack.create(stack.spec(samples=30))
    assert not again.created
    assert again.progress.state == run_pb2.STATE_DONE
    with pytest.raises(aio.AioRpcError) as error:
        await stack.create(stack.spec(samples=30, generation={"maxTokens": 50}))
    assert "generation.maxTokens: 50, there 100" in failed_precondition(error.value)
    assert await stack.kill(signal.SIGTERM) == 0
