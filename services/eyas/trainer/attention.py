"""Attention of training-time test, exact and without a matrix of length x length.

At step k the row of position p attends to the step-0 keys j <= p of its document, and to its own keys of steps 1..k:
one softmax over both. The step-0 part runs over blocks of rows; the own keys are a few products for each row; the two
are merged by their log-sum-exp. The backward pass makes the probabilities again from the merged log-sum-exp, block by
block, as flash attention does; so nothing of size rows x keys outlives its block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

BLOCK_ELEMENTS = 1 << 24
"""Scores that exist at once."""


@dataclass(frozen=True)
class Segment:
    """A document: its trained rows `rows` (range in R), and its positions `keys` (range in N)."""

    rows: slice
    keys: slice


@dataclass(frozen=True)
class _Block:
    rows: slice
    keys: slice
    hidden_RN: Tensor  # True where a key lies after the row


def _blocks(segments: list[Segment], positions_R: Tensor, positions: list[int], heads: int) -> Iterator[_Block]:
    for segment in segments:
        first, last = segment.rows.start, segment.rows.stop
        size = max(1, BLOCK_ELEMENTS // (heads * max(1, segment.keys.stop - segment.keys.start)))
        for start in range(first, last, size):
            stop = min(start + size, last)
            keys = slice(segment.keys.start, positions[stop - 1] + 1)
            index_N = torch.arange(keys.start, keys.stop, device=positions_R.device)
            yield _Block(slice(start, stop), keys, index_N[None, :] > positions_R[start:stop, None])


def _grouped(x_RAD: Tensor, groups: int) -> Tensor:
    """[R, A, D] -> [G, (A/G) * R, D]: heads that share a key-value head become rows of one product."""
    rows, heads, size = x_RAD.shape
    return x_RAD.reshape(rows, groups, heads // groups, size).permute(1, 2, 0, 3).reshape(groups, -1, size)


def _ungrouped(x_GBD: Tensor, rows: int) -> Tensor:
    groups, _, size = x_GBD.shape
    return x_GBD.reshape(groups, -1, rows, size).permute(2, 0, 1, 3).reshape(rows, -1, size)


def _scores(q_RAD: Tensor, k_NGD: Tensor, block: _Block, scale: float) -> Tensor:
    """fp32 scores [A, rows, keys] of a block, -inf where hidden."""
    q_GBD = _grouped(q_RAD[block.rows], k_NGD.shape[1])
    s_GBN = torch.matmul(q_GBD, k_NGD[block.keys].permute(1, 2, 0)).float().mul_(scale)
    s_ARN = s_GBN.view(q_RAD.shape[1], -1, s_GBN.shape[-1])
    return s_ARN.masked_fill_(block.hidden_RN, -torch.inf)


class _StepAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes arguments by position)
        ctx: FunctionCtx,
        q_RAD: Tensor,
        k_NGD: Tensor,
        v_NGD: Tensor,
        own_k_RGSD: Tensor,
        own_v_RGSD: Tensor,
        positions_R: Tensor,
        segments: list[Segment],
        scale: float,
    ) -> Tensor:
        rows, heads, size = q_RAD.shape
        groups = k_NGD.shape[1]
        positions = positions_R.tolist()
        out_RAD = torch.empty(rows, heads, size, dtype=torch.float32, device=q_RAD.device)
        lse_RA = torch.empty(rows, heads, dtype=torch.float32, device=q_RAD.device)
        for block in _blocks(segments, positions_R, positions, heads):
            s_ARN = _scores(q_RAD, k_NGD, block, scale)
            lse_AR = s_ARN.logsumexp(-1)
            p_GBN = s_ARN.sub_(lse_AR[..., None]).exp_().to(v_NGD.dtype).view(groups, -1, s_ARN.shape[-1])
            o_GBD = torch.matmul(p_GBN, v_NGD[block.keys].transpose(0, 1))
            out_RAD[block.rows] = _ungrouped(o_GBD, lse_AR.shape[1]).float()
            lse_RA[block.rows] = lse_AR.T
        if own_k_RGSD.shape[2]:
            s_RAS = _own_scores(q_RAD, own_k_RGSD, scale)
            merged_RA = torch.logaddexp(lse_RA, s_RAS.logsumexp(-1))
            out_RAD.mul_((lse_RA - merged_RA).exp_()[..., None])
            p_RAS = (s_RAS - merged_RA[..., None]).exp_()
            out_RAD.add_(torch.matmul(_by_group(p_RAS, groups), own_v_RGSD.float()).view_as(out_RAD))
            lse_RA = merged_RA
        out_RAD = out_RAD.to(q_RAD.dtype)
        ctx.save_for_backward(q_RAD, k_NGD, v_NGD, own_k_RGSD, own_v_RGSD, positions_R, out_RAD, lse_RA)
        ctx.segments, ctx.scale, ctx.positions = segments, scale, positions  # type: ignore[attr-defined]
        return out_RAD

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_out_RAD = gradients[0].contiguous()
        q_RAD, k_NGD, v_NGD, own_k_RGSD, own_v_RGSD, positions_R, out_RAD, lse_RA = ctx.saved_tensors  # type: ignore[attr-defined]
        segments, scale, positions = ctx.segments, ctx.scale, ctx.positions  # type: ignore[attr-defined]
        heads, groups, dtype = q_RAD.shape[1], k_NGD.shape[1], q_RAD.dtype
        dq_RAD = torch.zeros(q_RAD.shape, dtype=torch.float32, device=q_RAD.device)
        dk_NGD = torch.zeros(k_NGD.shape, dtype=torch.float32, device=q_RAD.device)
        dv_NGD = torch.zeros_like(dk_NGD)
        delta_RA = (d_out_RAD.float() * out_RAD.float()).sum(-1)
        for block in _blocks(segments, positions_R, positions, heads):
            s_ARN = _scores(q_RAD, k_NGD, block, scale)
            rows, keys = s_ARN.shape[1:]
            p_ARN = s_ARN.sub_(lse_RA[block.rows].T[..., None]).exp_()
            p_GBN = p_ARN.view(groups, -1, keys)
            d_GBD = _grouped(d_out_RAD[block.rows], groups)
            dp_GBN = torch.matmul(d_GBD, v_NGD[block.keys].permute(1, 2, 0)).float()
            dv_NGD[block.keys] += torch.matmul(p_GBN.to(dtype).transpose(1, 2), d_GBD).transpose(0, 1)
            ds_ARN = dp_GBN.view_as(p_ARN).sub_(delta_RA[block.rows].T[..., None]).mul_(p_ARN).mul_(scale)
            ds_GBN = ds_ARN.view(groups, -1, keys).to(dtype)
            dq_RAD[block.rows] += _ungrouped(torch.matmul(ds_GBN, k_NGD[block.keys].transpose(0, 1)), rows)
            q_GBD = _grouped(q_RAD[block.rows], groups)
            dk_NGD[block.keys] += torch.matmul(ds_GBN.transpose(1, 2), q_GBD).transpose(0, 1)
        d_own_k, d_own_v = torch.zeros_like(own_k_RGSD), torch.zeros_like(own_v_RGSD)
        if own_k_RGSD.shape[2]:
            p_RAS = (_own_scores(q_RAD, own_k_RGSD, scale) - lse_RA[..., None]).exp_()
            d_RGBD = _by_group(d_out_RAD.float(), groups)
            d_own_v = torch.matmul(_by_group(p_RAS, groups).transpose(2, 3), d_RGBD)
            dp_RAS = torch.matmul(d_RGBD, own_v_RGSD.float().transpose(2, 3)).view_as(p_RAS)
            ds_RGBS = _by_group(dp_RAS.sub_(delta_RA[..., None]).mul_(p_RAS).mul_(scale), groups)
            dq_RAD += torch.matmul(ds_RGBS, own_k_RGSD.float()).view_as(dq_RAD)
            d_own_k = torch.matmul(ds_RGBS.transpose(2, 3), _by_group(q_RAD.float(), groups))
        return (
            dq_RAD.to(dtype), dk_NGD.to(dtype), dv_NGD.to(dtype), d_own_k.to(dtype), d_own_v.to(dtype), None, None, None
        )  # fmt: skip


def _by_group(x_RAS: Tensor, groups: int) -> Tensor:
    """[R, A, S] -> [R, G, A/G, S]."""
    rows, heads, last = x_RAS.shape
    return x_RAS.reshape(rows, groups, heads // groups, last)


def _own_scores(q_RAD: Tensor, own_k_RGSD: Tensor, scale: float) -> Tensor:
    groups, steps = own_k_RGSD.shape[1:3]
    s_RGBS = torch.matmul(_by_group(q_RAD.float(), groups), own_k_RGSD.float().transpose(2, 3))
    return s_RGBS.mul_(scale).view(q_RAD.shape[0], q_RAD.shape[1], steps)


def step_attention(
    q_RAD: Tensor,
    k_NGD: Tensor,
    v_NGD: Tensor,
    *,
    own_k_RGSD: Tensor,
    own_v_RGSD: Tensor,
    positions_R: Tensor,
    segments: list[Segment],
) -> Tensor:
    """Attention of one step for R rows.

    `positions_R` says which of the N positions each row is (ascending). `own_*` hold the row's own keys and values of
    steps 1..S, S = 0 at the first step. Returns [R, A, D]. Differentiable in all five.
    """
    scale = q_RAD.shape[-1] ** -0.5
    result: Tensor = _StepAttention.apply(  # type: ignore[no-untyped-call]
        q_RAD.contiguous(), k_NGD, v_NGD, own_k_RGSD, own_v_RGSD, positions_R, segments, scale
    )
    return result
