"""Answers can be foretold, and continue exactly from any partial."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.simulator.model import SimulatedModel

MODEL = SimulatedModel(median_tokens=20)


@given(st.text(max_size=20), st.integers(0, 60))
def test_any_continuation_is_the_same_answer(content: str, cut: int) -> None:
    prompt = MODEL.render([{"role": "user", "content": content}])
    whole = MODEL.answer(prompt, 1000)
    assert whole[-1] == MODEL.eos_id
    assert MODEL.eos_id not in whole[:-1]
    assert MODEL.marker_id not in whole
    if cut < len(whole):
        assert MODEL.answer(prompt + whole[:cut], 1000) == whole[cut:]


def test_a_partial_that_ended_gets_a_second_answer() -> None:
    prompt = MODEL.render([{"role": "user", "content": "x"}])
    whole = MODEL.answer(prompt, 1000)
    server_hash, done = MODEL.locate(prompt + whole)
    assert done == len(whole)
    assert MODEL.token(server_hash, len(whole), done) != MODEL.eos_id


def test_max_tokens_cuts_and_seeds_differ() -> None:
    prompt = MODEL.render([{"role": "user", "content": "x"}])
    assert MODEL.answer(prompt, 3) == MODEL.answer(prompt, 1000)[:3]
    assert SimulatedModel(median_tokens=20, seed=1).answer(prompt, 3) != MODEL.answer(prompt, 3)


def test_lengths_are_lognormal_around_the_median() -> None:
    lengths = sorted(SimulatedModel(median_tokens=200, sigma=0.8).length(k) for k in range(4001))
    assert 190 < lengths[2000] < 210
    assert 2.0 < lengths[3364] / lengths[2000] < 2.5  # one sigma: e^0.8 = 2.23


def test_prompts_in_several_turns_are_found_by_their_last_marker() -> None:
    first = MODEL.render([{"role": "user", "content": "x"}])
    second = first + MODEL.answer(first, 1000) + MODEL.render([{"role": "user", "content": "y"}])
    whole = MODEL.answer(second, 1000)
    assert MODEL.answer(second + whole[:5], 1000) == whole[5:]
    assert whole != MODEL.answer(first, 1000)
