"""The policy in this process: a model, its objective and its optimiser.

From the training step to the loss: Trainer.step -> LocalPolicy.update -> Objective -> the loss function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from cohort.algorithms.masking import counts
from cohort.errors import UserError
from cohort.metrics import Last, Mean, Metric, Metrics, Sum, merge
from cohort.models.build import dropout_is_off, trainable
from cohort.models.export import merged_weights, save_folder
from cohort.models.forward import causal_lm, token_stats
from cohort.models.layout import DEFAULT_LAYOUT, Layout
from cohort.models.micro import UNLIMITED, Budget, plan
from cohort.models.objective import Objective
from cohort.models.optim import Optimizer, OptimSettings
from cohort.models.precision import Compute
from cohort.models.scoring import Collector, score
from cohort.models.support import settle_layout
from cohort.protocols import Reduce, TokenStats, Update, Weights
from cohort.types import Batch, Experience

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLED = 512
"""Weights per tensor that ``actor/weights_changed_share`` looks at."""


class Alone:
    """``protocols.Reduce`` for a single process."""

    def sum(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def gradients(self, parameters: Iterable[Parameter]) -> None:
        """Nothing to add."""


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

    def update(self, minibatch: Experience) -> Update:
        """One optimiser step on the whole minibatch, cut into micro-batches for memory alone.

        Where the loss or a gradient is not finite, no weight and no moment of the optimiser changes:
        ``actor/skipped_updates`` counts it and ``Update.warning`` names the first bad row.
        """
        self.optimizer.zero_grad()
        whole = self.reduce.sum(counts(minibatch.mask.to(self.device)))  # (2,): tokens, rows
        collected, metrics = Collector(minibatch.batch), dict[str, Metric]()
        for rows in self._plan(minibatch.batch):
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
                if loss.requires_grad:  # no row may have a token to learn from
                    loss.backward()
            collected.add(rows, stats)
            merge(metrics, seen)
        return self._apply(minibatch, collected.stats(), metrics)

    def _plan(self, batch: Batch) -> list[Tensor]:
        budget = UNLIMITED if self.objective.whole else self.budget
        return plan(
            batch,
            max_tokens=budget.max_tokens,
            max_rows=budget.max_rows,
            share_prompt=self.layout.share_prompt,
            padded=not self.layout.packed,
        )

    def _apply(self, minibatch: Experience, stats: TokenStats, metrics: Metrics) -> Update:
        """Adds up over replicas, then steps or, where anything is not finite, does not."""
        parameters = self.optimizer.parameters
        for parameter in parameters:
            if parameter.grad is None:  # also on a replica without rows: all replicas step alike
                parameter.grad = torch.zeros_like(parameter)
        self.reduce.gradients(parameters)
        metrics, replicas = self._whole_losses(metrics, self.objective.losses(minibatch))
        norm = float(self.optimizer.clip())
        finite = math.isfinite(norm) and math.isfinite(metrics["actor/loss"].read())
        before = [_sample(parameter) for parameter in parameters]
        if finite:
            self.optimizer.step()
        self.optimizer.zero_grad()
        after = [_sample(parameter) for parameter in parameters]
        changed = sum(int((x != y).sum()) for x, y in zip(before, after, strict=True))
        metrics |= {
            "actor/grad_norm": Mean(norm),
            "actor/lr": Last(self.optimizer.lr),
            "actor/weights_changed_share": Mean(changed, sum(len(x) for x in before)),
            "actor/skipped_updates": Sum((not finite) / replicas),
        }
        warning = "" if finite else f"update skipped: {_first_bad(minibatch, stats, metrics)}"
        return Update(metrics=metrics, stats=stats, warning=warning)

    def _whole_losses(self, metrics: Metrics, names: tuple[str, ...]) -> tuple[Metrics, float]:
        """Losses summed over replicas, as one observation per update; and the number of replicas."""
        local = [metrics[name].read() if name in metrics else 0.0 for name in names]
        *totals, replicas = self.reduce.sum(torch.tensor([*local, 1.0], dtype=torch.float64)).tolist()
        rest = {name: metric for name, metric in metrics.items() if name not in names}
        return rest | {name: Mean(total) for name, total in zip(names, totals, strict=True)}, replicas

    def advance(self) -> None:
        """Moves the learning-rate schedule on by one training step."""
        self.optimizer.advance()

    def weights(self) -> Weights:
        """The weights a sampler needs, under their Hugging Face names, LoRA merged in."""
        return merged_weights(self.model)

    def state(self) -> dict[str, Any]:
        """Trainable parameters, optimiser moments, schedule; the frozen base of LoRA is not part of it."""
        return {"parameters": {n: p.detach().clone() for n, p in trainable(self.model)}, **self.optimizer.state()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``.

        Raises:
            UserError: if it belongs to another model.
        """
        own, saved = dict(trainable(self.model)), state["parameters"]
        if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
            raise UserError(
                "the checkpoint's parameters are not those of this model; resume with the model it was made of"
            )
        for name, parameter in own.items():
            parameter.copy_(saved[name])
        self.optimizer.load_state(state)

    def save(self, folder: Path) -> None:
        """Writes a Hugging Face folder that ``from_pretrained`` loads, tokenizer included; LoRA merged in."""
        save_folder(self.model, folder, self.tokenizer)


def _sample(parameter: Tensor) -> Tensor:
    """A few hundred values spread over the tensor, copied."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(len(flat) // SAMPLED, 1)].clone()


def _first_bad(minibatch: Experience, stats: TokenStats, metrics: Metrics) -> str:
    """What is not finite, as far as it can be told."""
    tensors = {
        "log_probs": stats.log_probs,
        "advantages": minibatch.advantages,
        "old_log_probs": minibatch.old_log_probs,
        "ref_log_probs": minibatch.ref_log_probs,
    }
    mask = minibatch.batch.mask > 0
    for name, tensor in tensors.items():
        if tensor is not None:
            bad = (~tensor.to(mask.device).isfinite() & mask).any(1).nonzero()
            if len(bad):
                return f"{name} of row {int(bad[0])} of the minibatch is not finite"
    return f"loss is {metrics['actor/loss'].read()}, gradient norm is {metrics['actor/grad_norm'].read()}"
