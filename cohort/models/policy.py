"""The policy in this process: a model, its objective and its optimiser.

From the training step to the loss: Trainer.step -> LocalPolicy.update -> Objective -> the loss function.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cohort.algorithms.masking import counts
from cohort.errors import UserError
from cohort.metrics import Metric, Metrics, merge
from cohort.models.build import dropout_is_off, trainable
from cohort.models.demonstrations import LOSS, learn_demonstrations, mix
from cohort.models.export import merged_weights, save_folder
from cohort.models.forward import causal_lm, token_stats
from cohort.models.layout import DEFAULT_LAYOUT, Layout
from cohort.models.micro import UNLIMITED, Budget, cut
from cohort.models.objective import Objective
from cohort.models.optim import Optimizer, OptimSettings
from cohort.models.precision import Compute
from cohort.models.scoring import Collector, score
from cohort.models.step import Alone, apply, first_bad, load_training_state, training_state
from cohort.models.support import settle_layout
from cohort.protocols import Reduce, TokenStats, Update, Weights
from cohort.types import Batch, Demonstrations, Experience

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LocalPolicy:
    """``protocols.Policy`` over a model in this process.

    Args:
        model: a causal LM from ``load_model``, or one with adapters from ``add_lora``; float32 masters, eval mode.
        objective: the loss.
        optim: the optimiser's settings.
        temperature: the sampler's; logits are divided by it.
        layout: how micro-batches are laid out; see ``layout_note`` for what became of it.
        compute_dtype: type of forward and backward passes, see ``resolve_precision``; None is the model's own.
        budget: what one training pass may hold.
        log_prob_budget: the same for passes without gradient; None is ``budget``.
        entropy: log the policy's entropy even where the loss has no bonus.
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
        objective: Objective,
        optim: OptimSettings,
        temperature: float = 1.0,
        layout: Layout = DEFAULT_LAYOUT,
        compute_dtype: torch.dtype | None = None,
        budget: Budget = UNLIMITED,
        log_prob_budget: Budget | None = None,
        entropy: bool = True,
        reduce: Reduce | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        if not dropout_is_off(model):
            raise ValueError("the policy must be in eval mode: dropout makes log-probs random, and ratios with them")
        if temperature <= 0:
            raise UserError(f"temperature={temperature} cannot be trained with; give a value above 0")
        self.model = model
        self.objective = objective
        self.temperature = temperature
        self.layout, self.layout_note = settle_layout(model, layout)
        self.budget = budget
        self.log_prob_budget = log_prob_budget or budget
        self.entropy = entropy or objective.entropy_coeff != 0
        self.reduce: Reduce = reduce or Alone()
        self.tokenizer = tokenizer
        self.device: torch.device = causal_lm(model).device
        self.compute = Compute(model, compute_dtype or causal_lm(model).dtype)
        self.optimizer = Optimizer([p for _, p in trainable(model)], optim)

    def log_probs(
        self, batch: Batch, *, entropy: bool = False, sum_pi_squared: bool = False, hidden: bool = False
    ) -> TokenStats:
        """Log-probs of every response token, and what is asked for beside them, without gradient; 0 off ``mask``."""
        with self.compute():
            return score(
                self.model,
                batch,
                temperature=self.temperature,
                layout=self.layout,
                budget=self.log_prob_budget,
                entropy=entropy,
                sum_pi_squared=sum_pi_squared,
                hidden=hidden,
            )

    def update(self, minibatch: Experience, *, demonstrations: Demonstrations | None = None) -> Update:
        """One optimiser step on the whole minibatch, cut into micro-batches for memory alone.

        With demonstrations the loss is (1 - weight) times the objective plus weight times theirs.
        Where the loss or a gradient is not finite, no weight and no moment of the optimiser changes:
        ``actor/skipped_updates`` counts it and ``Update.warning`` names the first bad row.
        """
        self.optimizer.zero_grad()
        share = 1.0 - demonstrations.weight if demonstrations else 1.0
        whole = self.reduce.sum(counts(minibatch.mask.to(self.device)))  # (2,): tokens, rows
        collected, metrics = Collector(minibatch.batch), dict[str, Metric]()
        budget = UNLIMITED if self.objective.whole else self.budget
        for rows in cut(minibatch.batch, budget=budget, layout=self.layout):
            micro = minibatch.select(rows.to(minibatch.advantages.device)).to(self.device)
            with self.compute():
                stats = token_stats(
                    self.model,
                    micro.batch,
                    temperature=self.temperature,
                    layout=self.layout,
                    entropy=self.entropy,
                )  # (b, T)
                loss, seen = self.objective(stats, micro, whole)
                if share and loss.requires_grad:  # no row may have a token to learn from
                    (loss * share).backward()
            collected.add(rows, stats)
            merge(metrics, seen)
        if demonstrations:
            metrics = mix(metrics, self._demonstrated(demonstrations), demonstrations.weight)
        return self._apply(minibatch, collected.stats(), metrics)

    def _demonstrated(self, demonstrations: Demonstrations) -> Metrics:
        """Adds the demonstrations' share of the gradient."""
        return learn_demonstrations(
            self.model,
            demonstrations,
            layout=self.layout,
            budget=self.budget,
            compute=self.compute,
            reduce=self.reduce,
        )

    def _apply(self, minibatch: Experience, stats: TokenStats, metrics: Metrics) -> Update:
        """Adds up over replicas, then steps or, where anything is not finite, does not."""
        losses = (*self.objective.losses(minibatch), *([LOSS] if LOSS in metrics else []))
        metrics, finite = apply(self.optimizer, self.reduce, metrics, owner="actor", losses=losses, total="actor/loss")
        if finite:
            return Update(metrics=metrics, stats=stats)
        tensors = {
            "log_probs": stats.log_probs,
            "advantages": minibatch.advantages,
            "old_log_probs": minibatch.old_log_probs,
            "ref_log_probs": minibatch.ref_log_probs,
        }
        shown = f", loss on demonstrations is {metrics[LOSS].read()}" if LOSS in metrics else ""
        reason = first_bad(tensors, minibatch.batch.mask) or (
            f"loss is {metrics['actor/loss'].read()}, gradient norm is {metrics['actor/grad_norm'].read()}{shown}"
        )
        return Update(metrics=metrics, stats=stats, warning=f"update skipped: {reason}")

    def advance(self) -> None:
        """Moves the learning-rate schedule on by one training step."""
        self.optimizer.advance()

    def weights(self) -> Weights:
        """The weights a sampler needs, under their Hugging Face names, LoRA merged in."""
        return merged_weights(self.model)

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
        """Writes a Hugging Face folder that ``from_pretrained`` loads, tokenizer included; LoRA merged in."""
        save_folder(self.model, folder, self.tokenizer)
