"""Documents packed one after the other, and the plan of which rows are trained at which step.

Documents do not see each other: positions restart, attention ends at a document's first position, and what a row is
trained on (its inputs and its targets k steps ahead) ends at its last. `supervised[q]` says that the model's
distribution at position q is a target: the id at q was generated. Row p meets it at step k = q - 1 - p, where its input
is the id at q. So the row of a document's last position, whose target would lie on padding, is never trained.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.trainer.attention import Segment


@dataclass(frozen=True)
class Document:
    """One sequence: ids [T], the drafter's inputs [T, 3H], the model's last output before its final norm [T, H]."""

    name: str
    ids: Tensor
    inputs: Tensor
    last: Tensor
    supervised: Tensor  # bool [T]


@dataclass(frozen=True)
class Batch:
    """Packed documents, on the device that trains."""

    ids_N: Tensor
    inputs_NI: Tensor
    last_NH: Tensor
    supervised_N: Tensor
    labels_N: Tensor  # draft id of the model's likeliest id; -1 where the drafter cannot draft it
    starts: tuple[int, ...]  # first position of each document, and the end

    @property
    def trained_N(self) -> Tensor:
        """Targets that count: supervised, and the likeliest id can be drafted."""
        return self.supervised_N & (self.labels_N >= 0)


@dataclass(frozen=True)
class Plan:
    """Which rows take part, and the targets each meets at each step."""

    rows_R: Tensor  # positions of the rows that meet a target at any step, ascending
    offsets_N: Tensor  # position within the document
    next_RK: Tensor  # position of the input id of each step; past the document's end it is never trained on
    segments: list[Segment]
    targets_Q: Tensor  # positions of targets that count
    row_of_KQ: Tensor  # index in R of the row that meets the target at each step; -1 where there is none
    asked_K: Tensor  # int64 rows that meet a supervised target at each step, whether or not it can be drafted

    @property
    def counts_K(self) -> Tensor:
        """int64 rows that count at each step: supervised, and the likeliest id can be drafted."""
        return (self.row_of_KQ >= 0).sum(1)


def pack(
    documents: Sequence[Document],
    likeliest: Callable[[Document], Tensor],
    draft_of: Tensor,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Batch:
    """Packs documents.

    `likeliest` gives the model's likeliest id over its whole vocabulary at each supervised position of a document;
    `draft_of` [V] maps the model's ids to the drafter's, -1 where there is none.
    """
    starts = [0]
    for document in documents:
        starts.append(starts[-1] + len(document.ids))
    supervised_N = torch.cat([d.supervised for d in documents])
    labels_N = torch.full((starts[-1],), -1)
    labels_N[supervised_N] = draft_of[torch.cat([likeliest(d) for d in documents]).cpu()]
    return Batch(
        ids_N=torch.cat([d.ids for d in documents]).to(device),
        inputs_NI=torch.cat([d.inputs for d in documents]).to(device, dtype),
        last_NH=torch.cat([d.last for d in documents]).to(device, dtype),
        supervised_N=supervised_N.to(device),
        labels_N=labels_N.to(device),
        starts=tuple(starts),
    )


def plan(batch: Batch, steps: int) -> Plan:
    """Plans `steps` steps of training-time test over a batch."""
    device = batch.ids_N.device
    lengths = torch.tensor([b - a for a, b in zip(batch.starts, batch.starts[1:], strict=False)], device=device)
    first_N = torch.repeat_interleave(torch.tensor(batch.starts[:-1], device=device), lengths)
    total = batch.starts[-1]
    offsets_N = torch.arange(total, device=device) - first_N
    targets_Q = batch.trained_N.nonzero()[:, 0]
    step_K = torch.arange(steps, device=device)
    row_KQ = targets_Q[None, :] - 1 - step_K[:, None]
    met_KQ = row_KQ >= first_N[targets_Q]
    active_N = torch.zeros(total, dtype=torch.bool, device=device)
    active_N[row_KQ[met_KQ]] = True
    rows_R = active_N.nonzero()[:, 0]
    index_N = active_N.cumsum(0) - 1
    bounds = torch.searchsorted(rows_R, torch.tensor(batch.starts, device=device)).tolist()
    segments = [
        Segment(slice(a, b), slice(start, stop))
        for a, b, start, stop in zip(bounds, bounds[1:], batch.starts, batch.starts[1:], strict=False)
        if b > a
    ]
    return Plan(
        rows_R=rows_R,
        offsets_N=offsets_N,
        next_RK=(rows_R[:, None] + 1 + step_K).clamp(max=total - 1),
        segments=segments,
        targets_Q=targets_Q,
        row_of_KQ=torch.where(met_KQ, index_N[row_KQ.clamp(min=0)], -1),
        asked_K=(batch.supervised_N & (offsets_N > step_K[:, None])).sum(1),
    )
