"""The sequences that hidden states are taken for, and that training runs on: turns of a sample joined, with loss mask.

The dispatcher and the trainer must see the same sequences, since an object of hidden states is found by the hash of
its ids. So both take them from here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from eyas.errors import InputError
from eyas.run.v1 import run_pb2 as pb


class Answer(Protocol):
    """What is needed of a generation."""

    @property
    def turn(self) -> int:
        """Answered turn of the sample, from 0."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Ids of the rendered prompt."""

    @property
    def ids(self) -> Sequence[int]:
        """Generated ids."""


@dataclass(frozen=True)
class TokenSequence:
    """Ids with their loss mask, 1 on generated ids, and the first and last turn that they come from."""

    ids: list[int]
    mask: list[int]
    first_turn: int
    last_turn: int


def longest(spec: pb.RunSpec) -> int:
    """Most ids of a sequence: one less than the context, for vLLM must generate one, and hiddenStates.maxTokens."""
    room = spec.model.fingerprint.context - 1
    if room < 1:
        raise InputError(
            f"the context of the model of run {spec.name} is not known: name the folder with its config.json"
        )
    return min(room, spec.hidden_states.max_tokens) if spec.hidden_states.max_tokens else room


def sequences(answers: Iterable[Answer], most: int) -> list[TokenSequence]:
    """Joins the answers of one sample, in order of turn, and cuts each sequence to `most` ids.

    A turn goes on with the sequence before it where its prompt begins with that sequence's ids, which ends where a
    template drops reasoning from earlier answers, for example; else it begins another.
    """
    joined: list[TokenSequence] = []
    for answer in sorted(answers, key=lambda answer: answer.turn):
        prompt, ids = list(answer.prompt_ids), list(answer.ids)
        before = joined[-1] if joined else None
        if before is not None and prompt[: len(before.ids)] == before.ids:
            mask, first = before.mask, before.first_turn
            joined.pop()
        else:
            mask, first = [], answer.turn
        mask = mask + [0] * (len(prompt) - len(mask)) + [1] * len(ids)
        joined.append(TokenSequence(prompt + ids, mask, first, answer.turn))
    return [TokenSequence(s.ids[:most], s.mask[:most], s.first_turn, s.last_turn) for s in joined]
