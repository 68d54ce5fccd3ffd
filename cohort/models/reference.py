"""The frozen model a KL term is taken against: a copy, or under LoRA the actor without its adapters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cohort.models.forward import causal_lm
from cohort.models.layout import DEFAULT_LAYOUT, Layout
from cohort.models.micro import UNLIMITED, Budget
from cohort.models.policy import LocalPolicy
from cohort.models.precision import cast_parameters
from cohort.models.scoring import score
from cohort.models.support import settle_layout
from cohort.protocols import TokenStats
from cohort.types import Batch


class LocalReference:
    """``protocols.Reference`` over a frozen model of its own.

    Args:
        model: from ``load_model``, in float32; frozen here, and held in ``compute_dtype`` from now on.
        temperature: the sampler's, so that both log-probs are of the same kind of distribution.
        layout: how micro-batches are laid out.
        compute_dtype: the actor's; None is the model's own.
        budget: what one pass may hold.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1.0,
        layout: Layout = DEFAULT_LAYOUT,
        compute_dtype: torch.dtype | None = None,
        budget: Budget = UNLIMITED,
    ) -> None:
        self.temperature = temperature
        self.layout, self.layout_note = settle_layout(model, layout)
        self.budget = budget
        self.model = cast_parameters(model.eval().requires_grad_(False), compute_dtype or causal_lm(model).dtype)

    def log_probs(self, batch: Batch, *, hidden: bool = False) -> TokenStats:
        """Log-probs of every response token under the frozen model; 0 where ``mask`` is 0."""
        return score(
            self.model, batch, temperature=self.temperature, layout=self.layout, budget=self.budget, hidden=hidden
        )


class AdapterOff:
    """``protocols.Reference`` of a LoRA actor: the same model with its adapters switched off, no second copy.

    Args:
        policy: the actor; its model comes from ``add_lora``.
    """

    def __init__(self, policy: LocalPolicy) -> None:
        self.policy = policy
        self.model: Any = policy.model

    def log_probs(self, batch: Batch, *, hidden: bool = False) -> TokenStats:
        """Log-probs of every response token under the base model; 0 where ``mask`` is 0."""
        with self.model.disable_adapter():
            return self.policy.log_probs(batch, hidden=hidden)
