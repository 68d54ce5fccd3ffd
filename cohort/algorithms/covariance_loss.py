"""Policy losses that spare a policy's entropy: Clip-Cov and KL-Cov.

Entropy falls by the covariance of log-prob and advantage, and a few tokens make up most of it. Which tokens these are
is decided over the whole update minibatch, by the ``select_`` functions, before it is cut into micro-batches: means
over a micro-batch and a share of its tokens would be others, and the loss would depend on memory settings. Here
``selected`` arrives with the rows, 1 at the tokens that were picked.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms.masking import Number, masked_mean, zero_outside
from cohort.algorithms.ppo_loss import LOG_RATIO_LIMIT, check_clip_range
from cohort.algorithms.signatures import TokenLoss


def covariance(
    log_probs: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], mask: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Each token's part of the covariance between log-prob and advantage, without gradient; 0 off the mask.

        cov = (log_probs - mean(log_probs)) (A - mean(A))

    Means are over all tokens that are passed in.

    Shapes: (B, T) each -> (B, T).
    Paper: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning (2505.22617), section 4: the covariance of
        one token.
    """
    log_probs, advantages = log_probs.detach(), advantages.detach()
    centred = (log_probs - masked_mean(log_probs, mask)) * (advantages - masked_mean(advantages, mask))
    return zero_outside(centred, mask)


def select_clip_cov(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    uniforms: Float[Tensor, "B T"],
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    clip_cov_ratio: Number = 2e-4,
    clip_cov_lb: Number = 1.0,
    clip_cov_ub: Number = 5.0,
) -> Float[Tensor, "B T"]:
    """Which tokens of the minibatch lose their gradient: chosen by chance among those of high covariance.

    Candidates have ``clip_cov_lb < covariance < clip_cov_ub`` and are not clipped by PPO already. Of N tokens
    ``max(1, int(clip_cov_ratio N))`` are picked, or all candidates where there are fewer: those with the smallest
    uniforms. Options as in ``clip_cov``.

    Args:
        log_probs: log pi(token) of the current policy, all rows of the minibatch.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token.
        uniforms: the only chance, in [0, 1).

    Shapes: (B, T) each -> (B, T), 1 where picked.
    Paper: Cui et al. 2025 (2505.22617), section 4, Clip-Cov.

    Raises:
        ValueError: for an illegal option.
    """
    _check_clip_cov(clip_low, clip_high, clip_cov_ratio, clip_cov_lb, clip_cov_ub)
    free, held = _both_sides(log_probs.detach(), old_log_probs, advantages, mask, clip_low, clip_high)
    cov = covariance(log_probs, advantages, mask)
    candidates = _where((mask > 0) & (held <= free) & (cov > clip_cov_lb) & (cov < clip_cov_ub))
    wanted = max(int(clip_cov_ratio * len(_where(mask > 0))), 1)
    by_chance = uniforms.flatten()[candidates].argsort(stable=True)
    return _marked(mask, candidates[by_chance[:wanted]])


def clip_cov(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    selected: Float[Tensor, "B T"],
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    clip_cov_ratio: Number = 2e-4,
    clip_cov_lb: Number = 1.0,
    clip_cov_ub: Number = 5.0,
) -> TokenLoss:
    """Clip-Cov: PPO's clipped loss, without the gradient of a few tokens that would cost much entropy.

        loss = max(-A ratio, -A clamp(ratio, 1 - clip_low, 1 + clip_high)),   0 where selected

    The log-ratio is held within 20, which verl does not do here. There is no dual clip.

    Diagnostics, as in verl: ``pg_clipfrac`` (tokens picked; PPO's own clipping is not in it), ``ppo_kl`` (old minus
    current log-prob).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        selected: 1 at the tokens that ``select_clip_cov`` picked from the whole minibatch.
        clip_low: how far below 1 the ratio may go.
        clip_high: how far above 1.
        clip_cov_ratio: share of the minibatch's tokens to pick; at least one is.
        clip_cov_lb: covariance above which a token may be picked.
        clip_cov_ub: covariance below which it may.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning (2505.22617), section 4, Clip-Cov; r and
        omega of its experiments.
    Wrong choice when: entropy does not collapse: it only takes gradient away. When advantages are not about 1 in size:
        the bounds are on their scale. On small minibatches, where one token at least is picked whatever the ratio.

    Raises:
        ValueError: for an illegal option.
    """
    _check_clip_cov(clip_low, clip_high, clip_cov_ratio, clip_cov_lb, clip_cov_ub)
    free, held = _both_sides(log_probs, old_log_probs, advantages, mask, clip_low, clip_high)
    picked = (selected > 0) & (mask > 0)
    loss = torch.maximum(free, held)
    return TokenLoss(
        loss=torch.where(picked, torch.zeros_like(loss), loss),
        diagnostics={
            "pg_clipfrac": picked.to(mask.dtype),
            "ppo_kl": zero_outside(old_log_probs.detach() - log_probs.detach(), mask),
        },
    )


def select_kl_cov(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    uniforms: Float[Tensor, "B T"],
    *,
    kl_cov_ratio: Number = 2e-4,
    ppo_kl_coef: Number = 1.0,
) -> Float[Tensor, "B T"]:
    """Which tokens of the minibatch get the KL term: those of the highest covariance.

    Of N tokens ``max(1, int(kl_cov_ratio N))`` are picked. Of equal ones, those with the smaller uniforms: an order
    of rows must not decide. Options as in ``kl_cov``.

    Args:
        log_probs: log pi(token) of the current policy, all rows of the minibatch.
        old_log_probs: not used.
        advantages: A_t.
        mask: 1 where the model wrote the token.
        uniforms: the only chance, in [0, 1).

    Shapes: (B, T) each -> (B, T), 1 where picked.
    Paper: Cui et al. 2025 (2505.22617), section 4, KL-Cov.

    Raises:
        ValueError: for an illegal option.
    """
    _check_kl_cov(kl_cov_ratio, ppo_kl_coef)
    tokens = _where(mask > 0)
    tokens = tokens[uniforms.flatten()[tokens].argsort(stable=True)]
    cov = covariance(log_probs, advantages, mask).flatten()[tokens]
    highest = cov.argsort(descending=True, stable=True)
    return _marked(mask, tokens[highest[: max(1, int(len(tokens) * kl_cov_ratio))]])


def kl_cov(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    selected: Float[Tensor, "B T"],
    kl_cov_ratio: Number = 2e-4,
    ppo_kl_coef: Number = 1.0,
) -> TokenLoss:
    """KL-Cov: the unclipped policy gradient, with a KL term at the tokens that would cost the most entropy.

        loss = -A ratio + ppo_kl_coef |log_probs - old_log_probs|  where selected,   -A ratio elsewhere

    The log-ratio inside the ratio is held within 20, which verl does not do here. The absolute value stands for the
    KL, as in the authors' code and in verl; verl's default coefficient is 0.1.

    Diagnostics, as in verl: ``ppo_kl`` (the absolute log-ratio).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        selected: 1 at the tokens that ``select_kl_cov`` picked from the whole minibatch.
        kl_cov_ratio: share of the minibatch's tokens to pick; at least one is. The paper has 2e-4 for a model of 32
            billion parameters and 2e-3 for one of 7.
        ppo_kl_coef: weight of the KL term, the paper's beta.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning (2505.22617), section 4, KL-Cov; k and
        beta of its experiments.
    Wrong choice when: there is one update per rollout: current and old policy are the same, the KL term has no
        gradient, and what is left is REINFORCE. With many updates nothing but that term holds the policy.

    Raises:
        ValueError: for an illegal option.
    """
    _check_kl_cov(kl_cov_ratio, ppo_kl_coef)
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    log_ratio = log_probs - old_log_probs
    distance = log_ratio.abs()
    penalty = torch.where((selected > 0) & (mask > 0), ppo_kl_coef * distance, torch.zeros_like(distance))
    return TokenLoss(
        loss=-advantages * log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() + penalty,
        diagnostics={"ppo_kl": distance.detach()},
    )


def _both_sides(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    clip_low: Number,
    clip_high: Number,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """PPO's loss without and with the clamp; 0 off the mask."""
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)


def _where(condition: Tensor) -> Int[Tensor, "N"]:
    """Flat positions that hold. Their number is a shape, so shares of it are exact integers."""
    return condition.flatten().nonzero()[:, 0]


def _marked(mask: Float[Tensor, "B T"], positions: Int[Tensor, "N"]) -> Float[Tensor, "B T"]:
    return torch.zeros_like(mask).flatten().index_fill(0, positions, 1.0).view_as(mask)


def _check_clip_cov(clip_low: Number, clip_high: Number, ratio: Number, lower: Number, upper: Number) -> None:
    check_clip_range(clip_low, clip_high)
    if not 0 <= ratio <= 1:
        raise ValueError(f"clip_cov_ratio is a share of the tokens, between 0 and 1, got {ratio}")
    if not lower < upper:
        raise ValueError(f"clip_cov_lb must be below clip_cov_ub, got {lower} and {upper}")


def _check_kl_cov(ratio: Number, coef: Number) -> None:
    if not 0 <= ratio <= 1:
        raise ValueError(f"kl_cov_ratio is a share of the tokens, between 0 and 1, got {ratio}")
    if not 0 <= coef < math.inf:
        raise ValueError(f"ppo_kl_coef must not be negative, got {coef}")
