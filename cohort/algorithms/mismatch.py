"""How far the sampler's log-probs are from the trainer's on the same tokens.

Sampler and trainer hold the same weights and still compute different numbers: other kernels,
other precision, weights one step old. Importance ratios take the difference for learning, so it is
measured in every step. In what follows lambda is ``log_probs - rollout_log_probs``, trainer over
sampler, held within 20.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cohort.algorithms.masking import masked_mean, masked_sum, masked_var, zero_outside

LOG_RATIO_LIMIT = 20.0


class Mismatch(NamedTuple):
    """The distance between sampler and trainer, as scalars. "row mean" averages rows that have a token.

    Attributes:
        probs_diff_mean: mean of |p_sampler - p_trainer| over tokens; 0 is perfect.
        probs_diff_max: its maximum.
        probs_diff_std: its unbiased standard deviation.
        probs_pearson: correlation of the two probabilities over tokens; NaN where either is constant.
        training_ppl: row mean of the perplexity under the trainer.
        training_log_ppl: row mean of its logarithm.
        rollout_ppl: row mean of the perplexity under the sampler.
        rollout_log_ppl: row mean of its logarithm.
        kl: token mean of ``-lambda``: k1 of KL(sampler || trainer).
        k3_kl: token mean of ``exp(lambda) - lambda - 1``: k3 of the same.
        log_ppl_diff: row mean of the trainer's log-perplexity less the sampler's.
        log_ppl_abs_diff: row mean of its size.
        log_ppl_diff_max: largest over rows.
        log_ppl_diff_min: smallest over rows.
        ppl_ratio: row mean of ``exp`` of the difference.
        chi2_token: token mean of ``exp(2 lambda) - 1``: chi-squared distance of tokens.
        chi2_seq: row mean of ``exp(2 sum lambda) - 1``: chi-squared distance of whole answers.
    """

    probs_diff_mean: Float[Tensor, ""]
    probs_diff_max: Float[Tensor, ""]
    probs_diff_std: Float[Tensor, ""]
    probs_pearson: Float[Tensor, ""]
    training_ppl: Float[Tensor, ""]
    training_log_ppl: Float[Tensor, ""]
    rollout_ppl: Float[Tensor, ""]
    rollout_log_ppl: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    k3_kl: Float[Tensor, ""]
    log_ppl_diff: Float[Tensor, ""]
    log_ppl_abs_diff: Float[Tensor, ""]
    log_ppl_diff_max: Float[Tensor, ""]
    log_ppl_diff_min: Float[Tensor, ""]
    ppl_ratio: Float[Tensor, ""]
    chi2_token: Float[Tensor, ""]
    chi2_seq: Float[Tensor, ""]

    def named(self) -> dict[str, Tensor]:
        """The scalars under the names they are logged by, which are verl's."""
        return {PROBS_METRICS.get(name, f"rollout_corr/{name}"): value for name, value in self._asdict().items()}


PROBS_METRICS = {
    "probs_diff_mean": "training/rollout_probs_diff_mean",
    "probs_diff_max": "training/rollout_probs_diff_max",
    "probs_diff_std": "training/rollout_probs_diff_std",
    "probs_pearson": "training/rollout_actor_probs_pearson_corr",
}


def mismatch(
    log_probs: Float[Tensor, "B T"], rollout_log_probs: Float[Tensor, "B T"], mask: Float[Tensor, "B T"]
) -> Mismatch:
    """Every measure of the distance between sampler and trainer. No gradient.

    Args:
        log_probs: the trainer's, under the weights that sampled (or the newest: then age counts as distance).
        rollout_log_probs: the sampler's, of the distribution it drew from.
        mask: 1 where the model wrote the token.

    Shapes: (B, T) each -> scalars.
    Paper: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training
        (fengyao.notion.site/off-policy-rl); the estimators k1 and k3, Schulman 2020, Approximating KL Divergence.
    """
    trainer = zero_outside(log_probs.detach(), mask)
    sampler = zero_outside(rollout_log_probs.detach(), mask)
    log_ratio = (trainer - sampler).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    row_log_ratio = masked_sum(trainer - sampler, mask, axis=1).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    distance = (sampler.exp() - trainer.exp()).abs()
    rows = (mask > 0).any(dim=1).to(mask.dtype)
    training_log_ppl = -masked_mean(trainer, mask, axis=1)
    rollout_log_ppl = -masked_mean(sampler, mask, axis=1)
    difference = training_log_ppl - rollout_log_ppl
    return Mismatch(
        probs_diff_mean=masked_mean(distance, mask),
        probs_diff_max=zero_outside(distance, mask).amax(),
        probs_diff_std=masked_var(distance, mask).sqrt(),
        probs_pearson=_pearson(sampler.exp(), trainer.exp(), mask),
        training_ppl=masked_mean(training_log_ppl.exp(), rows),
        training_log_ppl=masked_mean(training_log_ppl, rows),
        rollout_ppl=masked_mean(rollout_log_ppl.exp(), rows),
        rollout_log_ppl=masked_mean(rollout_log_ppl, rows),
        kl=masked_mean(sampler - trainer, mask),
        # expm1 keeps the digits of the small differences that a healthy run has.
        k3_kl=masked_mean(torch.expm1(log_ratio) - log_ratio, mask),
        log_ppl_diff=masked_mean(difference, rows),
        log_ppl_abs_diff=masked_mean(difference.abs(), rows),
        log_ppl_diff_max=torch.where(rows > 0, difference, -torch.inf).amax(),
        log_ppl_diff_min=torch.where(rows > 0, difference, torch.inf).amin(),
        ppl_ratio=masked_mean(difference.exp(), rows),
        chi2_token=masked_mean(torch.expm1(2 * log_ratio), mask),
        chi2_seq=masked_mean(torch.expm1(2 * row_log_ratio), rows),
    )


def log_ratio_of(
    log_probs: Float[Tensor, "B T"], rollout_log_probs: Float[Tensor, "B T"], mask: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The log-ratio lambda of each token, trainer over sampler; 0 off the mask; not held within limits. No gradient.

    Shapes: (B, T) each -> (B, T).
    Paper: that of ``mismatch``.
    """
    return zero_outside(log_probs.detach(), mask) - zero_outside(rollout_log_probs.detach(), mask)


def held(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """A log-ratio within 20, so that its exponential stays finite.

    Shapes: alike.
    Paper: none; the limit is verl's.
    """
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def rows_with_a_token(mask: Float[Tensor, "B T"]) -> Float[Tensor, "B"]:
    """1.0 for each row in which the model wrote something.

    Shapes: (B, T) -> (B,).
    Paper: none; the rows that averages over answers are taken of.
    """
    return (mask > 0).any(dim=1).to(mask.dtype)


def share(what: Bool[Tensor, "*shape"], where: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """The share of the mask where ``what`` holds; 0 where the mask is empty.

    Shapes: alike -> ().
    Paper: none; a mean.
    """
    return masked_mean(what.to(where.dtype), where)


def largest(x: Float[Tensor, "*shape"], where: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """The maximum over the mask; 0 where it is empty.

    Shapes: alike -> ().
    Paper: none; a maximum.
    """
    found = torch.where(where > 0, x, -torch.inf).amax()
    return torch.where((where > 0).any(), found, torch.zeros_like(found))


def _pearson(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Correlation of x and y over the mask; NaN (0/0) where either does not vary."""
    x, y = x - masked_mean(x, mask), y - masked_mean(y, mask)
    return masked_sum(x * y, mask) / (masked_sum(x * x, mask).sqrt() * masked_sum(y * y, mask).sqrt())
