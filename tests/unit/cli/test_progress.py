import io

import pytest
from rich.console import Console

from eyas.cli import progress as texts
from eyas.cli.screen import Screen
from eyas.run.v1 import run_pb2 as pb


@pytest.fixture
def generating():
    return pb.Progress(
        run="demo",
        stage=pb.STAGE_GENERATE,
        state=pb.STATE_RUNNING,
        items=pb.Items(total=4000, ok=1200, truncated=3, failed=2, in_flight=64),
        tokens=pb.Tokens(generated=1_000_000, useful=997_000, per_second=1500, mean_length=831.4),
        timeouts={"stall": 4, "connect": 0},
        endpoints=[pb.EndpointProgress(url="http://a:1", limit=64, in_flight=64, healthy=True)],
        elapsed_seconds=605,
        remaining_seconds=3700,
    )


@pytest.fixture
def training():
    job = pb.JobProgress(
        job="trainer", done=50, total=200, values={"loss": 2.34567, "lr": 1e-4}, message="epoch 1 of 4"
    )
    return pb.Progress(run="demo", stage=pb.STAGE_TRAIN, state=pb.STATE_RUNNING, job=job)


def test_a_line_says_all_that_there_is(generating):
    line = texts.line(generating)
    for part in (
        "demo: generating 1,203/4,000",
        "ok 1,200",
        "truncated 3",
        "failed 2",
        "in flight 64",
        "tokens/s 1,500",
    ):
        assert part in line
    for part in ("useful 99.7%", "mean length 831", "timeouts stall 4", "left 1 h 01 min"):
        assert part in line


def test_a_job_shows_its_values(training):
    line = texts.line(training)
    assert "training 50/200" in line
    assert "loss 2.346" in line
    assert "lr 0.0001" in line
    assert line.endswith("epoch 1 of 4")


def test_a_paused_run_says_why(generating):
    generating.state, generating.reason = pb.STATE_PAUSED, "the key is refused"
    assert "generating, paused" in texts.line(generating)
    assert texts.line(generating).endswith("the key is refused")


def test_a_run_that_begins_has_no_shares():
    assert "useful" not in texts.line(pb.Progress(run="demo", stage=pb.STAGE_GENERATE))


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (61, "1 min 01 s"), (3600 * 25 + 61, "25 h 01 min")])
def test_durations(seconds, text):
    assert texts.duration(seconds) == text


def shown(moments, terminal, step=1.0):
    now, file = [0.0], io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with Screen(console, lambda: now[0]) as screen:
        for moment in moments:
            screen.show(moment)
            now[0] += step
    return file.getvalue()


def test_elsewhere_a_line_comes_every_ten_seconds_and_on_change(generating, training):
    assert len(shown([generating] * 25, terminal=False).splitlines()) == 3
    assert len(shown([generating, generating, training, training], terminal=False).splitlines()) == 2


def test_a_terminal_gets_one_block_that_is_renewed(generating, training):
    text = shown([generating, training], terminal=True)
    assert "generating" in text
    assert "http://a:1" in text
    assert "epoch 1 of 4" in text
