"""Data parallelism as a component sees it: sums over replicas, nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter


class GroupReduce:
    """``protocols.Reduce`` over a torch process group.

    Args:
        group: the process group; None is the default one.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all replicas, the same tensor on each."""
        total = values.clone()
        dist.all_reduce(total, group=self.group)
        return total

    def gradients(self, parameters: Iterable[Parameter]) -> None:
        """Sums gradients in place, one all-reduce per dtype. A replica without rows adds zeros."""
        by_dtype: dict[torch.dtype, list[Parameter]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_dtype.setdefault(parameter.grad.dtype, []).append(parameter)
        for group in by_dtype.values():
            gradients = [p.grad for p in group if p.grad is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=self.group)
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
