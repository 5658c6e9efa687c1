"""Which of the model's ids a drafter can draft: the most frequent ones among what it is trained on."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Vocabulary:
    """The model's ids of the drafter's ids, ascending, out of `size` ids."""

    ids_W: Tensor
    size: int

    @property
    def d2t(self) -> Tensor:
        """int64 [W]: the model's id is the drafter's id plus this."""
        return self.ids_W - torch.arange(len(self.ids_W))

    @property
    def t2d(self) -> Tensor:
        """bool [V]: whether the drafter can draft an id."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[self.ids_W] = True
        return mask

    @property
    def draft_of(self) -> Tensor:
        """int64 [V]: the drafter's id of the model's id, -1 where it has none."""
        result = torch.full((self.size,), -1, dtype=torch.int64)
        result[self.ids_W] = torch.arange(len(self.ids_W))
        return result

    @property
    def whole(self) -> bool:
        """Whether all ids can be drafted."""
        return len(self.ids_W) == self.size


def count(generated: Iterable[NDArray[np.int32]], size: int) -> NDArray[np.int64]:
    """How often each of `size` ids was generated."""
    counts = np.zeros(size, dtype=np.int64)
    for ids in generated:
        counts += np.bincount(ids, minlength=size)
    return counts


def choose(counts: NDArray[np.int64], most: int) -> Vocabulary:
    """The `most` ids of highest count, lower ids first among equals; 0, or more than there are, takes all.

    Where fewer ids were seen, the lowest ids fill up: merges of byte-pair encodings are numbered by frequency.
    """
    size = len(counts)
    if most == 0 or most >= size:
        return Vocabulary(torch.arange(size), size)
    order = np.lexsort((np.arange(size), -counts))
    return Vocabulary(torch.from_numpy(np.sort(order[:most])), size)


def from_d2t(d2t: Tensor, size: int) -> Vocabulary:
    """The vocabulary that a checkpoint's offsets describe."""
    return Vocabulary(d2t + torch.arange(len(d2t)), size)


def data_key(keys: Iterable[str], tokenizer_hash: str) -> str:
    """Names the data that a vocabulary was counted on: the sequences' keys, in any order, and the tokenizer."""
    digest = hashlib.sha256(tokenizer_hash.encode())
    for key in sorted(keys):
        digest.update(key.encode())
    return digest.hexdigest()[:16]
