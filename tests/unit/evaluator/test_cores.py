"""Acceptance, speed, repetition, agreement: the arithmetic of the evaluator."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import DataError
from eyas.evaluator import acceptance, agreement, repetition
from eyas.evaluator.agreement import Parting
from eyas.evaluator.speed import Speed
from eyas.vllm.metrics import SpecDecode

ids = st.lists(st.integers(0, 3), max_size=40)


def test_acceptance_is_the_difference_of_two_moments():
    found = acceptance.between(SpecDecode(10, 30, 9, (5, 3, 1)), SpecDecode(30, 90, 39, (25, 13, 1)))
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (20, 60, 30)
    assert found.length == 2.5
    assert found.rate == 0.5
    assert found.by_position == [1.0, 0.5, 0.0]


def test_tokens_of_all_steps_count_those_without_a_draft():
    found = acceptance.between(None, SpecDecode(12, 36, 33, (11, 11, 11)))
    assert found.length == 3.75
    assert found.per_step(140) == pytest.approx(140 / 107)
    assert acceptance.between(None, None).per_step(140) == 1.0


def test_acceptance_without_drafts_is_one_token_a_step():
    for found in (acceptance.between(None, None), acceptance.between(None, SpecDecode(0, 0, 0, ()))):
        assert (found.length, found.rate, found.by_position) == (1.0, 0.0, [])


def test_positions_that_appear_later_count_from_zero():
    assert acceptance.between(SpecDecode(0, 0, 0, ()), SpecDecode(2, 6, 3, (2, 1, 0))).by_position == [1.0, 0.5, 0.0]


def test_a_restart_in_between_is_noticed():
    with pytest.raises(DataError, match="restarted"):
        acceptance.between(SpecDecode(10, 30, 9, (5, 3, 1)), SpecDecode(2, 6, 1, (1, 0, 0)))


def test_speed():
    assert Speed(100, 4.0).tokens_per_second == 25.0
    assert Speed(100, 4.0).over(Speed(50, 4.0)) == 2.0
    assert Speed(100, 4.0).over(Speed(0, 0.0)) is None
    assert Speed(0, 1.0).over(Speed(50, 4.0)) is None


def test_repetition_counts_the_tokens_of_repeated_ngrams():
    assert repetition.repeated([1, 2, 3, 4, 5, 6, 7, 8]) == 0
    assert repetition.repeated([1, 2, 3, 4, 9, 1, 2, 3, 4]) == 4
    assert repetition.repeated([1, 2, 3, 4, 9, 1, 2, 3, 4, 9]) == 5
    assert repetition.repeated([7] * 10) == 9
    assert repetition.share([[7] * 10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]) == 0.45
    assert repetition.share([]) == 0.0


def slowly(answer: list[int], n: int) -> int:
    """Repeated tokens, straight from the definition."""
    grams = [tuple(answer[start : start + n]) for start in range(len(answer) - n + 1)]
    return len({at for start, gram in enumerate(grams) if gram in grams[:start] for at in range(start, start + n)})


@given(ids, st.integers(1, 5))
def test_repetition_is_as_defined(answer: list[int], n: int):
    assert repetition.repeated(answer, n) == slowly(answer, n)


def test_partings_are_the_first_differences():
    base = [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2], [5]]
    other = [[1, 2, 3], [1, 4, 3], [1, 2], [1, 2, 3], [6]]
    assert agreement.partings(base, other) == [
        Parting(1, 1, 2, 4),
        Parting(2, 2, 3, None),
        Parting(3, 2, None, 3),
        Parting(4, 0, 5, 6),
    ]
    assert agreement.share(5, 4) == pytest.approx(0.2)


@given(st.lists(ids, max_size=5))
def test_equal_answers_do_not_part(answers: list[list[int]]):
    assert agreement.partings(answers, answers) == []


@given(ids, ids)
def test_a_parting_shares_all_before_it(one: list[int], other: list[int]):
    for parting in agreement.partings([one], [other]):
        assert one[: parting.position] == other[: parting.position]
        assert parting.expected != parting.found


def test_the_gap_of_a_parting():
    assert agreement.gap(Parting(0, 3, 5, 6), {5: -1.0, 6: -1.25, 7: -3.0}) == 0.25
    assert agreement.gap(Parting(0, 3, 5, 8), {5: -1.0, 6: -1.25}) is None
    assert agreement.gap(Parting(0, 3, None, 6), {6: -1.25}) is None


def test_the_bound_follows_the_data_type():
    assert agreement.near_tie("float32") < agreement.near_tie("float16") < agreement.near_tie("bfloat16")
    assert agreement.near_tie("auto") == agreement.near_tie("bfloat16")
