"""The processes of a training: one alone, or those that torchrun started.

Gradients are summed, not averaged: each process's loss is already divided by the rows that count in all of them.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, distributed


class Processes:
    """This process among those that train together."""

    def __init__(self, device: torch.device, rank: int = 0, world: int = 1) -> None:
        self.device, self.rank, self.world = device, rank, world

    @property
    def leads(self) -> bool:
        """Whether this one writes checkpoints, logs and the drafter."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.world > 1:
            distributed.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Adds up the gradients of all processes; a parameter without one counts as zero."""
        if self.world == 1:
            return
        held = [p for p in parameters if p.requires_grad]
        for parameter in held:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in held if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(flat)
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def leader_says(self, values: list[float]) -> list[float]:
        """What the first process says, to all."""
        if self.world == 1:
            return values
        told = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.broadcast(told, 0)
        return [float(value) for value in told]

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Gives the first process's values to all, in place."""
        if self.world > 1:
            for tensor in tensors:
                distributed.broadcast(tensor.data, 0)

    def merge(self, values: dict[str, str]) -> dict[str, str]:
        """Entries of all processes."""
        if self.world == 1:
            return values
        parts: list[dict[str, str]] = [{} for _ in range(self.world)]
        distributed.all_gather_object(parts, values)
        return {key: value for part in parts for key, value in part.items()}

    def close(self) -> None:
        """Leaves the group."""
        if self.world > 1:
            distributed.destroy_process_group()


def local_rank() -> int:
    """Number of this process on its node."""
    return distributed.get_node_local_rank() if distributed.is_torchelastic_launched() else 0


def join() -> Processes:
    """Joins the processes that torchrun started, if it did, and takes a GPU of its own if there are any."""
    launched = distributed.is_torchelastic_launched()
    device = torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    if not launched:
        return Processes(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Processes(device, distributed.get_rank(), distributed.get_world_size())
