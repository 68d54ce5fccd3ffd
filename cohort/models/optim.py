"""The optimiser of one model: AdamW (or SGD), gradient clipping and a learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cohort.algorithms.schedules import lr_factor
from cohort.errors import UserError

OPTIMIZERS = ("AdamW", "SGD")


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """How weights are changed.

    Attributes:
        lr: peak learning rate.
        optimizer: AdamW (Loshchilov and Hutter 2019, 1711.05101, decay on every parameter as torch does) or SGD.
        betas: decay of AdamW's two moments.
        eps: added to AdamW's denominator.
        weight_decay: per unit of learning rate.
        clip_grad: largest global gradient norm; None does not clip.
        schedule: ``constant`` or ``cosine``, after a linear warm-up.
        warmup_steps: training steps of warm-up.
        total_steps: training steps of the run, where a cosine ends; a constant rate does not read it.
        min_ratio: share of ``lr`` that a cosine ends at.
        cycles: cosine periods; 0.5 falls once.
    """

    lr: float = 1e-6
    optimizer: str = "AdamW"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_grad: float | None = 1.0
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    min_ratio: float = 0.0
    cycles: float = 0.5


class Optimizer:
    """Applies gradients. The learning rate belongs to the training step: all its updates share one.

    Args:
        parameters: what is trained, float32 masters.
        settings: how.

    Raises:
        UserError: for an unknown optimiser, or nothing to train.
    """

    def __init__(self, parameters: Iterable[Parameter], settings: OptimSettings) -> None:
        self.settings = settings
        self.parameters = list(parameters)
        self.training_steps = 0
        if not self.parameters:
            raise UserError("the model has no trainable parameter; check lora target_modules")
        self.torch = _build(self.parameters, settings)
        self._set_lr()

    @property
    def lr(self) -> float:
        """The learning rate of the current training step."""
        return self.torch.param_groups[0]["lr"]

    def zero_grad(self) -> None:
        """Drops all gradients."""
        self.torch.zero_grad(set_to_none=True)

    def clip(self) -> Tensor:
        """Scales the gradients down to ``clip_grad`` and returns their global norm from before."""
        limit = self.settings.clip_grad
        return torch.nn.utils.clip_grad_norm_(self.parameters, float("inf") if limit is None else limit)

    def step(self) -> None:
        """One optimiser step."""
        self.torch.step()

    def advance(self) -> None:
        """The next training step begins."""
        self.training_steps += 1
        self._set_lr()

    def state(self) -> dict[str, Any]:
        """Moments and the place in the schedule."""
        return {"optimizer": self.torch.state_dict(), "training_steps": self.training_steps}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``; the settings of this run stand, not those of the saved one."""
        groups = [
            {**now, "params": then["params"]}
            for now, then in zip(
                self.torch.state_dict()["param_groups"], state["optimizer"]["param_groups"], strict=True
            )
        ]
        self.torch.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        self.training_steps = state["training_steps"]
        self._set_lr()

    def _set_lr(self) -> None:
        s = self.settings
        factor = lr_factor(
            self.training_steps,
            kind=s.schedule,
            warmup_steps=s.warmup_steps,
            total_steps=s.total_steps,
            min_ratio=s.min_ratio,
            cycles=s.cycles,
        )
        for group in self.torch.param_groups:
            group["lr"] = s.lr * factor


def _build(parameters: list[Parameter], s: OptimSettings) -> torch.optim.Optimizer:
    if s.optimizer == "AdamW":
        fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
        return torch.optim.AdamW(
            parameters, lr=s.lr, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay, fused=fused
        )
    if s.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=s.lr, weight_decay=s.weight_decay)
    raise UserError(f"optim.optimizer={s.optimizer} is not one of {', '.join(OPTIMIZERS)}")
