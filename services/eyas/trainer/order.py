"""What is trained when: windows of long sequences, the order of an epoch, rows of packed windows. Pure.

A sequence longer than a row is split into windows that overlap, so that no target is lost: the overlap gives context
and is not supervised twice. The order depends on seed and epoch alone, so that a resumed training finds its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONTEXT = 256
"""Tokens of context that a window takes from the one before it, at most a quarter of a row."""


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `stop` of sequence `index`; targets before `fresh` belong to the window before."""

    index: int
    start: int
    stop: int
    fresh: int


def windows(lengths: Sequence[int], row: int) -> list[Window]:
    """Windows of at most `row` tokens over sequences of these lengths."""
    overlap = min(CONTEXT, row // 4)
    result = []
    for index, length in enumerate(lengths):
        start = 0
        while True:
            stop = min(start + row, length)
            result.append(Window(index, start, stop, start + overlap if start else 0))
            if stop == length:
                break
            start = stop - overlap
    return result


def epoch_rows(sizes: Sequence[int], row: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of windows, shuffled and packed into rows of at most `row` tokens."""
    order = np.random.default_rng([seed, epoch]).permutation(len(sizes))
    return fill(sizes, [int(index) for index in order], row)


def fill(sizes: Sequence[int], order: Sequence[int], row: int) -> list[list[int]]:
    """Packs in order: a row is closed when the next window does not fit."""
    rows: list[list[int]] = []
    room = 0
    for index in order:
        if not rows or sizes[index] > room:
            rows.append([])
            room = row
        rows[-1].append(index)
        room -= sizes[index]
    return rows
