"""From a run's data to the numbers of its charts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.report import figures, page
from eyas.report.data import Answer, Asked, RunData
from eyas.run import spec as specs

SPEC = specs.build({"name": "a", "model": {"uri": "/m"}})


def asked(name: str, characters: int, turns: int = 1) -> Asked:
    return Asked(name, "train", turns, characters)


def answer(
    name: str, tokens: int = 10, finish: str = "stop", started: float = 0.0, finished: float = 10.0, **more
) -> Answer:
    values = {"turn": 0, "split": "train", "prompt_tokens": 3, "attempts": 1, "interruptions": (), **more}
    return Answer(sample_id=name, tokens=tokens, finish_reason=finish, started=started, finished=finished, **values)


def failure(name: str, stage: str = "generate", reason: str = "item") -> dict:
    return {"sample_id": name, "turn": 0, "stage": stage, "reason": reason}


def test_what_became_of_what_was_asked():
    data = RunData(
        SPEC,
        samples=[asked("a", 10), asked("b", 10), asked("c", 10, turns=2), asked("d", 10)],
        answers=[answer("a", 7), answer("b", 9, "length"), answer("c", 4)],
        failures=[failure("d"), failure("a", "extract")],
    )
    found = figures.counts(data)
    assert (found.asked, found.ok, found.truncated, found.failed, found.open, found.tokens) == (5, 2, 1, 1, 1, 20)


def test_prompts_kept_lost_and_open_share_their_bins():
    samples = [asked("a", 5), asked("b", 199), asked("c", 5), asked("d", 60, turns=2)]
    data = RunData(SPEC, samples=samples, answers=[answer("a"), answer("d")], failures=[failure("b")])
    found = figures.prompt_lengths(data)
    assert found.categories[:2] == ["0\u20139", "10\u201319"]
    assert len(found.categories) == 20
    kept, lost, still = found.series
    assert [at for at, value in enumerate(kept.values) if value] == [0]
    assert [at for at, value in enumerate(lost.values) if value] == [19]
    assert [at for at, value in enumerate(still.values) if value] == [0, 6]


@given(st.lists(st.tuples(st.integers(0, 9000), st.sampled_from(["stop", "length"])), max_size=50))
def test_no_answer_is_left_out_of_the_lengths(answers: list[tuple[int, str]]):
    found = figures.answer_lengths(RunData(SPEC, answers=[answer("a", *given) for given in answers]))
    assert sum(value for one in found.series for value in one.values) == len(answers)
    assert len(found.categories) <= 21


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.floats(0, 1e4), st.floats(0.01, 1e3)),
        min_size=1,
        max_size=20,
    )
)
def test_throughput_adds_up_to_the_tokens(answers: list[tuple[int, float, float]]):
    rows = [answer("a", tokens, started=1e9 + start, finished=1e9 + start + took) for tokens, start, took in answers]
    tokens, busy = figures.throughput(rows)
    width = (tokens.x[1] - tokens.x[0]) * 60
    assert sum(tokens.series[0].values) * width == pytest.approx(sum(row.tokens for row in rows), rel=1e-3)
    assert sum(busy.series[0].values) * width == pytest.approx(
        sum(row.finished - row.started for row in rows), rel=1e-3
    )


def test_throughput_of_nothing():
    assert figures.throughput([])[0].series == []


def test_timeouts_are_shown_also_when_there_were_none():
    interrupted = [answer("a", interruptions=("timeout_stall", "connection")), answer("b")]
    found = figures.causes(RunData(SPEC, answers=interrupted, failures=[failure("c", reason="item")]))
    assert found.categories[:4] == ["timeout: connect", "timeout: first token", "timeout: stall", "timeout: total"]
    assert found.categories[4:] == ["connection", "item"]
    assert list(found.series[0].values) == [0, 0, 1, 0, 1, 0]
    assert list(found.series[1].values) == [0, 0, 0, 0, 0, 1]


def test_steps_are_thinned_but_measurements_stay():
    steps = [{"step": at, "loss": 1.0, "accuracy_by_step": [0.5, 0.2]} for at in range(1, 1001)]
    steps[776]["held_out"] = {"loss": 0.7}
    found = figures.losses(steps)
    assert len(found.x) <= 203
    assert found.x[-1] == 1000
    assert [value for value in found.series[1].values if value is not None] == [0.7]
    assert [one.name for one in figures.accuracies(steps).series] == ["token 1", "token 2"]


def test_the_longest_prompts_are_looked_at_apart():
    samples = [asked(str(at), at) for at in range(100)]
    assert figures.longest_kept(RunData(SPEC, samples=samples)) == 1.0
    assert figures.longest_kept(RunData(SPEC, samples=samples, failures=[failure("3")])) == 1.0
    assert figures.longest_kept(RunData(SPEC, samples=samples, failures=[failure("99")])) < 1.0
    assert figures.longest_kept(RunData(SPEC)) is None


def test_a_run_without_anything_says_so_in_one_line_a_section():
    text = page.render(RunData(SPEC))
    assert text.count('class="absent"') == 4
    assert "<svg" not in text


def test_names_are_text_and_not_markup():
    spec = specs.build({"name": "a", "model": {"uri": "/m/<script>alert(1)</script>"}})
    assert "<script" not in page.render(RunData(spec))
