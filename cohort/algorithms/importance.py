"""Weights that make the sampler's answers stand for the trainer's."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.correction_settings import check_weights
from cohort.algorithms.masking import Number, masked_mean, masked_sum, masked_var, zero_outside
from cohort.algorithms.mismatch import held, largest, log_ratio_of, rows_with_a_token, share

LEAST_MEAN_WEIGHT = 1e-8


class ImportanceMetrics(NamedTuple):
    """What importance weights do, as scalars; of the weights before they are divided by their mean.

    Attributes:
        mean: mean weight over tokens.
        max: largest; of whole answers the largest ratio itself, before the cut.
        min: smallest; of whole answers the smallest ratio itself.
        std: population standard deviation over tokens.
        ratio_fraction_high: share of ratios above the limit (of tokens, or of answers).
        ratio_fraction_low: share below its inverse, or below the window.
        eff_sample_size: 1 / mean((w / mean w)^2), from 0 to 1: the share of the tokens that is left, in effect.
        seq_mean: the answers' mean weights, averaged.
        seq_std: their unbiased standard deviation.
        seq_max: the largest of them.
        seq_min: the smallest of them.
        seq_max_deviation: their largest distance from 1.
        seq_fraction_high: share of answers whose mean weight is above the limit.
        seq_fraction_low: share whose mean weight is below its inverse, or below the window.
        oob_ratio: share of tokens whose weight the window set to 0; None without a window.
        batch_norm_factor: the mean that the weights were divided by; None where they were not.
    """

    mean: Float[Tensor, ""]
    max: Float[Tensor, ""]
    min: Float[Tensor, ""]
    std: Float[Tensor, ""]
    ratio_fraction_high: Float[Tensor, ""]
    ratio_fraction_low: Float[Tensor, ""]
    eff_sample_size: Float[Tensor, ""]
    seq_mean: Float[Tensor, ""]
    seq_std: Float[Tensor, ""]
    seq_max: Float[Tensor, ""]
    seq_min: Float[Tensor, ""]
    seq_max_deviation: Float[Tensor, ""]
    seq_fraction_high: Float[Tensor, ""]
    seq_fraction_low: Float[Tensor, ""]
    oob_ratio: Float[Tensor, ""] | None = None
    batch_norm_factor: Float[Tensor, ""] | None = None

    def named(self) -> dict[str, Tensor]:
        """The scalars under verl's names, ``rollout_corr/rollout_is_*``."""
        return {f"rollout_corr/rollout_is_{k}": v for k, v in self._asdict().items() if v is not None}


def importance_weights(
    old_log_probs: Float[Tensor, "B T"],
    rollout_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    level: str = "token",
    threshold: Number | None = None,
    window: tuple[Number, Number] | None = None,
    window_level: str | None = None,
    batch_normalize: bool = False,
) -> Float[Tensor, "B T"]:
    """How much each token's policy loss counts, so that answers of the sampler stand for the trainer's. No gradient.

        ratio    token                exp(lambda_t)
                 sequence             exp(sum lambda) on every token of the answer
                 sequence_geometric   exp(mean lambda) on every token of the answer
        weight   threshold C          min(ratio, C)
                 window (lo, hi)      ratio where lo <= ratio <= hi, else 0
                 neither              ratio

    lambda is held within 20, the sum too. ms-swift's four modes are ``PRESETS`` of the settings.

    Args:
        old_log_probs: the trainer's, under the weights that sampled.
        rollout_log_probs: the sampler's, of the distribution it drew from (temperature applied).
        mask: 1 where the model wrote the token; elsewhere the weight is 0.
        level: ``token``, ``sequence`` or ``sequence_geometric``.
        threshold: C, above 0.
        window: (lo, hi), both included.
        window_level: whose ratio the window judges; None for that of ``level``. Token ratios under a window on
            ``sequence_geometric`` are ms-swift's ``sequence_mask``.
        batch_normalize: divides by the mean weight, of tokens for ``token`` and of answers otherwise.

    Shapes: (B, T) each -> (B, T).
    Paper: truncation, Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training
        (fengyao.notion.site/off-policy-rl); the window, Ling Team 2025, Every Step Evolves (2510.18855), IcePop; ratios
        of whole answers, Liu et al. 2025, When Speed Kills Stability (yingru.notion.site); the geometric mean, Zheng
        et al. 2025, GSPO (2507.18071), equation 7.
    Wrong choice when: ``token`` and the mismatch is systematic, as it leaves the states' distribution uncorrected;
        ``sequence`` and answers are long: the product of many ratios is all variance, and most weights end at the
        limit;
        ``sequence_geometric`` and an unbiased estimate is wanted. None of them where sampler and trainer agree to
        rounding: the weights are 1.

    Raises:
        ValueError: for unknown levels, or both a threshold and a window.
    """
    check_weights(level, threshold, window, window_level)
    log_ratio = log_ratio_of(old_log_probs, rollout_log_probs, mask)
    ratio = _ratio(log_ratio, mask, level)
    weights = _bounded(ratio, _ratio(log_ratio, mask, window_level or level), mask, threshold, window)
    return weights / _mean_weight(weights, mask, level) if batch_normalize else weights


def importance_metrics(
    old_log_probs: Float[Tensor, "B T"],
    rollout_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    level: str = "token",
    threshold: Number | None = None,
    window: tuple[Number, Number] | None = None,
    window_level: str | None = None,
    batch_normalize: bool = False,
) -> ImportanceMetrics:
    """What ``importance_weights`` does under the same arguments.

    Shapes: (B, T) each -> scalars.
    Paper: the effective sample size, Kong 1992, A Note on Importance Sampling using Standardized Weights.
    """
    check_weights(level, threshold, window, window_level)
    log_ratio = log_ratio_of(old_log_probs, rollout_log_probs, mask)
    ratio, judged = _ratio(log_ratio, mask, level), _ratio(log_ratio, mask, window_level or level)
    weights = _bounded(ratio, judged, mask, threshold, window)
    low, high = window if window is not None else (0.0 if threshold is None else 1 / threshold, threshold or torch.inf)

    rows = rows_with_a_token(mask)
    row_weights = masked_mean(weights, mask, axis=1)
    mean, square = masked_mean(weights, mask), masked_mean(weights**2, mask)
    extremes = (weights, mask) if level == "token" else (ratio[:, :1], rows[:, None])
    ratios = (judged, mask) if (window_level or level) == "token" else (judged[:, :1], rows[:, None])
    outside = ((judged < low) | (judged > high)).to(mask.dtype)
    return ImportanceMetrics(
        mean=mean,
        max=largest(*extremes),
        min=-largest(-extremes[0], extremes[1]),
        std=(square - mean**2).clamp(min=0).sqrt(),
        ratio_fraction_high=share(ratios[0] > high, ratios[1]),
        ratio_fraction_low=share(ratios[0] < low, ratios[1]),
        eff_sample_size=mean**2 / torch.where(square > 0, square, torch.ones_like(square)),
        seq_mean=masked_mean(row_weights, rows),
        seq_std=masked_var(row_weights, rows).sqrt(),
        seq_max=largest(row_weights, rows),
        seq_min=-largest(-row_weights, rows),
        seq_max_deviation=largest((row_weights - 1).abs(), rows),
        seq_fraction_high=share(row_weights > high, rows),
        seq_fraction_low=share(row_weights < low, rows),
        oob_ratio=masked_mean(outside, mask) if window is not None else None,
        batch_norm_factor=_mean_weight(weights, mask, level) if batch_normalize else None,
    )


def _ratio(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """The exponential of each token's own lambda, or of its answer's  # (B, T)."""
    if level == "token":
        return held(log_ratio).exp()
    whole = masked_sum(log_ratio, mask, axis=1) if level == "sequence" else masked_mean(held(log_ratio), mask, axis=1)
    return held(whole).exp()[:, None].expand_as(mask)


def _bounded(
    ratio: Tensor, judged: Tensor, mask: Tensor, threshold: Number | None, window: tuple[Number, Number] | None
) -> Tensor:
    if threshold is not None:
        ratio = ratio.clamp(max=threshold)
    if window is not None:
        ratio = zero_outside(ratio, ((judged >= window[0]) & (judged <= window[1])).to(mask.dtype))
    return zero_outside(ratio, mask) * mask


def _mean_weight(weights: Tensor, mask: Tensor, level: str) -> Tensor:
    """Mean over tokens, or over answers where an answer has one weight; 1 where there is nothing to divide by."""
    rows = rows_with_a_token(mask)
    mean = masked_mean(weights, mask) if level == "token" else masked_mean(masked_mean(weights, mask, axis=1), rows)
    return torch.where(mean > LEAST_MEAN_WEIGHT, mean, torch.ones_like(mean))
