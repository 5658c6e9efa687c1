"""The dispatcher as a process: a run from its creation to its closing check, through kills and restarts."""

import asyncio
import re
import signal

import aiohttp
import pytest
from grpc import aio

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.run.v1 import run_pb2
from eyas.storage.tables import FAILURES
from support.dispatching import Stack, Worker, failed_precondition, working


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
    assert (progress.items.total, progress.items.ok, progress.items.waiting) == (30, 30, 0)
    assert progress.tokens.generated == progress.tokens.useful == sum(len(row["ids"]) for row in stack.rows())
    stack.check_rows(30)
    assert worker.most <= 8
    again = await stack.create(stack.spec(samples=30))
    assert not again.created
    assert again.progress.state == run_pb2.STATE_DONE
    with pytest.raises(aio.AioRpcError) as error:
        await stack.create(stack.spec(samples=30, generation={"maxTokens": 50}))
    assert "generation.maxTokens: 50, there 100" in failed_precondition(error.value)
    assert await stack.kill(signal.SIGTERM) == 0


async def test_a_killed_dispatcher_costs_no_token(stack):
    await stack.start()
    await stack.create(stack.spec(samples=60))
    workers = [Worker(stack.address, step=0.05, tokens_at_once=1) for _ in range(2)]
    async with working(*workers):
        await stack.until(lambda p: p.items.ok >= 8 and p.items.in_flight == 8)
        for _ in range(2):
            await stack.kill()
            await stack.start()
            ok = len(stack.rows())
            await stack.until(lambda p, ok=ok: p.items.ok > ok + 5)
        await stack.until(done)
    stack.check_rows(60)
    # An item that is handed out in the moment of a kill may be handed out again: one token for each of the two kills.
    again = sum(worker.generated for worker in workers) - sum(len(row["ids"]) for row in stack.rows())
    assert 0 <= again <= 2
    assert all(row["interruptions"] == [] for row in stack.rows())


async def test_a_dispatcher_that_starts_with_lost_generators_goes_on_from_the_hint(stack):
    await stack.start(hint_seconds=0.1)
    await stack.create(stack.spec(samples=8))
    first = Worker(stack.address, step=0.05, tokens_at_once=1)
    first.hold_finish = True
    async with working(first):
        await stack.until(lambda p: p.items.in_flight == 8 and p.tokens.generated > 24)
        await stack.until(lambda p: (stack.storage / "r" / "partials").exists())
        await stack.kill(signal.SIGTERM)
    await stack.start()
    second = Worker(stack.address)
    async with working(second):
        await stack.until(done)
    stack.check_rows(8)
    assert sum(assign.length for assign in second.assigned) > 20, "partial answers go on"
    assert not (stack.storage / "r" / "partials").exists()


async def test_a_lost_generators_items_go_on_elsewhere(stack):
    await stack.start()
    await stack.create(stack.spec(samples=8))
    lost = Worker(stack.address, step=0.02, tokens_at_once=1)
    lost.hold_finish = True
    async with working(lost):
        await stack.until(lambda p: p.items.in_flight == 8 and p.tokens.generated > 40)
    other = Worker(stack.address)
    async with working(other):
        progress = await stack.until(lambda p: p.items.in_flight == 8)
        assert other.assigned == [], "the end of a stream releases nothing"
        progress = await stack.until(done)
    stack.check_rows(8)
    assert sum(assign.length for assign in other.assigned) > 30
    assert progress.tokens.regenerated == 0


async def test_two_dispatchers_at_once_write_each_row_once(stack):
    await stack.start()
    await stack.create(stack.spec(samples=200))
    slow = Worker(stack.address, step=0.05, tokens_at_once=1)
    async with working(slow):
        await stack.until(lambda p: p.items.ok > 5)
        old = stack.processes[-1]
        new = await stack.start("other")
        other = Worker(f"unix:{stack.folder}/other", step=0.01)
        async with working(other):
            assert await old.wait() != 0, "the one that was replaced ends"
            assert "has taken over" in (stack.folder / "dispatcher.log").read_text()
            await _until_rows(stack, 200)
        assert new.returncode is None
    stack.check_rows(200)


async def _until_rows(stack, count):
    for _ in range(300):
        if len(stack.rows()) >= count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{len(stack.rows())} of {count} rows")


async def test_pause_resume_set_and_cancel_act_on_the_running_system(stack):
    await stack.start()
    await stack.create(stack.spec(samples=40))
    worker = Worker(stack.address, step=0.05, tokens_at_once=1)
    worker.hold_finish = True
    async with working(worker):
        await stack.until(lambda p: p.items.in_flight == 8 and p.tokens.generated > 24)
        await stack.control(pause=pb.Pause(reason="lunch"))
        progress = await stack.until(lambda p: p.items.in_flight == 0)
        assert (progress.state, progress.reason) == (run_pb2.STATE_PAUSED, "lunch")
        await stack.until(lambda _: (stack.storage / "r" / "partials").exists())
        await stack.kill()
        await stack.start()
        progress = await stack.until(lambda p: p.items.total == 40)
        assert (progress.state, progress.reason) == (run_pb2.STATE_PAUSED, "lunch")
        before = len(worker.assigned)
        await stack.control(resume=pb.Resume())
        await stack.until(lambda p: p.items.in_flight >= 8)
        assert sum(assign.length for assign in worker.assigned[before:]) > 0
        await stack.control(set=pb.Set(values={"generation.concurrency": "3"}))
        await stack.until(lambda p: [(e.in_flight, e.limit) for e in p.endpoints] == [(3, 3)])
        spec = (await stack.runs.GetRun(pb.GetRunRequest(run="r"))).spec
        assert spec.generation.concurrency == 3
        with pytest.raises(aio.AioRpcError, match="dataset"):
            await stack.control(set=pb.Set(values={"dataset.holdout": "3"}))
        worker.hold_finish = False
        await stack.until(lambda p: p.items.ok >= 5)
        progress = await stack.control(cancel=pb.Cancel())
        assert progress.state == run_pb2.STATE_CANCELLED
        await stack.until(lambda _: not worker.held)
    assert 5 <= len(stack.rows()) < 40


async def test_turns_follow_each_other_on_the_models_own_answers(stack):
    await stack.start()
    await stack.create(stack.spec(samples=6, turns=3), turns=3)
    worker = Worker(stack.address)
    async with working(worker):
        await stack.until(lambda p: p.items.ok >= 5)
        await stack.kill()
        await stack.start()
        await stack.until(done)
    stack.check_rows(18)
    for row in stack.rows():
        contents = [message["content"] for message in row["messages"]]
        expected = []
        for turn in range(row["turn"] + 1):
            expected += [f"{row['position']}.{turn}", f"answer {row['position']}.{turn}"]
        assert contents == expected[:-1]
        assert row["prompt_ids"][3] == 2 * row["turn"] + 1, "what was rendered"


async def test_an_outage_costs_no_attempt_and_the_run_goes_on_when_it_ends(stack):
    await stack.start()
    await stack.create(stack.spec(samples=40, thresholds={"maxAttempts": 1}))
    worker = Worker(stack.address, tokens_at_once=1)
    down = pb.Interrupted(cause=pb.CAUSE_CONNECTION, detail="refused")

    def interrupt(item):
        return None if stack.model_server.up else pb.Interrupted.FromString(down.SerializeToString())

    worker.interrupt = interrupt
    async with working(worker):
        await stack.until(lambda p: p.items.ok >= 3)
        stack.model_server.up = False
        progress = await stack.until(lambda p: p.items.in_flight == 0 and not p.endpoints[0].healthy)
        assert "answers HTTP 503" in progress.reason
        handed_out = len(worker.assigned)
        await asyncio.sleep(0.5)
        assert len(worker.assigned) == handed_out, "nothing is handed out to a server that is down"
        stack.model_server.up = True
        progress = await stack.until(done)
    stack.check_rows(40)
    assert progress.attempts["endpoint"] > 0
    assert progress.items.failed == 0


async def test_refused_items_are_given_up_and_retried_on_request(stack):
    await stack.start()
    await stack.create(stack.spec(samples=20))
    worker = Worker(stack.address)
    refused = {3, 4}
    worker.interrupt = lambda item: (
        pb.Interrupted(cause=pb.CAUSE_ITEM, http_status=400, detail="too long") if item.position in refused else None
    )
    async with working(worker):
        progress = await stack.until(done)
        assert (progress.items.ok, progress.items.failed) == (18, 2)
        stack.check_rows(18)
        failures = [
            row
            for path in sorted((stack.storage / "r" / "failures").glob("*"))
            for row in FAILURES.rows(path.read_bytes())
        ]
        assert sorted((row["sample_id"], row["reason"], row["detail"]) for row in failures) == [
            ("id3", "item", "HTTP 400: too long"),
            ("id4", "item", "HTTP 400: too long"),
        ]
        await stack.kill()
        await stack.start()
        refused.clear()
        await stack.control(retry=pb.Retry())
        await stack.until(done)
    stack.check_rows(20)


async def test_a_burst_of_refusals_pauses_before_rows_are_given_up(stack):
    await stack.start()
    await stack.create(stack.spec(samples=20))
    worker = Worker(stack.address)
    broken = True
    worker.interrupt = lambda item: (
        pb.Interrupted(cause=pb.CAUSE_ITEM, http_status=400, detail="no") if broken else None
    )
    async with working(worker):
        progress = await stack.until(lambda p: p.state == run_pb2.STATE_PAUSED)
        assert "the last 10 items were all refused (item: HTTP 400: no)" in progress.reason
        broken = False
        await stack.control(resume=pb.Resume())
        await stack.until(done)
    stack.check_rows(20)


async def test_a_refused_key_pauses_with_the_remedy(stack):
    await stack.start()
    await stack.create(stack.spec(samples=20))
    worker = Worker(stack.address)
    worker.interrupt = lambda item: pb.Interrupted(cause=pb.CAUSE_CONFIGURATION, http_status=401, detail="bad key")
    async with working(worker):
        progress = await stack.until(lambda p: p.state == run_pb2.STATE_PAUSED)
    assert "HTTP 401: bad key" in progress.reason
    assert "eyas resume" in progress.reason


async def test_what_does_not_fit_is_refused_with_the_remedy(stack):
    await stack.start()
    for change, said in (
        ({"model": {"servedName": "x"}}, "serves m, not x"),
        ({"generation": {"maxTokens": 4000}}, "too small"),
        ({"endpoints": [{"url": "http://127.0.0.1:9"}]}, "cannot be reached"),
        ({"dataset": {"samples": 20, "generations": 21}}, "the header says"),
    ):
        with pytest.raises(aio.AioRpcError) as error:
            await stack.create(stack.spec(**change))
        assert said in failed_precondition(error.value)
    assert (await stack.create(stack.spec(samples=5))).created, "an import that failed is redone"


async def test_a_server_that_changed_gets_no_work(stack):
    await stack.start()
    await stack.create(stack.spec(samples=5))
    await stack.kill()
    stack.model_server.context = 4096
    await stack.start()
    worker = Worker(stack.address)
    async with working(worker):
        progress = await stack.until(lambda p: p.reason and p.endpoints)
        assert "pinned to 2048" in progress.endpoints[0].reason
        assert not worker.assigned
        stack.model_server.context = 2048
        await stack.until(done)
    stack.check_rows(5)


async def test_runs_are_worked_on_in_turn(stack):
    await stack.start()
    await stack.create(stack.spec("first", samples=10))
    await stack.create(stack.spec("second", samples=10))
    async with working(Worker(stack.address, step=0.05)):
        await stack.until(done, "first")
        assert (await stack.progress("second")).items.ok == 0
        await stack.until(done, "second")
    stack.check_rows(10, "second")
    runs = (await stack.runs.ListRuns(pb.ListRunsRequest())).runs
    assert [run.run for run in runs] == ["first", "second"]


async def test_metrics_are_there_from_the_start_and_agree_with_watch(stack):
    await stack.start()
    await stack.create(stack.spec(samples=20))
    await stack.until(lambda p: p.items.total)
    await asyncio.sleep(0.5)  # the gauges are renewed four times a second
    before = await _metrics(stack)
    assert before['eyas_timeouts_total{phase="stall"}'] == before['eyas_attempts_total{outcome="item"}'] == 0
    assert before["eyas_lease_losses_total"] == before["eyas_uncommitted_bytes"] == 0
    assert before['eyas_stage{stage="generate"}'] == 1
    assert before[f'eyas_limit{{endpoint="{stack.url}"}}'] == 8
    worker = Worker(stack.address, step=0.05, tokens_at_once=1)
    async with working(worker):
        await stack.until(lambda p: p.items.ok >= 5)
        await stack.control(pause=pb.Pause())
        progress = await stack.until(lambda p: p.items.in_flight == p.items.uncommitted == 0)
    await asyncio.sleep(0.5)
    after = await _metrics(stack)
    assert after['eyas_items{state="ok"}'] == progress.items.ok
    assert after['eyas_items{state="waiting"}'] == progress.items.waiting
    assert after['eyas_tokens_total{kind="generated"}'] == progress.tokens.generated
    assert after['eyas_attempts_total{outcome="ok"}'] == progress.attempts["ok"]
    assert after['eyas_attempts_total{outcome="released"}'] == progress.attempts["released"] == 8


async def _metrics(stack):
    log = (stack.folder / "dispatcher.log").read_text()
    address = re.findall(r"metrics=(\S+)", log)[-1]
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as response:
        lines = [line.rpartition(" ") for line in (await response.text()).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}
