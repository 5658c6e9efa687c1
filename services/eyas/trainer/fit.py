"""Fits a drafter's first matrix to data in closed form, before the first step of the optimiser.

`fc` is set to the ridge regression from the model's states at p to the direction of its last output at p + 1: what a
row needs to say before it looks at anything else. One pass over a part of the data takes a fresh drafter further than
its first epoch of steps does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.errors import DataError
from eyas.trainer.batch import Document
from eyas.trainer.model import Drafter

TOKENS = 1 << 16
"""Targets to fit to, at most."""
_RIDGE = 0.03


@dataclass(frozen=True)
class Fit:
    """What was found in the data."""

    sizes_I: Tensor  # root mean square of each channel of the inputs
    weight_HI: Tensor  # for inputs that are divided by their sizes


@torch.no_grad()
def fit(documents: Iterable[Document], device: torch.device) -> Fit:
    """Fits over the supervised targets of some documents."""
    gram_II = cross_IH = torch.zeros(0)
    count = 0
    for document in documents:
        targets = document.supervised.nonzero()[:, 0]
        x_QI = document.inputs[targets - 1].to(device, torch.float32)
        y_QH = document.last[targets].to(device, torch.float32)
        y_QH = y_QH * torch.rsqrt(y_QH.square().mean(-1, keepdim=True))
        if not count:
            gram_II = x_QI.new_zeros(x_QI.shape[1], x_QI.shape[1])
            cross_IH = x_QI.new_zeros(x_QI.shape[1], y_QH.shape[1])
        gram_II.addmm_(x_QI.T, x_QI)
        cross_IH.addmm_(x_QI.T, y_QH)
        count += len(targets)
        if count >= TOKENS:
            break
    if not count:
        raise DataError("none of the hidden states that were read can be used: extract again into another run")
    sizes_I = (gram_II.diagonal() / count).sqrt().clamp(min=1e-6)
    gram_II.div_(sizes_I[:, None] * sizes_I * count).diagonal().add_(_RIDGE)
    cross_IH.div_(sizes_I[:, None] * count)
    return Fit(sizes_I, torch.linalg.solve(gram_II, cross_IH).T.contiguous())


@torch.no_grad()
def apply(found: Fit, drafter: Drafter, *, fresh: bool) -> None:
    """Conditions a drafter's inputs, and gives a `fresh` one the fitted matrix. With `fc_norm` neither fits."""
    drafter.standardise(found.sizes_I)
    if fresh and not drafter.config.fc_norm:
        drafter.fc.weight.copy_(found.weight_HI)
