"""`make demo`, as a user types it: the whole way on real questions, and once more to see that it resumes."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "build/demo/result.json"
QUESTIONS = 164 + 52 + 80
MINUTES = 20  # the demo takes about 13 on two idle cores; tests leave room for a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout((MINUTES + 5) * 60)]


def make_demo() -> tuple[str, float]:
    started = time.monotonic()
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout, time.monotonic() - started


@pytest.fixture(scope="module")
def demo() -> tuple[str, float]:
    return make_demo()


@pytest.fixture(scope="module")
def result(demo: tuple[str, float]) -> dict[str, Any]:
    return json.loads(RESULT.read_text())


def test_every_question_has_one_answer(result: dict[str, Any]) -> None:
    assert result["samples"] == QUESTIONS
    assert result["rows"] == result["distinct"] == QUESTIONS
    assert result["ok"] + result["truncated"] == QUESTIONS
    assert result["failed"] == 0
    assert result["useful_token_share"] >= 0.99


def test_the_trained_drafter_beats_the_untrained_one(result: dict[str, Any]) -> None:
    lengths = result["acceptance_length"]
    assert lengths["trained"] > lengths["untrained"]
    assert lengths["trained"] > 1.1
    assert result["repetition_share"].keys() >= {"none", "untrained", "ngram", "trained"}
    assert min(result["greedy_agreement"].values()) > 0.5


def test_the_demo_keeps_its_time(demo: tuple[str, float], result: dict[str, Any]) -> None:
    assert demo[1] < MINUTES * 60
    assert result["seconds"].keys() == {"generate", "extract", "train", "evaluate"}


def test_the_report_is_there_and_named(demo: tuple[str, float], result: dict[str, Any]) -> None:
    report = ROOT / "build/demo/run/report.html"
    assert str(report.relative_to(ROOT)) in demo[0]
    assert "<svg" in report.read_text()


def test_a_second_run_resumes_and_changes_nothing(demo: tuple[str, float], result: dict[str, Any]) -> None:
    parts = sorted((ROOT / "build/demo/run/generations").iterdir())
    before = [(part.name, part.stat().st_mtime_ns) for part in parts]
    output, seconds = make_demo()
    assert "resum" in output
    assert [(part.name, part.stat().st_mtime_ns) for part in sorted(parts[0].parent.iterdir())] == before
    assert json.loads(RESULT.read_text())["rows"] == QUESTIONS
    assert seconds < 120
