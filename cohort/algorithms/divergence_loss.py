"""DPPO: a trust region measured by a divergence between the policies, not by the ratio of one token's probabilities.

From 1e-5 to 1e-3 a token's ratio is 100 and the policy has hardly moved; from 0.99 to 0.8 the ratio is 0.81 and it has
moved a lot. The divergence is that of two outcomes, this token or any other, which the log-probs at hand suffice for.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cohort.algorithms.masking import Number, zero_outside
from cohort.algorithms.ppo_loss import LOG_RATIO_LIMIT, check_clip_range
from cohort.algorithms.signatures import TokenLoss


def dppo_tv(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    clip_low: Number = 0.15,
    clip_high: Number = 0.15,
    ratio_cap: Number | None = None,
) -> TokenLoss:
    """Divergence PPO with the total variation: a token drops out once its probability has moved too far.

        p, q  = exp(log_probs), exp(old_log_probs)
        valid = p - q <= clip_high where A > 0;   q - p <= clip_low elsewhere
        loss  = -A sg(min(p / q, ratio_cap) valid) log_probs

    sg stops the gradient, which is that of ``-A valid p / q`` wherever the cap does not act. The paper has no cap.
    In verl ``clip_ratio_c``, 3.0 by default, is one that always acts, although the function's own default is 20: for
    verl's numbers pass ``ratio_cap=3.0``, for the paper's leave it out.

    Diagnostics: ``pg_clipfrac`` (tokens that dropped out), ``ppo_kl`` (old minus current log-prob),
    ``pg_clipfrac_lower`` (tokens in the region whose weight was capped).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token); the paper takes the sampler's own.
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip_low: how much probability a token of a bad answer may lose: a difference, not a ratio.
        clip_high: how much a token of a good answer may gain.
        ratio_cap: the largest weight p / q, at least 1; None for none.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning (2602.04879), DPPO with the binary
        total variation; thresholds of its experiments.
    Wrong choice when: clip ranges of a PPO run are kept: 0.2 of probability is no 0.2 of a ratio. When rare tokens are
        what breaks the run: their ratios may grow a thousandfold inside the region.

    Raises:
        ValueError: for a negative threshold or a cap below 1.
    """
    _check(clip_low, clip_high, ratio_cap)
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    moved = log_probs.detach().exp() - old_log_probs.exp()
    valid = torch.where(advantages > 0, moved <= clip_high, moved >= -clip_low)
    return _weighted(log_probs, old_log_probs, advantages, mask, valid, ratio_cap)


def dppo_kl(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    clip_low: Number = 0.05,
    clip_high: Number = 0.05,
    ratio_cap: Number | None = None,
) -> TokenLoss:
    """Divergence PPO with the KL: a token drops out once KL(old || current) at it is too large.

        p, q  = exp(log_probs), exp(old_log_probs)
        kl    = q (log q - log p) + (1 - q) log((1 - q + 1e-8) / (1 - p + 1e-8))
        valid = kl <= clip_high or p <= q  where A > 0;   kl <= clip_low or p >= q  elsewhere
        loss  = -A sg(min(p / q, ratio_cap) valid) log_probs

    Only a token that already moved the way its advantage pushes drops out. The cap, the trap that verl's
    ``clip_ratio_c`` is, and the diagnostics are those of ``dppo_tv``.

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token); the paper takes the sampler's own.
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip_low: the largest KL at a token of a bad answer, in nats.
        clip_high: the largest KL at a token of a good answer, in nats.
        ratio_cap: the largest weight p / q, at least 1; None for none.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning (2602.04879), DPPO with the binary
        KL; thresholds of its experiments.
    Wrong choice when: clip ranges of a PPO run are kept: 0.2 nats at one token is a very wide region. When
        probabilities are close to 1 in half precision, where 1 - p has no digits left.

    Raises:
        ValueError: for a negative threshold or a cap below 1.
    """
    _check(clip_low, clip_high, ratio_cap)
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    p, q = log_probs.detach().exp(), old_log_probs.exp()
    others = (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
    kl = q * (old_log_probs - log_probs.detach()) + others
    valid = torch.where(advantages > 0, (kl <= clip_high) | (p <= q), (kl <= clip_low) | (p >= q))
    return _weighted(log_probs, old_log_probs, advantages, mask, valid, ratio_cap)


def _check(clip_low: Number, clip_high: Number, ratio_cap: Number | None) -> None:
    check_clip_range(clip_low, clip_high)
    if ratio_cap is not None and not ratio_cap >= 1:
        raise ValueError(f"ratio_cap must be at least 1, got {ratio_cap}")


def _weighted(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    valid: Bool[Tensor, "B T"],
    ratio_cap: Number | None,
) -> TokenLoss:
    log_ratio = (log_probs - old_log_probs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    weight = ratio if ratio_cap is None else ratio.clamp(max=ratio_cap)
    return TokenLoss(
        loss=-advantages * weight * log_probs * valid.to(mask.dtype),
        diagnostics={
            "pg_clipfrac": zero_outside((~valid).to(mask.dtype), mask),
            "ppo_kl": -log_ratio,
            "pg_clipfrac_lower": zero_outside(((weight < ratio) & valid).to(mask.dtype), mask),
        },
    )
