"""Turns of a sample become sequences with a loss mask."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import InputError
from eyas.run.v1 import run_pb2 as pb
from eyas.storage.sequences import longest, sequences


@dataclass(frozen=True)
class Row:
    turn: int
    prompt_ids: list[int]
    ids: list[int]


IDS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def test_a_turn_that_extends_the_last_one_is_joined():
    (one,) = sequences([Row(1, [1, 2, 3, 9, 4], [5, 6]), Row(0, [1, 2], [3])], 100)
    assert one.ids == [1, 2, 3, 9, 4, 5, 6]
    assert one.mask == [0, 0, 1, 0, 0, 1, 1]
    assert (one.first_turn, one.last_turn) == (0, 1)


def test_a_turn_that_does_not_is_another_sequence():
    first, second = sequences([Row(0, [1, 2], [7, 3]), Row(1, [1, 2, 3, 4], [5])], 100)
    assert (first.ids, first.mask, first.last_turn) == ([1, 2, 7, 3], [0, 0, 1, 1], 0)
    assert (second.ids, second.mask, second.first_turn, second.last_turn) == ([1, 2, 3, 4, 5], [0, 0, 0, 0, 1], 1, 1)


def test_later_turns_go_on_from_the_last_sequence():
    turns = [Row(0, [1], [2]), Row(1, [9], [8]), Row(2, [9, 8, 7], [6])]
    assert [s.ids for s in sequences(turns, 100)] == [[1, 2], [9, 8, 7, 6]]


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=5), st.integers(1, 40))
def test_chained_turns_are_one_sequence_and_only_generated_ids_count(turns, most):
    rows, history, mask = [], [], []
    for turn, (question, answer) in enumerate(turns):
        rows.append(Row(turn, history + question, answer))
        history = history + question + answer
        mask += [0] * len(question) + [1] * len(answer)
    (one,) = sequences(rows, most)
    assert (one.ids, one.mask) == (history[:most], mask[:most])


def test_longest_leaves_room_for_the_token_that_vllm_must_generate():
    spec = pb.RunSpec(name="demo")
    with pytest.raises(InputError, match="demo"):
        longest(spec)
    spec.model.fingerprint.context = 2048
    assert longest(spec) == 2047
    spec.hidden_states.max_tokens = 4096
    assert longest(spec) == 2047
    spec.hidden_states.max_tokens = 512
    assert longest(spec) == 512
