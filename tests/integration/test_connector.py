"""The connector in a real vLLM: states equal those of transformers, and nothing that goes wrong ends the engine."""

import asyncio
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio
from moto.server import ThreadedMotoServer

from eyas.storage import hidden_states
from eyas.storage.objects import open_store
from eyas.vllm import launch
from support.extracting import CONTEXT, Extracting, Reference, command
from support.tiny_models import VOCABULARY, make_llama, make_mla

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

START_SECONDS = 240
TOLERANCE = 2e-5  # float32, other kernels


@dataclass(frozen=True)
class Case:
    """A server: its model, vLLM's model runner, and where the objects go."""

    make: Callable[[Path], Path]
    v2: bool
    s3: bool
    extra: tuple[str, ...] = ()


# In float32, vLLM's attention for latent caches on the CPU knows no chunked prefill, and must be asked for by name.
CASES = {
    "llama-v1-folder": Case(make_llama, v2=False, s3=False, extra=("--max-num-batched-tokens", "256")),
    "llama-v2-s3": Case(make_llama, v2=True, s3=True, extra=("--max-num-batched-tokens", "256")),
    "mla-v1-s3": Case(make_mla, v2=False, s3=True, extra=("--attention-backend", "CPU_MLA")),
    "mla-v2-folder": Case(make_mla, v2=True, s3=False, extra=("--attention-backend", "CPU_MLA")),
}


@pytest.fixture(scope="module")
def s3():
    """An S3 server inside the test process; the AWS_* variables point to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        yield server
    server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=CASES.values(), ids=CASES.keys())
async def extracting(
    request, vllm_host: launch.Host, s3: ThreadedMotoServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Extracting]:
    case, folder = request.param, tmp_path_factory.mktemp("extracting")
    reference = Reference(case.make(folder / "model"))
    storage = str(folder / "out")
    if case.s3:
        storage = f"s3://{uuid4().hex}/some/prefix"
        async with aiohttp.ClientSession() as session:
            await session.put(f"{os.environ['AWS_ENDPOINT_URL']}/{storage.split('/')[2]}")
    started = command(folder / "model", vllm_host, reference.layer_ids, storage, *case.extra, v2=case.v2)
    last = sequence(33)
    async with launch.VllmServer(started, folder / "log", START_SECONDS) as server:
        assert ("Using V2 Model Runner" in (folder / "log").read_text()) == case.v2
        found = Extracting(server.url, open_store(storage), reference)
        yield found
        assert server.exit_code is None
        assert await found.ask(last) == 200
        api_server = re.search(r"APIServer pid=(\d+)", (folder / "log").read_text())
        os.kill(int(api_server[1]), signal.SIGTERM)  # as Kubernetes does: to the first process alone
        await server.wait()
    assert reference.difference(await found.store.get(found.key(last)), last) < TOLERANCE  # written before the end


def sequence(length: int) -> list[int]:
    return [random.randrange(2, VOCABULARY) for _ in range(length)]


async def test_states_are_those_of_transformers(extracting):
    """Many lengths at once, around the block sizes and above what is computed in one step."""
    sequences = [sequence(n) for n in (1, 2, 15, 16, 17, 64, 127, 128, 129, 255, 300, 700, CONTEXT - 1)]
    assert set(await asyncio.gather(*map(extracting.ask, sequences))) == {200}
    worst = 0.0
    for ids in sequences:
        data = await extracting.object(ids)
        worst = max(worst, extracting.reference.difference(data, ids))
    print(f"largest relative difference: {worst:.2e}")
    assert worst < TOLERANCE


async def test_shared_beginnings(extracting):
    """Blocks that another request computed hold its states, and they are the same."""
    first = sequence(300)
    longer = [first + sequence(200), first[:200] + sequence(100), first[:256]]
    await extracting.ask(first)
    await extracting.object(first)
    await asyncio.gather(*map(extracting.ask, longer))
    for ids in longer:
        assert extracting.reference.difference(await extracting.object(ids), ids) < TOLERANCE
    metrics = await extracting.metrics()
    cached = metrics["vllm:prefix_cache_queries_total"] > 0
    assert (metrics["vllm:prefix_cache_hits_total"] > 0) == cached


async def test_the_same_again_is_one_object(extracting):
    ids = sequence(50)
    before = await extracting.metrics()
    await asyncio.gather(*(extracting.ask(ids) for _ in range(3)))
    after = await extracting.settled("existing", before["existing"] + 2)
    assert after["failed"] == before["failed"]
    assert extracting.reference.difference(await extracting.object(ids), ids) < TOLERANCE


async def test_clients_that_leave_leave_no_broken_object(extracting):
    sequences = [sequence(CONTEXT - 1) for _ in range(24)]
    tasks = [asyncio.create_task(extracting.ask(ids)) for ids in sequences]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    after = sequence(100)
    assert await extracting.ask(after) == 200
    await extracting.object(after)
    there = [ids for ids in sequences if await extracting.there(ids)]
    assert 0 < len(there) < len(sequences)
    for ids in [*there, after]:
        assert extracting.reference.difference(await extracting.object(ids), ids) < TOLERANCE


async def test_requests_that_cannot_be_met_are_answered_and_counted(extracting):
    ids = sequence(40)
    before = await extracting.metrics()
    for wrong in (
        {"eyas_rows": 42},
        {"eyas_rows": "all"},
        {"eyas_key": extracting.key(ids[1:])},
        {"eyas_key": f"/tmp/{hidden_states.key(ids)}.safetensors"},
        {"eyas_key": f"../{hidden_states.key(ids)}.safetensors"},
    ):
        assert await extracting.ask(ids, **wrong) == 200
    after = await extracting.settled("refused", before["refused"] + 5)
    assert after["refused"] == before["refused"] + 5
    assert not await extracting.there(ids)
    assert await extracting.ask(ids) == 200
    assert extracting.reference.difference(await extracting.object(ids), ids) < TOLERANCE


async def test_an_upload_that_fails_does_not_end_the_engine(extracting):
    """What stands at a key is never replaced, nor can a key lie below an object in a folder."""
    taken, below = sequence(40), sequence(41)
    await extracting.store.put(extracting.key(taken), b"something else")
    before = await extracting.metrics()
    assert await extracting.ask(taken) == 200
    expected = 1
    if not extracting.store.uri.startswith("s3"):
        await extracting.store.put("file", b"x")
        assert await extracting.ask(below, eyas_key=f"file/{hidden_states.key(below)}.safetensors") == 200
        expected = 2
    after = await extracting.settled("failed", before["failed"] + expected)
    assert after["failed"] == before["failed"] + expected
    assert await extracting.store.get(extracting.key(taken)) == b"something else"
    good = sequence(42)
    assert await extracting.ask(good) == 200
    assert extracting.reference.difference(await extracting.object(good), good) < TOLERANCE
