"""Learning from demonstrations inside an optimiser step of the policy: CHORD's second term."""

from __future__ import annotations

import torch
from torch import nn

from cohort.algorithms.masking import aggregate, counts, masked_sum
from cohort.algorithms.supervised import demonstration_loss
from cohort.metrics import Mean, Metrics, Sum, merge
from cohort.models.forward import causal_lm, token_stats
from cohort.models.layout import Layout
from cohort.models.micro import Budget, cut
from cohort.models.precision import Compute
from cohort.protocols import Reduce
from cohort.types import Demonstrations

LOSS = "actor/sft_loss"
"""The metric that adds up over micro-batches and replicas."""


def learn_demonstrations(
    model: nn.Module,
    demonstrations: Demonstrations,
    *,
    layout: Layout,
    budget: Budget,
    compute: Compute,
    reduce: Reduce,
) -> Metrics:
    """Adds the gradient of ``weight x token-mean loss`` to what the model's parameters hold.

    Divided by the tokens of all demonstrations of the update, over all replicas: the parts add up to the whole however
    it is cut. The temperature is 1, whatever the sampler's: a demonstration was not drawn from the policy.

    Args:
        model: a causal LM, in eval mode.
        demonstrations: this replica's rows; there may be none.
        layout: how passes are laid out.
        budget: what one pass may hold.
        compute: lends the model its compute type.
        reduce: sums over replicas.

    Returns:
        ``actor/sft_loss`` of these rows as a sum, ``actor/sft_tokens`` of the whole update, and means over tokens:
        ``actor/sft_nll`` and, with phi, ``actor/sft_phi``.
    """
    device = causal_lm(model).device
    whole = reduce.sum(counts(demonstrations.batch.mask.to(device)))  # (2,): tokens, rows
    metrics: Metrics = {LOSS: Sum(0.0), "actor/sft_tokens": Mean(float(whole[0]))}
    for rows in cut(demonstrations.batch, budget=budget, layout=layout):
        batch = demonstrations.batch.select(rows.to(demonstrations.batch.ids.device)).to(device)
        with compute():
            stats = token_stats(model, batch, temperature=1.0, layout=layout)  # (b, T)
            terms = demonstration_loss(stats.log_probs, batch.mask.to(stats.log_probs.dtype), phi=demonstrations.phi)
            loss = aggregate(terms.loss, batch.mask, "token-mean", whole)
            if loss.requires_grad:
                (loss * demonstrations.weight).backward()
        sums = [loss.detach(), *(masked_sum(value, batch.mask) for value in terms.diagnostics.values())]
        numbers = torch.stack([*(x.double() for x in sums), batch.mask.sum().double()]).tolist()
        means = {f"actor/{n}": Mean(x, numbers[-1]) for n, x in zip(terms.diagnostics, numbers[1:-1], strict=True)}
        merge(metrics, {LOSS: Sum(numbers[0]), **means})
    return metrics


def mix(metrics: Metrics, learnt: Metrics, weight: float) -> Metrics:
    """The metrics of both terms; ``actor/loss`` is (1 - weight) x the objective + weight x the demonstrations' loss.

    Args:
        metrics: what the objective logged; a replica without rollouts has logged nothing.
        learnt: what ``learn_demonstrations`` returned.
        weight: mu.
    """
    own = metrics["actor/loss"].read() if "actor/loss" in metrics else 0.0
    return metrics | learnt | {"actor/loss": Sum((1 - weight) * own + weight * learnt[LOSS].read())}
