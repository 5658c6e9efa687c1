"""The report of a run in a real browser: it opens alone, nothing is empty, nothing is asked of a network."""

import json
import random
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eyas import report
from eyas.run import spec as specs
from eyas.storage.layout import RunLayout
from eyas.storage.objects import ObjectStore, open_store
from eyas.storage.tables import FAILURES, GENERATIONS, SAMPLES

RUN = "smollm-code"
START = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)
TITLES = (
    "Acceptance by position",
    "Speed",
    "Prompts asked for and kept",
    "Answers kept",
    "Throughput",
    "Concurrency",
    "By cause",
    "Loss",
    "Accuracy",
    "Estimated acceptance length",
    "Supervised and generated tokens",
)


@pytest.fixture(scope="session")
def browser() -> str:
    found = shutil.which("chromium")
    assert found, "chromium is missing: run `make test`, which installs it, or `apt-get install chromium`"
    return found


async def write_run(store: ObjectStore, samples: int = 400) -> None:
    """A run such as a machine would leave it: long answers cut, some timeouts, a few items given up."""
    draw = random.Random(7)
    layout = RunLayout(RUN)
    spec = specs.build(
        {
            "name": RUN,
            "model": {"uri": "/models/SmolLM2-135M-Instruct", "servedName": "smollm2"},
            "dataset": {"sources": ["perfectblend.jsonl"], "holdout": 40, "samples": samples, "generations": samples},
            "generation": {"maxTokens": 1024, "concurrency": 32},
        }
    )
    await store.create(layout.spec, specs.to_json(spec))
    asked = [
        {
            "sample_id": f"{position:064x}",
            "position": position,
            "messages": [{"role": "user", "content": "x" * int(draw.lognormvariate(5.6, 0.8))}],
            "source": "perfectblend.jsonl",
            "split": "holdout" if position >= samples - 40 else "train",
            "turns": 1,
        }
        for position in range(samples)
    ]
    await store.create(layout.samples_part(0), SAMPLES.encode(asked))
    free, answers, failures = [0.0] * 32, [], []
    for sample in asked:
        slot = min(range(32), key=free.__getitem__)
        length = int(draw.lognormvariate(5.5, 0.9))
        interrupted = (
            [draw.choice(["timeout_stall", "connection", "timeout_first_token"])] if draw.random() < 0.04 else []
        )
        took = min(length, 1024) / 22 * draw.uniform(0.8, 1.2) + (18 if interrupted else 0)
        begun, free[slot] = free[slot], free[slot] + took
        if draw.random() < 0.012:
            failures.append(
                {
                    **{name: sample[name] for name in ("sample_id", "position")},
                    "turn": 0,
                    "stage": "generate",
                    "reason": "item",
                    "detail": "HTTP 400",
                    "attempts": 5,
                    "at": START + timedelta(seconds=free[slot]),
                }
            )
            continue
        answers.append(
            {
                **{name: sample[name] for name in ("sample_id", "position", "split", "source", "messages")},
                "turn": 0,
                "prompt_ids": [1] * 40,
                "ids": [5] * min(length, 1024),
                "stop_reason": "",
                "reasoning": "",
                "content": "",
                "tool_calls": "",
                "attempts": 1 + len(interrupted),
                "interruptions": interrupted,
                "lost_tokens": 0,
                "endpoint": "http://127.0.0.1:8000",
                "model": "smollm2",
                "first_token_seconds": 0.2,
                "seconds": took,
                "finish_reason": "stop" if length < 1024 else "length",
                "started_at": START + timedelta(seconds=begun),
                "finished_at": START + timedelta(seconds=free[slot]),
            }
        )
    answers.sort(key=lambda row: row["finished_at"])
    for number in range(0, len(answers), 150):
        await store.create(
            f"{layout.generations}/{number // 150:06d}.parquet", GENERATIONS.encode(answers[number : number + 150])
        )
    await store.create(f"{layout.failures}/000000.parquet", FAILURES.encode(failures))
    await write_training(store, spec, draw)
    await write_evaluation(store, spec)


async def write_training(store: ObjectStore, spec: specs.pb.RunSpec, draw: random.Random) -> None:
    layout, name = RunLayout(RUN), specs.training_hash(spec)
    steps = []
    for step in range(1, 641):
        known = 1 - 0.9 * 0.992**step
        steps.append(
            {
                "step": step,
                "epoch": step // 160,
                "lr": 1e-4,
                "tokens": 4096,
                "supervised": 3011,
                "seconds": 0.9,
                "acceptance_length": 1 + 1.6 * known + draw.gauss(0, 0.02),
                "loss": 9 - 6 * known + draw.gauss(0, 0.15),
                "loss_by_step": [3 - 2 * known + 0.2 * at for at in range(7)],
                "accuracy_by_step": [0.72 * known * 0.86**at + draw.gauss(0, 0.01) for at in range(7)],
                **(
                    {"held_out": {"loss": 9.2 - 5.7 * known, "acceptance_length": 1 + 1.5 * known}}
                    if step % 80 == 0
                    else {}
                ),
            }
        )
    for number in range(0, 640, 100):
        data = json.dumps(steps[number : number + 100]).encode()
        await store.create(f"{layout.training_steps(name)}/{number // 100:06d}.json", data)
    longest = [90, 150, 200, 260, 330, 410, 520, 690, 1010, 1064]
    deciles = [
        {"longest": size, "generated": size * 31, "supervised": size * (31 if at < 9 else 24)}
        for at, size in enumerate(longest)
    ]
    summary = {"length_deciles": deciles, "skipped": {"no_supervised_tokens": 2, "missing_hidden_states": 0}}
    await store.put(layout.training_summary(name), json.dumps(summary).encode())


async def write_evaluation(store: ObjectStore, spec: specs.pb.RunSpec) -> None:
    measured = {
        "none": (1.0, [], 61.2, None),
        "untrained": (1.002, [0.002, 0.0, 0.0], 41.8, 1.0),
        "ngram": (1.31, [0.17, 0.09, 0.05], 66.0, 0.975),
        "trained": (1.74, [0.46, 0.19, 0.09], 84.5, 0.95),
    }
    for name, (length, positions, speed, agreement) in measured.items():
        differences = [
            {"prompt": 3, "position": 57, "expected": 260, "found": 338, "gap": 0.012, "near_tie": True},
            {"prompt": 8, "position": 112, "expected": 28, "found": 30, "gap": 0.41, "near_tie": False},
        ][: 0 if agreement in {None, 1.0} else 2 if name == "trained" else 1]
        measurement = {
            "acceptance_length": length,
            "tokens_per_step": length if name != "ngram" else 1.12,
            "acceptance_rate": (length - 1) / 3,
            "acceptance_by_position": positions,
            "drafts": 5000 if positions else 0,
            "draft_tokens": 15000,
            "accepted_tokens": int(5000 * (length - 1)),
            "tokens": 9800,
            "seconds": 9800 / speed,
            "tokens_per_second": speed,
            "repetition_share": 0.213,
            **({} if agreement is None else {"greedy_agreement": agreement, "differences": differences}),
        }
        value = {"settings_hash": specs.evaluation_hash(spec), "measurement": measurement, "answers": []}
        await store.put(RunLayout(RUN).measurement(name), json.dumps(value).encode())


def opened(browser: str, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    return subprocess.run(
        [*command, profile, "--window-size=1180,900", *options, page.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )


async def test_it_opens_alone_and_shows_all_of_a_run(browser: str, tmp_path: Path):
    store = open_store("memory:///")
    await write_run(store)
    page = tmp_path / "report.html"
    page.write_bytes(await report.build(store, RUN))
    # The page forbids itself the network, so that whatever asked for it would show as an error of the console.
    shown = opened(browser, page, "--dump-dom")
    assert "CONSOLE" not in shown.stderr, shown.stderr
    document = shown.stdout
    figures = re.findall(r"<figure>.*?</figure>", document, re.DOTALL)
    assert [re.search("<h3>(.*?)</h3>", figure)[1] for figure in figures] == list(TITLES)
    for figure in figures:
        assert len(re.findall(r'class="(?:mark|line) ', figure)) > 0, figure
        assert not re.search(r'="[^"]*(?:NaN|inf)[^"]*"', figure)
    assert "1.74" in document
    assert "1 unexplained" in document
    assert not re.search(r'(?:src|href)="(?!data:)', document)
    assert "@import" not in document
    assert "default-src 'none'" in document


async def test_it_is_drawn(browser: str, tmp_path: Path):
    store = open_store("memory:///")
    await write_run(store, samples=120)
    page = tmp_path / "report.html"
    page.write_bytes(await report.build(store, RUN))
    for name, options in {
        "light": (),
        "dark": ("--force-dark-mode", "--enable-features=WebContentsForceDark:0"),
    }.items():
        picture = tmp_path / f"{name}.png"
        opened(browser, page, f"--screenshot={picture}", *options)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 20_000


async def test_a_run_that_has_only_begun(browser: str, tmp_path: Path):
    store = open_store("memory:///")
    await store.create(RunLayout(RUN).spec, specs.to_json(specs.build({"name": RUN, "model": {"uri": "/m"}})))
    page = tmp_path / "report.html"
    page.write_bytes(await report.build(store, RUN))
    shown = opened(browser, page, "--dump-dom")
    assert shown.stdout.count('class="absent"') == 4
    assert "<figure>" not in shown.stdout
