"""Which tokens and answers are too far from the sampler to be trained on."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.correction_settings import Rule
from cohort.algorithms.masking import masked_mean, masked_sum, masked_var
from cohort.algorithms.mismatch import held, largest, log_ratio_of, rows_with_a_token, share


class RuleMetrics(NamedTuple):
    """One rejection rule, as scalars. A rule on tokens averages over tokens, one on answers over answers.

    The statistic is the one that the rule bounds: for k1 the logarithm of the ratio, so 0 is agreement.

    Attributes:
        mean: mean of the statistic.
        max: its maximum.
        min: its minimum.
        std: its unbiased standard deviation.
        fraction_high: share above the upper bound.
        fraction_low: share below the lower bound; 0 where there is none.
        seq_mean: the mean over answers of each answer's mean statistic.
        seq_std: the unbiased standard deviation of these.
        seq_max: the largest of these.
        seq_min: the smallest of these.
        seq_max_deviation: the largest size of these.
        seq_fraction_high: share of these above the upper bound.
        seq_fraction_low: share of these below the lower bound.
        masked_fraction: share of tokens that the rule drops.
        seq_masked_fraction: share of answers that lose a token to it.
    """

    mean: Float[Tensor, ""]
    max: Float[Tensor, ""]
    min: Float[Tensor, ""]
    std: Float[Tensor, ""]
    fraction_high: Float[Tensor, ""]
    fraction_low: Float[Tensor, ""]
    seq_mean: Float[Tensor, ""]
    seq_std: Float[Tensor, ""]
    seq_max: Float[Tensor, ""]
    seq_min: Float[Tensor, ""]
    seq_max_deviation: Float[Tensor, ""]
    seq_fraction_high: Float[Tensor, ""]
    seq_fraction_low: Float[Tensor, ""]
    masked_fraction: Float[Tensor, ""]
    seq_masked_fraction: Float[Tensor, ""]


class RejectionMetrics(NamedTuple):
    """What the rejection rules do, as scalars.

    Attributes:
        rules: the numbers of each rule, by its statistic.
        masked_fraction: share of tokens that all rules together drop.
        seq_masked_fraction: share of answers that lose a token.
    """

    rules: dict[str, RuleMetrics]
    masked_fraction: Float[Tensor, ""]
    seq_masked_fraction: Float[Tensor, ""]

    def named(self) -> dict[str, Tensor]:
        """The scalars under verl's names, ``rollout_corr/rollout_rs_*``."""
        prefix = "rollout_corr/rollout_rs"
        out = {f"{prefix}_{rule}_{k}": v for rule, numbers in self.rules.items() for k, v in numbers._asdict().items()}
        out[f"{prefix}_masked_fraction"] = self.masked_fraction
        out[f"{prefix}_seq_masked_fraction"] = self.seq_masked_fraction
        return out


def rejection(
    old_log_probs: Float[Tensor, "B T"],
    rollout_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    rules: Sequence[Rule],
) -> Float[Tensor, "B T"]:
    """1.0 where a token of the model passes every rule, 0.0 elsewhere. No gradient.

        lambda = log p_trainer - log p_sampler
        k1     = lambda,   k2 = lambda^2 / 2,   k3 = exp(lambda) - lambda - 1
        keep   = lower <= statistic <= upper          of the token, or of the answer's sum, mean, max or min

    Rules on tokens drop tokens, rules on answers drop answers. A log-prob that is not a number passes no rule.

    Args:
        old_log_probs: the trainer's, under the weights that sampled.
        rollout_log_probs: the sampler's.
        mask: 1 where the model wrote the token.
        rules: see ``correction_settings.Rule``, the trap of k1's bounds included.

    Shapes: (B, T) each -> (B, T).
    Paper: Liu et al. 2025, When Speed Kills Stability (yingru.notion.site), masked importance sampling; the
        estimates k1 to k3, Schulman 2020, Approximating KL Divergence.
    Wrong choice when: much is rejected (``rollout_rs_masked_fraction`` above some percent): what is left is a biased
        choice of short and likely answers, and the cause should be found instead.
    """
    log_ratio = log_ratio_of(old_log_probs, rollout_log_probs, mask)
    keep = (mask > 0).to(mask.dtype)
    for rule in rules:
        statistic, where = _statistic(log_ratio, mask, rule)
        keep = keep * _within(statistic, where, rule)
    return keep


def rejection_metrics(
    old_log_probs: Float[Tensor, "B T"],
    rollout_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    rules: Sequence[Rule],
) -> RejectionMetrics:
    """What ``rejection`` does under the same arguments.

    Shapes: (B, T) each -> scalars.
    Paper: that of ``rejection``.
    """
    log_ratio = log_ratio_of(old_log_probs, rollout_log_probs, mask)
    numbers = {rule.statistic: _rule_metrics(log_ratio, mask, rule) for rule in rules}
    keep = rejection(old_log_probs, rollout_log_probs, mask, rules)
    return RejectionMetrics(numbers, *_dropped(keep, mask))


def _statistic(log_ratio: Tensor, mask: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """The rule's statistic and where it stands: (B, T) for tokens, (B, 1) for answers."""
    x = held(log_ratio)
    if rule.estimate == "k1":
        x = -x if rule.inverted else x
    else:
        x = 0.5 * x**2 if rule.estimate == "k2" else torch.expm1(x) - x
    if rule.scope == "token":
        return x, mask
    if rule.scope in ("seq_sum", "seq_mean"):
        reduced = (masked_sum if rule.scope == "seq_sum" else masked_mean)(x, mask, axis=1)
    elif rule.scope == "seq_max":
        reduced = torch.where(mask > 0, x, -torch.inf).amax(dim=1)
    else:
        reduced = torch.where(mask > 0, x, torch.inf).amin(dim=1)
    return reduced[:, None], rows_with_a_token(mask)[:, None]


def _within(statistic: Tensor, where: Tensor, rule: Rule) -> Tensor:
    low, high = rule.bounds
    return ((statistic >= low) & (statistic <= high)).to(where.dtype) * where


def _rule_metrics(log_ratio: Tensor, mask: Tensor, rule: Rule) -> RuleMetrics:
    low, high = rule.bounds
    statistic, where = _statistic(log_ratio, mask, rule)
    rows = rows_with_a_token(mask)
    row = masked_mean(statistic, where, axis=1)
    masked, seq_masked = _dropped(_within(statistic, where, rule) * mask, mask)
    return RuleMetrics(
        mean=masked_mean(statistic, where),
        max=largest(statistic, where),
        min=-largest(-statistic, where),
        std=masked_var(statistic, where).sqrt(),
        fraction_high=share(statistic > high, where),
        fraction_low=share(statistic < low, where),
        seq_mean=masked_mean(row, rows),
        seq_std=masked_var(row, rows).sqrt(),
        seq_max=largest(row, rows),
        seq_min=-largest(-row, rows),
        seq_max_deviation=largest(row.abs(), rows),
        seq_fraction_high=share(row > high, rows),
        seq_fraction_low=share(row < low, rows),
        masked_fraction=masked,
        seq_masked_fraction=seq_masked,
    )


def _dropped(keep: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Share of tokens, and of rows with a token, that lose one."""
    lost = (mask > 0) & (keep == 0)
    return share(lost, mask), share(lost.any(dim=1), rows_with_a_token(mask))
