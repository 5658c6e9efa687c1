"""Soft-target cross-entropy over the draft vocabulary, in chunks, with its gradient made in the same pass.

At a target position P = softmax(model's logits at the draft ids), in float32 and without gradient; each step k whose
row meets the target adds weights[k] * -sum(P log softmax(drafter's logits)). Only the logits of one chunk exist at a
time. The weights carry the decay and the normaliser, so the caller decides what a mean is taken over: training divides
by the rows that count (over all processes), the published code by all positions, padding included.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from eyas.trainer.batch import Plan

CHUNK_ELEMENTS = 1 << 22
"""Logits of the drafter that exist at once, all steps together."""


@dataclass(frozen=True)
class Losses:
    """Loss of a batch, and what it is made of."""

    total: Tensor  # scalar, differentiable
    sums_K: Tensor  # float32 cross-entropy summed over the rows that count
    right_KR: Tensor  # bool rows whose likeliest draft is the model's likeliest id


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: FunctionCtx,
        normed_KRH: Tensor,
        head_WH: Tensor,
        target_QH: Tensor,
        target_head_WH: Tensor,
        labels_Q: Tensor,
        row_of_KQ: Tensor,
        weights_K: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, device = normed_KRH.shape[0], normed_KRH.device
        dtype = normed_KRH.dtype
        weight_WH = head_WH.to(dtype)
        d_normed_KRH = torch.zeros(normed_KRH.shape, dtype=torch.float32, device=device)
        learned = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        d_head_WH = torch.zeros(head_WH.shape if learned else 0, dtype=torch.float32, device=device)
        sums_K = torch.zeros(steps, dtype=torch.float32, device=device)
        right_KR = torch.zeros(normed_KRH.shape[:2], dtype=torch.bool, device=device)
        chunk = max(1, CHUNK_ELEMENTS // (head_WH.shape[0] * steps))
        for start in range(0, len(target_QH), chunk):
            part = slice(start, start + chunk)
            p_QW = torch.matmul(target_QH[part], target_head_WH.T).float().softmax(-1)
            step_M, index_M = (row_of_KQ[:, part] >= 0).nonzero(as_tuple=True)
            row_M = row_of_KQ[:, part][step_M, index_M]
            x_MH = normed_KRH[step_M, row_M]
            logits_MW = torch.matmul(x_MH, weight_WH.T).float()
            p_MW = p_QW[index_M]
            right_KR[step_M, row_M] = logits_MW.argmax(-1) == labels_Q[part][index_M]
            normaliser_M = logits_MW.logsumexp(-1)
            sums_K.index_add_(0, step_M, normaliser_M - (p_MW * logits_MW).sum(-1))
            if not (learned or ctx.needs_input_grad[0]):  # type: ignore[attr-defined]
                continue
            d_MW = logits_MW.sub_(normaliser_M[:, None]).exp_().sub_(p_MW).mul_(weights_K[step_M][:, None]).to(dtype)
            d_normed_KRH[step_M, row_M] = torch.matmul(d_MW, weight_WH).float()
            if learned:
                d_head_WH += torch.matmul(d_MW.T, x_MH)
        ctx.save_for_backward(d_normed_KRH, d_head_WH)
        ctx.dtypes = dtype, head_WH.dtype  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(sums_K, right_KR)
        return (sums_K * weights_K).sum(), sums_K, right_KR

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_normed_KRH, d_head_WH = ctx.saved_tensors  # type: ignore[attr-defined]
        hidden_dtype, head_dtype = ctx.dtypes  # type: ignore[attr-defined]
        learned = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        d_head = (d_head_WH * gradients[0]).to(head_dtype) if learned else None
        return (d_normed_KRH * gradients[0]).to(hidden_dtype), d_head, None, None, None, None, None


def chunked_loss(
    normed_KRH: Tensor,
    head_WH: Tensor,
    *,
    target_NH: Tensor,
    target_head_WH: Tensor,
    labels_N: Tensor,
    plan: Plan,
    weights_K: Tensor,
) -> Losses:
    """Loss of K steps.

    `target_NH` is the model's last output after its final norm, `target_head_WH` its head's rows of the draft ids,
    `weights_K` multiplies each step's sum. Gradients reach `normed_KRH` and `head_WH`.
    """
    total, sums_K, right_KR = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        normed_KRH,
        head_WH,
        target_NH[plan.targets_Q],
        target_head_WH,
        labels_N[plan.targets_Q],
        plan.row_of_KQ,
        weights_K,
    )
    return Losses(total, sums_K, right_KR)


def likeliest(target_NH: Tensor, target_head_VH: Tensor, chunk_elements: int = 1 << 25) -> Tensor:
    """The model's likeliest id over its whole vocabulary at each position [N], in chunks of positions."""
    chunk = max(1, chunk_elements // target_head_VH.shape[0])
    result_N = torch.empty(len(target_NH), dtype=torch.int64, device=target_NH.device)
    for start in range(0, len(target_NH), chunk):
        part = slice(start, start + chunk)
        result_N[part] = torch.matmul(target_NH[part], target_head_VH.T).argmax(-1)
    return result_N
