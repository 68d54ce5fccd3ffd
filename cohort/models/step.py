"""The optimiser step of one model, the policy's and the critic's alike: add up over replicas, judge, apply.

What a model accumulated with ``backward()`` over its micro-batches is one gradient. Either all of it is finite and
the whole model moves, or nothing does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from cohort.errors import UserError
from cohort.metrics import Last, Mean, Metrics, Sum
from cohort.models.build import trainable
from cohort.models.optim import Optimizer
from cohort.protocols import Reduce

SAMPLED = 512
"""Weights per tensor that ``weights_changed_share`` looks at."""


class Alone:
    """``protocols.Reduce`` for a single process."""

    def sum(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def gradients(self, parameters: Iterable[Parameter]) -> None:
        """Nothing to add."""


def apply(
    optimizer: Optimizer, reduce: Reduce, metrics: Metrics, *, owner: str, losses: tuple[str, ...], total: str
) -> tuple[Metrics, bool]:
    """Adds gradients and losses up over replicas, then steps or, where anything is not finite, does not.

    Args:
        optimizer: holds the parameters, with this replica's gradients; without gradients afterwards.
        reduce: sums over replicas.
        metrics: what the micro-batches of this replica logged.
        owner: prefix of the metrics that are added: ``actor`` or ``critic``.
        losses: names among ``metrics`` that add up over replicas.
        total: the one among ``losses`` that was differentiated.

    Returns:
        The metrics of the whole update, and whether the step was taken.
    """
    parameters = optimizer.parameters
    for parameter in parameters:
        if parameter.grad is None:  # also on a replica without rows: all replicas step alike
            parameter.grad = torch.zeros_like(parameter)
    reduce.gradients(parameters)
    metrics, replicas = _whole_losses(reduce, metrics, losses)
    norm = float(optimizer.clip())
    finite = math.isfinite(norm) and math.isfinite(metrics[total].read())
    before = [_sample(parameter) for parameter in parameters]
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    after = [_sample(parameter) for parameter in parameters]
    changed = sum(int((x != y).sum()) for x, y in zip(before, after, strict=True))
    added: Metrics = {
        f"{owner}/grad_norm": Mean(norm),
        f"{owner}/lr": Last(optimizer.lr),
        f"{owner}/weights_changed_share": Mean(changed, sum(len(x) for x in before)),
        f"{owner}/skipped_updates": Sum((not finite) / replicas),
    }
    return metrics | added, finite


def _whole_losses(reduce: Reduce, metrics: Metrics, names: tuple[str, ...]) -> tuple[Metrics, float]:
    """Losses summed over replicas, as one observation per update; and the number of replicas."""
    local = [metrics[name].read() if name in metrics else 0.0 for name in names]
    *totals, replicas = reduce.sum(torch.tensor([*local, 1.0], dtype=torch.float64)).tolist()
    rest = {name: metric for name, metric in metrics.items() if name not in names}
    return rest | {name: Mean(total) for name, total in zip(names, totals, strict=True)}, replicas


def first_bad(tensors: Mapping[str, Tensor | None], mask: Tensor) -> str:
    """Which tensor (B, T) is not finite on the mask, and in which row; empty if none is."""
    for name, tensor in tensors.items():
        if tensor is not None:
            bad = (~tensor.to(mask.device).isfinite() & (mask > 0)).any(1).nonzero()
            if len(bad):
                return f"{name} of row {int(bad[0])} of the minibatch is not finite"
    return ""


def training_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Trainable parameters, optimiser moments, schedule; the frozen base of LoRA is not part of it."""
    return {"parameters": {n: p.detach().clone() for n, p in trainable(model)}, **optimizer.state()}


@torch.no_grad()
def load_training_state(model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restores ``training_state``.

    Raises:
        UserError: if it belongs to another model.
    """
    own, saved = dict(trainable(model)), state["parameters"]
    if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
        raise UserError("the checkpoint's parameters are not those of this model; resume with the model it was made of")
    for name, parameter in own.items():
        parameter.copy_(saved[name])
    optimizer.load_state(state)


def _sample(parameter: Tensor) -> Tensor:
    """A few hundred values spread over the tensor, copied."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(len(flat) // SAMPLED, 1)].clone()
