"""The dispatcher beyond generation: hidden states, jobs, and the launcher that it tells what to start."""

import asyncio
import contextlib
import json

import pytest

from eyas.dispatch.v1 import dispatch_pb2 as pb
from eyas.dispatch.v1 import dispatch_pb2_grpc
from eyas.run import spec as specs
from eyas.run.v1 import run_pb2
from eyas.storage import hidden_states
from support.dispatching import Stack, Worker, answer_of, working

LAYERS = [2, 15, 27, 30]


@pytest.fixture
async def stack(tmp_path):
    async with Stack(tmp_path) as stack:
        yield stack


class Launcher:
    """Says READY for servers and works jobs by script."""

    def __init__(self, stack, url=""):
        self.stack = stack
        self.url = url
        self.wanted: list[list[pb.Process]] = []
        self.known: dict[str, pb.ProcessStatus] = {}
        self.work = self.nothing

    async def nothing(self, process):
        return 0, ""

    async def run(self):
        stub = dispatch_pb2_grpc.DispatchStub(self.stack.channel)
        while True:
            with contextlib.suppress(Exception):
                await self.follow(stub)
            if asyncio.current_task().cancelling():
                return
            await asyncio.sleep(0.1)

    async def follow(self, stub):
        call = stub.Launch(wait_for_ready=True)
        await call.write(pb.LaunchRequest(hello=pb.LauncherHello(launcher="l")))
        for status in self.known.values():
            await call.write(pb.LaunchRequest(status=status))
        async for response in call:
            self.wanted.append(list(response.processes))
            for name in self.known.keys() - {process.name for process in response.processes}:
                del self.known[name]
            for process in response.processes:
                known = self.known.get(process.name)
                if known is not None and known.generation == process.generation:
                    continue
                await self.say(call, process, state=pb.PROCESS_STATE_READY, url=self.url)
                if process.role not in (pb.ROLE_VLLM_GENERATE, pb.ROLE_VLLM_EXTRACT):
                    code, detail = await self.work(process)
                    await self.say(call, process, state=pb.PROCESS_STATE_EXITED, exit_code=code, detail=detail)

    async def say(self, call, process, **fields):
        status = pb.ProcessStatus(name=process.name, generation=process.generation, **fields)
        self.known[process.name] = status
        await call.write(pb.LaunchRequest(status=status))

    @property
    def roles(self):
        seen = []
        for processes in self.wanted:
            for process in processes:
                if not seen or seen[-1] != pb.Role.Name(process.role):
                    seen.append(pb.Role.Name(process.role))
        return seen


class Extractor(Worker):
    """Stores the hidden states that its server would; `size` may falsify them."""

    def __init__(self, stack, **settings):
        super().__init__(stack.address, **settings)
        self.storage = stack.storage
        self.broken: set[int] = set()
        self.stored: list[str] = []

    def _advance(self, held):
        item = held["item"]
        if item.stage == run_pb2.STAGE_EXTRACT and not held["said"]:
            assign = held["assign"]
            assert (
                assign.hidden_states_key == f"{item.run}/hidden_states/{hidden_states.key(held['prompt'])}.safetensors"
            )
            path = self.storage / assign.hidden_states_key
            path.parent.mkdir(parents=True, exist_ok=True)
            tokens = len(held["prompt"]) - (item.position in self.broken)
            path.write_bytes(b"\0" * hidden_states.object_size(tokens, len(LAYERS), 8, "float16"))
            self.stored.append(assign.hidden_states_key)
        yield from super()._advance(held)


def over(progress):
    return progress.state in (run_pb2.STATE_DONE, run_pb2.STATE_FAILED)


def settings(**more):
    return {"hiddenStates": {"layerIds": LAYERS}, **more}


async def test_hidden_states_are_taken_once_for_each_sequence(stack):
    await stack.start()
    await stack.create(stack.spec(samples=12, **settings()), until=run_pb2.STAGE_EXTRACT)
    launcher, worker = Launcher(stack, stack.url), Extractor(stack, step=0.1, capacity=2, tokens_at_once=20)
    launching = asyncio.create_task(launcher.run())
    async with working(worker):
        await stack.until(lambda p: p.stage == run_pb2.STAGE_EXTRACT and p.items.ok >= 3)
        await stack.kill()
        await stack.start()
        progress = await stack.until(over)
    assert (progress.items.total, progress.items.ok, progress.items.failed) == (12, 12, 0)
    assert progress.stage_seconds["extract"] > 0
    objects = sorted(path.name for path in (stack.storage / "r" / "hidden_states").iterdir())
    assert len(objects) == 12
    assert objects == sorted(f"{hidden_states.key(row['prompt_ids'] + row['ids'])}.safetensors" for row in stack.rows())
    assert launcher.roles == ["ROLE_VLLM_EXTRACT"], "the generate stage has the user's endpoint"
    await stack.until(lambda _: launcher.wanted[-1] == [])
    launching.cancel()


async def test_states_of_the_wrong_size_are_not_taken(stack):
    await stack.start()
    spec = stack.spec(samples=4, **settings(thresholds={"maxAttempts": 2}))
    await stack.create(spec, until=run_pb2.STAGE_EXTRACT)
    launcher, worker = Launcher(stack, stack.url), Extractor(stack)
    worker.broken = {1}
    launching = asyncio.create_task(launcher.run())
    async with working(worker):
        progress = await stack.until(over)
    assert (progress.items.ok, progress.items.failed) == (3, 1)
    assert progress.attempts["endpoint"] == 2
    launching.cancel()


async def test_turns_that_follow_on_are_one_sequence(stack):
    await stack.start()
    spec = stack.spec(samples=3, turns=2, **settings())
    await stack.create(spec, turns=2, until=run_pb2.STAGE_EXTRACT)
    launcher, worker = Launcher(stack, stack.url), Extractor(stack)
    launching = asyncio.create_task(launcher.run())
    async with working(worker):
        progress = await stack.until(over)
    # The script's prompts don't begin with the turn before: each turn is a sequence of its own.
    assert progress.items.total == 6
    launching.cancel()


async def test_jobs_follow_and_failing_ones_are_started_again(stack):
    await stack.start()
    spec = stack.spec(samples=4, **settings(endpoints=[]))
    created = await stack.create(spec, until=run_pb2.STAGE_EVALUATE)
    assert "needs vllm-generate" in (await stack.until(lambda p: "needs" in p.reason)).reason or created
    launcher, worker = Launcher(stack, stack.url), Extractor(stack)
    jobs = []

    async def work(process):
        jobs.append((pb.Role.Name(process.role), process.generation))
        await dispatch_pb2_grpc.DispatchStub(stack.channel).ReportJob(
            pb.ReportJobRequest(run="r", progress=run_pb2.JobProgress(job="x", done=1, total=4, values={"loss": 2.5}))
        )
        if len(jobs) == 1:
            return 1, "out of memory"
        asked = (await stack.runs.GetRun(pb.GetRunRequest(run="r"))).spec
        key, value = {
            pb.ROLE_TRAINER: ("drafter/manifest.json", specs.training_hash(asked)),
            pb.ROLE_EVALUATOR: ("evaluation/result.json", specs.evaluation_hash(asked)),
        }[process.role]
        path = stack.storage / "r" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"settings_hash": value}))
        return 0, ""

    launcher.work = work
    launching = asyncio.create_task(launcher.run())
    async with working(worker):
        progress = await stack.until(lambda p: p.job.values.get("loss") == 2.5)
        progress = await stack.until(over)
    assert progress.state == run_pb2.STATE_DONE
    assert jobs == [("ROLE_TRAINER", 0), ("ROLE_TRAINER", 1), ("ROLE_EVALUATOR", 0)]
    assert launcher.roles == ["ROLE_VLLM_GENERATE", "ROLE_VLLM_EXTRACT", "ROLE_TRAINER", "ROLE_EVALUATOR"]
    assert sorted(progress.stage_seconds) == ["evaluate", "extract", "generate", "train"]
    await stack.kill()
    await stack.start()
    assert (await stack.until(over)).state == run_pb2.STATE_DONE
    await stack.control(set=pb.Set(values={"evaluation.maxPrompts": "3"}))
    await stack.until(lambda _: len(jobs) == 4)
    await stack.until(over)
    assert jobs[3][0] == "ROLE_EVALUATOR", "other settings are another evaluation"
    launching.cancel()


async def test_settings_that_change_under_a_job_are_those_that_end_its_stage(stack):
    await stack.start()
    await stack.create(stack.spec(samples=4, **settings()), until=run_pb2.STAGE_TRAIN)
    launcher, worker, names = Launcher(stack, stack.url), Extractor(stack), []

    async def work(process):
        if process.role == pb.ROLE_TRAINER:
            names.append(process.name)
            if len(names) == 1:
                await stack.control(set=pb.Set(values={"training.lr": "0.5"}))
            path = stack.storage / "r/drafter/manifest.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            asked = (await stack.runs.GetRun(pb.GetRunRequest(run="r"))).spec
            path.write_text(json.dumps({"settings_hash": specs.training_hash(asked)}))
        return 0, ""

    launcher.work = work
    launching = asyncio.create_task(launcher.run())
    async with working(worker):
        progress = await stack.until(over)
    assert progress.state == run_pb2.STATE_DONE
    launching.cancel()


async def test_a_stage_later_is_done_on_request(stack):
    await stack.start()
    await stack.create(stack.spec(samples=4, **settings()), until=run_pb2.STAGE_GENERATE)
    launcher, worker = Launcher(stack, stack.url), Extractor(stack)
    launching = asyncio.create_task(launcher.run())
    async with working(worker):
        await stack.until(over)
        await stack.kill()
        await stack.start()
        progress = await stack.control(proceed=pb.Proceed(until=run_pb2.STAGE_EXTRACT))
        assert progress.stage == run_pb2.STAGE_EXTRACT
        progress = await stack.until(lambda p: p.state == run_pb2.STATE_DONE)
    assert progress.items.ok == 4
    launching.cancel()


async def test_a_restarted_dispatcher_keeps_the_servers_that_run(stack):
    await stack.start()
    await stack.create(stack.spec(samples=8, **settings(endpoints=[])))
    launcher, worker = Launcher(stack, stack.url), Worker(stack.address, step=0.05, tokens_at_once=1)
    launching = asyncio.create_task(launcher.run())
    async with working(worker):
        await stack.until(lambda p: p.items.in_flight == 8)
        name = launcher.wanted[-1][0].name
        launcher.known[name].generation = 3  # as after three ends
        await stack.kill()
        await stack.start()
        await stack.until(over)
    assert [process.generation for processes in launcher.wanted for process in processes][-1] == 3
    assert worker.generated == sum(len(answer_of(position, 0)) for position in range(8))
    launching.cancel()
