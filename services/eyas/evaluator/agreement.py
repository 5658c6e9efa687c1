"""Whether a drafter leaves greedy answers as they are.

Speculative decoding keeps the model's answers, up to rounding: batches of another shape round otherwise, and where two
tokens are nearly tied the answer may go the other way. So answers may differ, but only where the model itself is
undecided: the log-probabilities of the two tokens, after what both answers share, must differ by less than a bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NEAR_TIE = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.5}
"""Largest difference of two log-probabilities, in nats, that rounding explains, by the data type of the model."""


@dataclass(frozen=True)
class Parting:
    """Where an answer leaves the one of the model alone."""

    prompt: int
    """Index of the prompt."""
    position: int
    """Tokens that both share."""
    expected: int | None
    """Id that the model alone goes on with; None when its answer ends there."""
    found: int | None
    """Id that was found instead; None when the answer ends there."""


def near_tie(dtype: str) -> float:
    """The bound for a data type; an unknown one is taken for the coarsest."""
    return NEAR_TIE.get(dtype, max(NEAR_TIE.values()))


def partings(base: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> list[Parting]:
    """First difference of each pair of answers that differ. Both hold the answers to the same prompts."""
    return [
        parting
        for prompt, (expected, found) in enumerate(zip(base, other, strict=True))
        if (parting := _parting(prompt, expected, found)) is not None
    ]


def share(prompts: int, differences: int) -> float:
    """Greedy agreement: share of the answers that are equal."""
    return 1 - differences / prompts if prompts else 1.0


def gap(parting: Parting, logprobs: Mapping[int, float]) -> float | None:
    """Difference of the log-probabilities of the two tokens, in nats, at least 0.

    `logprobs` holds the most probable ids after the shared tokens. None when they don't tell: an answer ended without
    a token, or an id is not among them.
    """
    if parting.expected is None or parting.found is None:
        return None
    if parting.expected not in logprobs or parting.found not in logprobs:
        return None
    return abs(logprobs[parting.expected] - logprobs[parting.found])


def _parting(prompt: int, expected: Sequence[int], found: Sequence[int]) -> Parting | None:
    shared = next(
        (at for at, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )
    if shared == len(expected) == len(found):
        return None
    return Parting(
        prompt=prompt,
        position=shared,
        expected=expected[shared] if shared < len(expected) else None,
        found=found[shared] if shared < len(found) else None,
    )
