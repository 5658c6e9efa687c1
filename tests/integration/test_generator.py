"""A generator between a dispatcher in memory and the simulator, over real sockets, with faults."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.generator.core.ledger import Ledger
from eyas.generator.metrics import Metrics
from eyas.generator.stream import Attempts
from eyas.generator.tokenizing import Tokenizing
from eyas.generator.worker import Worker
from eyas.rpc.channels import open_channel
from eyas.run.v1 import run_pb2
from eyas.simulator.faults import Kind, Rule
from eyas.simulator.model import SimulatedModel
from eyas.simulator.server import Server, serve
from eyas.simulator.settings import SimulatorSettings
from eyas.vllm.client import VllmClient
from support.services import Dispatcher, Entry, Tokenizer, add_dispatcher, add_tokenizer, eventually, serving

MODEL = SimulatedModel(median_tokens=60, sigma=0.6)


def simulated(**settings: Any) -> SimulatorSettings:
    base = {"listen": "127.0.0.1:0", "median_tokens": 60, "sigma": 0.6, "tokens_per_second": 0}
    return SimulatorSettings(**(base | settings))


def works(count: int, **values: Any) -> list[Entry]:
    return [
        Entry(position, json.dumps([{"role": "user", "content": f"question {position}"}]), **values)
        for position in range(count)
    ]


def prompt_of(work: Entry) -> list[int]:
    return MODEL.render(json.loads(work.messages))


def check(dispatcher: Dispatcher, max_tokens: int = 1000) -> None:
    """Every answer is the simulator's own, unbroken."""
    for work in dispatcher.works.values():
        assert work.ids == MODEL.answer(prompt_of(work), max_tokens)
        assert work.prompt == prompt_of(work)
        assert work.finished is not None
        ended = work.ids[-1] == MODEL.eos_id
        assert work.finished.finish_reason == (pb.FINISH_REASON_STOP if ended else pb.FINISH_REASON_LENGTH)
        assert work.finished.message.content == MODEL.text(work.ids)


@dataclass
class Generator:
    worker: Worker
    ledger: Ledger
    registry: CollectorRegistry

    def metrics(self) -> dict[str, float]:
        lines = generate_latest(self.registry).decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@asynccontextmanager
async def generator(folder: Path, token: str = "") -> AsyncIterator[Generator]:
    ledger, registry = Ledger("g", 100), CollectorRegistry()
    async with (
        VllmClient() as client,
        open_channel(f"unix:{folder}/d", token) as dispatcher,
        open_channel(f"unix:{folder}/t", token) as tokenizer,
    ):
        attempts = Attempts(ledger, client, Tokenizing(tokenizer))
        worker = Worker(dispatcher, ledger, attempts, Metrics(registry, ledger, attempts.activities))
        task = asyncio.create_task(worker.run())
        try:
            yield Generator(worker, ledger, registry)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def stage(folder: Path, dispatcher: Dispatcher, token: str = "") -> AsyncIterator[Generator]:
    async with (
        serving(add_tokenizer(Tokenizer(MODEL)), folder / "t", token),
        serving(add_dispatcher(dispatcher), folder / "d", token),
        generator(folder, token) as made,
    ):
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


async def test_answers_are_the_simulators_own(folder: Path) -> None:
    async with serve(simulated()) as url:
        dispatcher = Dispatcher(url, works(20))
        async with stage(folder, dispatcher, token="secret") as made:
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)
            metrics = made.metrics()
    assert metrics['eyas_generator_attempts_total{outcome="ok"}'] == 20
    assert metrics["eyas_generator_tokens_total"] == sum(len(work.ids) for work in dispatcher.works.values())
    assert metrics['eyas_generator_timeouts_total{phase="stall"}'] == 0
    assert metrics["eyas_generator_connected"] == 1


async def test_budget_and_context_end_answers_with_length(folder: Path) -> None:
    async with serve(simulated(context=80)) as url:
        dispatcher = Dispatcher(url, works(5), max_tokens=20, context=80)
        async with stage(folder, dispatcher):
            await dispatcher.until(lambda: dispatcher.all_finished)
    for work in dispatcher.works.values():
        room = min(20, 80 - len(work.prompt))
        assert work.ids == MODEL.answer(work.prompt, room)
        assert work.finished is not None
        length = pb.FINISH_REASON_LENGTH if len(work.ids) == room else pb.FINISH_REASON_STOP
        assert work.finished.finish_reason == length
    assert any(len(work.ids) == 20 for work in dispatcher.works.values())


async def test_a_prompt_without_room_is_the_items_fault(folder: Path) -> None:
    dispatcher = Dispatcher("http://127.0.0.1:9", works(1), context=20)
    async with stage(folder, dispatcher):
        await dispatcher.until(lambda: bool(dispatcher.works[0].interruptions))
    interruption = dispatcher.works[0].interruptions[0]
    assert interruption.cause == pb.CAUSE_ITEM
    assert "leaves no room in a context of 20" in interruption.detail


FAULTS = [
    (Kind.CUT, pb.CAUSE_CONNECTION, 0),
    (Kind.END, pb.CAUSE_STREAM, 0),
    (Kind.DONE, pb.CAUSE_STREAM, 0),
    (Kind.ABORT, pb.CAUSE_STREAM, 0),
    (Kind.ERROR, pb.CAUSE_STREAM, 503),
    (Kind.GARBAGE, pb.CAUSE_PROTOCOL, 0),
    (Kind.STATUS, pb.CAUSE_SERVER, 503),
]


@pytest.mark.parametrize(("kind", "cause", "status"), FAULTS)
async def test_interrupted_answers_continue_exactly(
    folder: Path, kind: Kind, cause: pb.Cause.ValueType, status: int
) -> None:
    async with serve(simulated(faults=[Rule(kind=kind, share=0.7, after=9)])) as url:
        dispatcher = Dispatcher(url, works(8))
        async with stage(folder, dispatcher) as made:
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)
            metrics = made.metrics()
    interruptions = [found for work in dispatcher.works.values() for found in work.interruptions]
    assert interruptions
    assert {(found.cause, found.http_status) for found in interruptions} == {(cause, status)}
    assert metrics['eyas_generator_attempts_total{outcome="endpoint"}'] == len(interruptions)


async def test_a_hung_stream_stalls_while_others_get_tokens(folder: Path) -> None:
    timeouts = run_pb2.Timeouts(connect=5.0, first_token=10.0, stall=0.3)
    faults = [Rule(kind=Kind.HANG, share=0.3, after=5)]
    async with serve(simulated(tokens_per_second=100, faults=faults)) as url:
        dispatcher = Dispatcher(url, works(8), timeouts=timeouts)
        async with stage(folder, dispatcher) as made:
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)
            metrics = made.metrics()
    causes = [found.cause for work in dispatcher.works.values() for found in work.interruptions]
    assert set(causes) == {pb.CAUSE_TIMEOUT_STALL}
    assert metrics['eyas_generator_timeouts_total{phase="stall"}'] == len(causes)


async def test_a_server_that_never_answers_runs_into_first_token(folder: Path) -> None:
    timeouts = run_pb2.Timeouts(connect=5.0, first_token=0.2)
    async with serve(simulated(faults=[Rule(kind=Kind.HANG, share=0.5)])) as url:
        dispatcher = Dispatcher(url, works(4), timeouts=timeouts)
        async with stage(folder, dispatcher):
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)
    causes = {found.cause for work in dispatcher.works.values() for found in work.interruptions}
    assert causes == {pb.CAUSE_TIMEOUT_FIRST_TOKEN}


async def test_an_unreachable_server_is_a_connection_and_an_unknown_model_a_configuration(folder: Path) -> None:
    async with serve(simulated()) as url:
        there, away = Entry(0, "[]", endpoint=url), Entry(1, "[]", endpoint="http://127.0.0.1:9")
        dispatcher = Dispatcher(url, [there, away], model="another")
        async with stage(folder, dispatcher):
            await dispatcher.until(lambda: bool(there.interruptions) and bool(away.interruptions))
    assert (there.interruptions[0].cause, there.interruptions[0].http_status) == (pb.CAUSE_CONFIGURATION, 404)
    assert "does not exist" in there.interruptions[0].detail
    assert away.interruptions[0].cause == pb.CAUSE_CONNECTION


async def test_messages_that_the_template_rejects(folder: Path) -> None:
    dispatcher = Dispatcher("http://127.0.0.1:9", [Entry(0, '"reject"')])
    async with stage(folder, dispatcher):
        await dispatcher.until(lambda: bool(dispatcher.works[0].interruptions))
    assert dispatcher.works[0].interruptions[0].cause == pb.CAUSE_TEMPLATE


async def test_the_tokenizer_is_waited_for(folder: Path) -> None:
    async with serve(simulated()) as url:
        dispatcher = Dispatcher(url, works(3))
        async with serving(add_dispatcher(dispatcher), folder / "d"), generator(folder) as made:
            await dispatcher.until(lambda: dispatcher.streams == 1)
            await eventually(lambda: len(made.ledger.items) == 3)
            async with serving(add_tokenizer(Tokenizer(MODEL)), folder / "t"):
                await dispatcher.until(lambda: dispatcher.all_finished)
                check(dispatcher)
    assert not any(work.interruptions for work in dispatcher.works.values())


async def test_long_partials_come_in_pieces_and_go_on(folder: Path) -> None:
    model = SimulatedModel(median_tokens=6000, sigma=0.0)
    work = works(1)[0]
    work.prompt = prompt_of(work)
    whole = model.answer(work.prompt, 6000)
    work.ids = whole[:5000]
    async with serve(simulated(median_tokens=6000, sigma=0.0, context=16384)) as url:
        dispatcher = Dispatcher(url, [work], max_tokens=6000, context=16384)
        async with stage(folder, dispatcher):
            await dispatcher.until(lambda: dispatcher.all_finished)
    assert work.ids == whole


async def test_a_complete_partial_is_only_read(folder: Path) -> None:
    work = works(1)[0]
    work.prompt = prompt_of(work)
    work.ids = MODEL.answer(work.prompt, 1000)
    dispatcher = Dispatcher("http://127.0.0.1:9", [work], finish_reason=pb.FINISH_REASON_STOP)
    async with stage(folder, dispatcher):
        await dispatcher.until(lambda: dispatcher.all_finished)
        check(dispatcher)


async def test_chat_starts_again_from_nothing(folder: Path) -> None:
    async with serve(simulated(faults=[Rule(kind=Kind.CUT, share=0.5, after=9)])) as url:
        dispatcher = Dispatcher(url, works(6, protocol=run_pb2.PROTOCOL_CHAT))
        async with stage(folder, dispatcher):
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)
    assert any(work.interruptions for work in dispatcher.works.values())


async def test_extractions_are_asked_for_and_stored(folder: Path) -> None:
    storage = folder / "storage"
    storage.mkdir()
    work = Entry(0, stage=run_pb2.STAGE_EXTRACT, prompt=list(range(600, 700)), key="r/hidden_states/k.safetensors")
    async with serve(simulated(storage_uri=str(storage))) as url:
        dispatcher = Dispatcher(url, [work])
        async with stage(folder, dispatcher):
            await dispatcher.until(lambda: dispatcher.all_finished)
    assert work.finished is not None
    assert (work.finished.length, work.finished.finish_reason) == (0, pb.FINISH_REASON_STOP)
    assert (storage / work.key).stat().st_size == 1024 + 100 * (8 + 4 * 64 * 2)


async def test_requests_outlive_the_dispatcher(folder: Path) -> None:
    async with serve(simulated(tokens_per_second=200)) as url:
        dispatcher = Dispatcher(url, works(10))
        dispatcher.durable_at_once = False
        async with serving(add_tokenizer(Tokenizer(MODEL)), folder / "t"), generator(folder) as made:
            async with serving(add_dispatcher(dispatcher), folder / "d"):
                await dispatcher.until(lambda: sum(len(work.ids) for work in dispatcher.works.values()) > 100)
            held = made.metrics()["eyas_generator_tokens_total"]
            await eventually(lambda: made.metrics()["eyas_generator_tokens_total"] > held + 50)
            # It comes back with half of what it had, as from its last snapshot.
            for work in dispatcher.works.values():
                work.leased, work.finished, work.ids = False, None, work.ids[: len(work.ids) // 2]
            dispatcher.durable_at_once = True
            async with serving(add_dispatcher(dispatcher), folder / "d"):
                await dispatcher.until(lambda: dispatcher.all_finished)
                check(dispatcher)
                await eventually(lambda: not made.ledger.items)
            metrics = made.metrics()
    assert metrics["eyas_generator_tokens_total"] == sum(len(work.ids) for work in dispatcher.works.values())


async def test_silence_stops_requests_and_keeps_tokens(folder: Path) -> None:
    async with serve(simulated(tokens_per_second=50)) as url:
        dispatcher = Dispatcher(url, works(6))
        dispatcher.welcome.silence_seconds = 0.5
        dispatcher.welcome.heartbeat_seconds = 0.1
        async with stage(folder, dispatcher) as made:
            await dispatcher.until(lambda: sum(len(work.ids) for work in dispatcher.works.values()) > 50)
            dispatcher.mute = True
            await eventually(lambda: made.metrics()["eyas_generator_requests"] == 0)
            assert len(made.ledger.items) == sum(work.leased for work in dispatcher.works.values())
            dispatcher.mute = False
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)
            metrics = made.metrics()
    assert dispatcher.streams > 1
    assert metrics["eyas_generator_tokens_total"] == sum(len(work.ids) for work in dispatcher.works.values())


async def test_release_gives_back_with_tokens(folder: Path) -> None:
    async with serve(simulated(tokens_per_second=50)) as url:
        dispatcher = Dispatcher(url, works(6))
        async with stage(folder, dispatcher) as made:
            await dispatcher.until(lambda: sum(len(work.ids) for work in dispatcher.works.values()) > 50)
            for work in dispatcher.works.values():
                dispatcher.send(stop=pb.Stop(item=work.item, attempt=work.attempt, reason=pb.STOP_REASON_RELEASE))
            await dispatcher.until(lambda: all(work.releases or work.finished for work in dispatcher.works.values()))
            await eventually(lambda: not made.ledger.items)
            assert made.metrics()["eyas_generator_requests"] == 0
            dispatcher.hand_out_all()
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)


async def test_drain_ends_what_it_can_and_gives_back_the_rest(folder: Path) -> None:
    async with serve(simulated(tokens_per_second=60)) as url:
        dispatcher = Dispatcher(url, works(12))
        async with stage(folder, dispatcher) as made:
            await dispatcher.until(lambda: sum(len(work.ids) for work in dispatcher.works.values()) > 50)
            await asyncio.wait_for(made.worker.drain(grace_seconds=0.7), 10)
            assert dispatcher.draining
            assert not made.ledger.items
        released = [work for work in dispatcher.works.values() if work.releases]
        ended = [work for work in dispatcher.works.values() if work.finished]
        assert released
        assert ended
        assert len(released) + len(ended) == 12
        for work in released:
            assert work.ids == MODEL.answer(work.prompt, 1000)[: len(work.ids)]
        async with stage(folder, dispatcher):
            await dispatcher.until(lambda: dispatcher.all_finished)
            check(dispatcher)


async def test_a_thousand_streams_at_once(folder: Path) -> None:
    server = Server(simulated(median_tokens=10, sigma=0.0, max_num_seqs=0, tokens_per_second=1000))
    async with serve(server.settings, server) as url:
        dispatcher = Dispatcher(url, works(1000))
        async with stage(folder, dispatcher) as made:
            await eventually(lambda: len(server.engine.waiting) == 1000, seconds=60)
            assert made.metrics()["eyas_generator_requests"] == 1000
            server.engine.max_num_seqs = 1000
            await dispatcher.until(lambda: dispatcher.all_finished, seconds=60)
    model = SimulatedModel(median_tokens=10, sigma=0.0)
    assert all(work.ids == model.answer(work.prompt, 1000) for work in dispatcher.works.values())
