"""The critic in this process: a value model, its loss and its optimiser.

From the training step to the loss: Trainer.step -> LocalCritic.update -> clipped_value_loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cohort.algorithms.masking import aggregate, counts, masked_sum
from cohort.algorithms.value_loss import clipped_value_loss
from cohort.metrics import Mean, Metric, Metrics, Sum, merge
from cohort.models.build import dropout_is_off, trainable
from cohort.models.export import save_folder
from cohort.models.forward import causal_lm
from cohort.models.layout import DEFAULT_LAYOUT, Layout
from cohort.models.micro import UNLIMITED, Budget, cut
from cohort.models.optim import Optimizer, OptimSettings
from cohort.models.precision import Compute
from cohort.models.step import Alone, apply, first_bad, load_training_state, training_state
from cohort.models.support import settle_value_layout
from cohort.models.value import token_values
from cohort.protocols import Reduce, ValueUpdate
from cohort.types import Batch, Experience

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LocalCritic:
    """``protocols.Critic`` over a model in this process.

    Args:
        model: from ``load_value_model``, or with adapters from ``add_lora(..., head=head_name(model))``; float32
            masters, eval mode.
        optim: the optimiser's settings.
        clip: how far a value may leave that of collection time before its gradient stops.
        aggregation: one of ``algorithms.masking.AGGREGATIONS``.
        horizon: constant divisor of ``seq-mean-token-sum-norm``, in tokens.
        layout: how micro-batches are laid out; see ``layout_note`` for what became of it.
        compute_dtype: type of the backbone's forward and backward passes; None is the model's own. The head computes
            in the type of its masters, because a value in bfloat16 has three digits.
        budget: what one training pass may hold.
        values_budget: the same for passes without gradient; None is ``budget``.
        reduce: sums over replicas.
        tokenizer: saved beside the model.

    Attributes:
        layout: the layout in use.
        layout_note: why it is not the one asked for; empty if it is.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optim: OptimSettings,
        clip: float = 0.5,
        aggregation: str = "token-mean",
        horizon: float | None = None,
        layout: Layout = DEFAULT_LAYOUT,
        compute_dtype: torch.dtype | None = None,
        budget: Budget = UNLIMITED,
        values_budget: Budget | None = None,
        reduce: Reduce | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        if not dropout_is_off(model):
            raise ValueError("the critic must be in eval mode: dropout makes values random")
        self.model = model
        self.clip = clip
        self.aggregation = aggregation
        self.horizon = horizon
        self.layout, self.layout_note = settle_value_layout(model, layout)
        self.budget = budget
        self.values_budget = values_budget or budget
        self.reduce: Reduce = reduce or Alone()
        self.tokenizer = tokenizer
        lm = causal_lm(model)
        self.device: torch.device = lm.device
        self.dtype = torch.promote_types(lm.dtype, torch.float32)
        self.compute = Compute(lm.base_model, compute_dtype or lm.dtype)
        self.optimizer = Optimizer([p for _, p in trainable(model)], optim)

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """V of the state before each response token, without gradient; 0 where ``mask`` is 0  # (B, T)."""
        values = batch.mask.new_zeros(batch.mask.shape, dtype=self.dtype)
        with self.compute():
            for rows in cut(batch, budget=self.values_budget, layout=self.layout):
                rows = rows.to(values.device)
                values[rows] = token_values(self.model, batch.select(rows), layout=self.layout).to(values)
        return values

    def update(self, minibatch: Experience) -> ValueUpdate:
        """One optimiser step on the whole minibatch, cut into micro-batches for memory alone.

        Where the loss or a gradient is not finite, no weight and no moment of the optimiser changes:
        ``critic/skipped_updates`` counts it and ``ValueUpdate.warning`` names the first bad row.

        Raises:
            ValueError: if the minibatch has no values or returns.
        """
        old_values, returns, mask = minibatch.values, minibatch.returns, minibatch.mask  # (B, T) each
        if old_values is None or returns is None:
            raise ValueError("the critic learns from values and returns, and the minibatch has none")
        self.optimizer.zero_grad()
        whole = self.reduce.sum(counts(mask.to(self.device)))  # (2,): tokens, rows
        seen = torch.zeros_like(old_values)
        metrics = dict[str, Metric]()
        for rows in cut(minibatch.batch, budget=self.budget, layout=self.layout):
            rows = rows.to(mask.device)
            batch = minibatch.batch.select(rows).to(self.device)
            with self.compute():
                values = token_values(self.model, batch, layout=self.layout)  # (b, T)
                old, target, trains = (x[rows].to(self.device) for x in (old_values, returns, mask))
                loss, found = self._loss(values, old, target, trains, whole)
                if loss.requires_grad:  # no row may have a token to learn from
                    loss.backward()
            seen[rows] = values.detach().to(seen)
            merge(metrics, found)
        return self._apply(minibatch, seen, metrics)

    def _loss(
        self, values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, whole: Tensor
    ) -> tuple[Tensor, Metrics]:
        """The part of the minibatch's loss that these rows make up, and what to log about it."""
        token_loss = clipped_value_loss(values, old_values, returns, mask, self.clip)
        loss = aggregate(token_loss.loss, mask, self.aggregation, whole, horizon=self.horizon)
        means = {f"critic/{name}": masked_sum(value, mask) for name, value in token_loss.diagnostics.items()}
        total, tokens, *sums = torch.stack([x.detach().double() for x in (loss, mask.sum(), *means.values())]).tolist()
        metrics: Metrics = {name: Mean(value, tokens) for name, value in zip(means, sums, strict=True)}
        return loss, {"critic/vf_loss": Sum(total), **metrics}

    def _apply(self, minibatch: Experience, values: Tensor, metrics: Metrics) -> ValueUpdate:
        """Adds up over replicas, then steps or, where anything is not finite, does not."""
        total = "critic/vf_loss"
        metrics, finite = apply(self.optimizer, self.reduce, metrics, owner="critic", losses=(total,), total=total)
        if finite:
            return ValueUpdate(metrics=metrics)
        tensors = {"values": values, "returns": minibatch.returns, "old values": minibatch.values}
        reason = first_bad(tensors, minibatch.mask) or (
            f"loss is {metrics[total].read()}, gradient norm is {metrics['critic/grad_norm'].read()}"
        )
        return ValueUpdate(metrics=metrics, warning=f"critic update skipped: {reason}")

    def advance(self) -> None:
        """Moves the learning-rate schedule on by one training step."""
        self.optimizer.advance()

    def state(self) -> dict[str, Any]:
        """Trainable parameters, optimiser moments, schedule; the frozen base of LoRA is not part of it."""
        return training_state(self.model, self.optimizer)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``.

        Raises:
            UserError: if it belongs to another model.
        """
        load_training_state(self.model, self.optimizer, state)

    def save(self, folder: Path) -> None:
        """Writes a token-classification folder with one label, tokenizer included; LoRA merged in.

        ``AutoModelForTokenClassification`` loads it where Transformers has such a class for the architecture;
        ``load_value_model`` always does.
        """
        save_folder(self.model, folder, self.tokenizer)
