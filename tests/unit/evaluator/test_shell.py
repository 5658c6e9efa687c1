"""What surrounds the arithmetic: prompts, drafters, progress, the JSON that is left."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import DataError, InputError
from eyas.evaluator import drafters, prompts, result
from eyas.evaluator.acceptance import Acceptance
from eyas.evaluator.agreement import Parting
from eyas.evaluator.measure import Measured
from eyas.evaluator.progress import telling
from eyas.evaluator.speed import Speed
from eyas.run import spec as specs
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore, open_store
from eyas.storage.tables import GENERATIONS
from eyas.vllm import launch

SPEC = specs.build({"name": "demo", "model": {"uri": "/m"}})
LAYOUT = RunLayout("demo")
HOST = launch.Host(python=Path("/env/bin/python"), cpu=True)


def row(position: int, split: str, turn: int = 0) -> dict:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    texts = ("sample_id", "source", "stop_reason", "reasoning", "content", "tool_calls", "endpoint", "model")
    return {
        **dict.fromkeys(texts, ""),
        "turn": turn,
        "position": position,
        "split": split,
        "messages": [],
        "prompt_ids": [position, turn],
        "ids": [2],
        "finish_reason": "stop",
        "attempts": 1,
        "interruptions": [],
        "lost_tokens": 0,
        "started_at": now,
        "finished_at": now,
        "first_token_seconds": 0.0,
        "seconds": 0.0,
    }


@given(st.integers(1, 500), st.integers(0, 500))
def test_prompts_are_spread_evenly(count: int, most: int):
    chosen = prompts.spread(count, most)
    assert len(chosen) == (min(count, most) if most else count)
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0
    steps = [b - a for a, b in zip(chosen, [*chosen[1:], count], strict=True)]
    assert max(steps) - min(steps) <= 1


async def test_only_held_out_prompts_are_taken_in_their_order():
    store = open_store("memory:///")
    parts = [[row(5, "holdout"), row(1, "train")], [row(2, "holdout", 1), row(2, "holdout"), row(0, "holdout")]]
    for number, part in enumerate(parts):
        await store.create(f"{LAYOUT.generations}/{number:06d}.parquet", GENERATIONS.encode(part))
    assert await prompts.held_out(store, "demo", 0) == [[0, 0], [2, 0], [2, 1], [5, 0]]
    assert await prompts.held_out(store, "demo", 2) == [[0, 0], [2, 1]]


async def test_a_run_without_held_out_answers_is_refused():
    store = open_store("memory:///")
    await store.create(f"{LAYOUT.generations}/000000.parquet", GENERATIONS.encode([row(0, "train")]))
    with pytest.raises(InputError, match="--holdout N"):
        await prompts.held_out(store, "demo", 2)


async def stored_drafter(settings_hash: str) -> ObjectStore:
    store = open_store("memory:///")
    await store.put(f"{LAYOUT.drafter}/vllm/config.json", b"{}")
    await store.put(f"{LAYOUT.drafter}/vllm/model.safetensors", b"weights")
    await store.put(LAYOUT.drafter_manifest, json.dumps({"settings_hash": settings_hash}).encode())
    return store


async def test_the_trained_drafter_is_fetched(tmp_path: Path):
    store = await stored_drafter(specs.training_hash(SPEC))
    command = await drafters.command("trained", SPEC, HOST, store, tmp_path)
    assert str(tmp_path / "trained") in " ".join(command.arguments)
    assert (tmp_path / "trained" / "model.safetensors").read_bytes() == b"weights"


async def test_a_drafter_of_other_settings_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="trained with other settings"):
        await drafters.command("trained", SPEC, HOST, await stored_drafter("other"), tmp_path)


@pytest.mark.parametrize(
    ("name", "sentence"), [("trained", "train the drafter first"), ("untrained", "train it first"), ("x", "may hold")]
)
async def test_a_drafter_that_is_not_there(name: str, sentence: str, tmp_path: Path):
    with pytest.raises(InputError, match=sentence):
        await drafters.command(name, SPEC, HOST, open_store("memory:///"), tmp_path)


async def test_the_model_alone_and_ngram_need_no_drafter(tmp_path: Path):
    store = open_store("memory:///")
    assert "--speculative-config" not in (await drafters.command("none", SPEC, HOST, store, tmp_path)).arguments
    assert "ngram" in " ".join((await drafters.command("ngram", SPEC, HOST, store, tmp_path)).arguments)


async def test_a_dispatcher_that_is_away_stops_nothing(tmp_path: Path):
    async with telling("demo", f"unix:{tmp_path}/nobody", "") as progress:
        await progress.tell(1, 4, "measured", {"acceptance_length_none": 1.0})


def test_what_is_left_can_be_read():
    measured = Measured(Acceptance(10, 30, 5, (3, 1, 1)), Speed(20, 4.0), [[1, 2], [3]])
    differences = [result.difference(Parting(0, 1, 2, 4), 0.05, 0.1), result.difference(Parting(1, 0, 3, 4), None, 0.1)]
    found = result.measurement(measured, differences)
    assert found["acceptance_length"] == 1.5
    assert found["acceptance_by_position"] == [0.3, 0.1, 0.1]
    assert (found["tokens"], found["tokens_per_second"], found["greedy_agreement"]) == (20, 5.0, 0.0)
    assert [difference["near_tie"] for difference in found["differences"]] == [True, False]
    assert "greedy_agreement" not in result.measurement(measured, None)
    assert json.loads(result.part("h", found, measured.answers))["answers"] == [[1, 2], [3]]
    assert json.loads(result.whole("h", 3, 2, {"none": found}))["drafters"]["none"] == found
