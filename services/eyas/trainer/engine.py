"""One optimiser step, and one measurement: drafter, frozen target, optimiser and processes put together."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.run.v1 import run_pb2 as pb
from eyas.trainer.batch import Batch, Document, Plan, pack, plan
from eyas.trainer.loss import Losses, chunked_loss, likeliest
from eyas.trainer.model import Drafter
from eyas.trainer.parallel import Processes
from eyas.trainer.target import Target
from eyas.trainer.vocabulary import Vocabulary


@dataclass(frozen=True)
class Measured:
    """Means over the rows that count, of all processes. Lists have one value a step of training-time test."""

    loss: float
    loss_by_step: list[float]
    accuracy_by_step: list[float]
    """Share of supervised rows whose likeliest draft is the model's likeliest id; ids that cannot be drafted count as
    wrong."""
    acceptance_length: float
    """1 + drafts that a greedy model accepts, as mean over the supervised rows."""
    tokens: int
    supervised: int


class Engine:
    """Trains a drafter step by step. The mean of a step is over the rows that count in it, padding there is none."""

    def __init__(
        self, drafter: Drafter, target: Target, vocabulary: Vocabulary, training: pb.Training, processes: Processes
    ) -> None:
        self.drafter, self.target, self.processes = drafter, target, processes
        self._training = training
        self._draft_of = vocabulary.draft_of
        self._head_WH = target.head_VH if vocabulary.whole else target.head_VH[vocabulary.ids_W.to(processes.device)]
        self._dtype = torch.bfloat16 if training.dtype == "bfloat16" else torch.float32
        self._decay_K = training.ttt_step_loss_decay ** torch.arange(training.ttt_steps, device=processes.device)
        self._likeliest: dict[str, Tensor] = {}
        decayed = [p for p in drafter.parameters() if p.ndim > 1]
        plain = [p for p in drafter.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": training.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=training.lr,
            betas=(0.9, 0.95),
            fused=True,
        )

    def step(self, rows: Sequence[Sequence[Document]], rate: float) -> Measured:
        """One optimiser step over this process's rows of documents."""
        batches = self._batches(rows)
        counts_K = self._sum([planned.counts_K for _, planned in batches])
        weights_K = self._decay_K / counts_K.clamp(min=1)
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for batch, planned in batches:
            result = self._losses(batch, planned, weights_K)
            result.total.backward()  # type: ignore[no-untyped-call]
            losses.append(result)
        self.processes.sum_gradients(self.drafter.parameters())
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self._training.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return self._measured(batches, losses, counts_K)

    @torch.no_grad()
    def measure(self, rows: Sequence[Sequence[Document]]) -> Measured:
        """The same numbers without training."""
        batches = self._batches(rows)
        counts_K = self._sum([planned.counts_K for _, planned in batches])
        weights_K = self._decay_K / counts_K.clamp(min=1)
        losses = [self._losses(batch, planned, weights_K) for batch, planned in batches]
        return self._measured(batches, losses, counts_K)

    def _batches(self, rows: Sequence[Sequence[Document]]) -> list[tuple[Batch, Plan]]:
        device = self.processes.device
        batches = [
            pack(row, self._likeliest_of, self._draft_of, device=device, dtype=self._dtype) for row in rows if row
        ]
        return [(batch, plan(batch, self._training.ttt_steps)) for batch in batches]

    def _losses(self, batch: Batch, planned: Plan, weights_K: Tensor) -> Losses:
        with self._forward_dtype():
            outputs = self.drafter(batch, planned, self.target.embedding_VH)
        return chunked_loss(
            torch.stack(outputs.normed_KRH).float(),
            self.drafter.lm_head.weight,
            target_NH=self.target.normed(batch.last_NH),
            target_head_WH=self._head_WH,
            labels_N=batch.labels_N,
            plan=planned,
            weights_K=weights_K,
        )

    def _forward_dtype(self) -> contextlib.AbstractContextManager[object]:
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.processes.device.type, self._dtype)

    def _likeliest_of(self, document: Document) -> Tensor:
        """Kept, since the whole head costs more than the drafter."""
        found = self._likeliest.get(document.name)
        if found is None:
            last = document.last[document.supervised].to(self.processes.device)
            found = likeliest(self.target.normed(last), self.target.head_VH).to(torch.int32).cpu()
            self._likeliest[document.name] = found
        return found.long()

    def _sum(self, parts: Sequence[Tensor]) -> Tensor:
        zero = torch.zeros(self._training.ttt_steps, device=self.processes.device)
        return self.processes.sum(sum((part.to(zero.dtype) for part in parts), zero))

    def _measured(self, batches: Sequence[tuple[Batch, Plan]], losses: Sequence[Losses], counts_K: Tensor) -> Measured:
        steps, device = self._training.ttt_steps, self.processes.device
        by_step = torch.zeros(3, steps, dtype=torch.float64, device=device)
        overall = torch.zeros(3, dtype=torch.float64, device=device)
        for (batch, planned), result in zip(batches, losses, strict=True):
            by_step += torch.stack([result.sums_K, result.right_KR.sum(1), planned.asked_K])
            accepted = result.right_KR.cumprod(0).sum()
            overall += torch.stack([accepted, batch.supervised_N.sum(), torch.tensor(batch.starts[-1], device=device)])
        summed = self.processes.sum(torch.cat([by_step.flatten(), overall]))
        sums_K, right_K, asked_K = summed[:-3].view(3, steps)
        accepted, supervised, tokens = summed[-3:].tolist()
        losses_K = sums_K / counts_K.clamp(min=1)
        return Measured(
            loss=float((self._decay_K * losses_K).sum()),
            loss_by_step=losses_K.tolist(),
            accuracy_by_step=(right_K / asked_K.clamp(min=1)).tolist(),
            acceptance_length=1 + accepted / max(1.0, float(asked_K[0])),
            tokens=int(tokens),
            supervised=int(supervised),
        )
