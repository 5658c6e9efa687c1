"""How much of an answer repeats itself. A model in a loop is easy to draft for, so this stands beside acceptance.

A token is repeated when it lies in an n-gram of ids (n = 4) that the same answer holds at an earlier position. The
share is repeated tokens / tokens, over all answers together. Prompts do not count.
"""

from collections.abc import Iterable, Sequence

N = 4
"""Length of the n-grams, in tokens."""


def repeated(ids: Sequence[int], n: int = N) -> int:
    """Number of repeated tokens of one answer."""
    seen: set[tuple[int, ...]] = set()
    count, counted_to = 0, 0
    for start in range(len(ids) - n + 1):
        gram = tuple(ids[start : start + n])
        if gram in seen:
            count += start + n - max(start, counted_to)
            counted_to = start + n
        seen.add(gram)
    return count


def share(answers: Iterable[Sequence[int]], n: int = N) -> float:
    """Share of the tokens of all answers that are repeated; 0 without tokens."""
    tokens = found = 0
    for ids in answers:
        tokens += len(ids)
        found += repeated(ids, n)
    return found / tokens if tokens else 0.0
