"""Policy losses whose probability ratio belongs to a whole answer: GSPO and GMPO.

The ratio of an answer is the geometric mean of its tokens' ratios, so that its size does not depend on the length.
Each function spreads its value over the answer's tokens; ``seq-mean-token-mean`` then gives the paper's loss.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import Number, masked_mean, zero_outside
from cohort.algorithms.ppo_loss import LOG_RATIO_LIMIT, check_clip_range
from cohort.algorithms.signatures import TokenLoss

SEQUENCE_LOG_RATIO_LIMIT = 10.0


def gspo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    clip_low: Number = 3e-4,
    clip_high: Number = 4e-4,
) -> TokenLoss:
    """Group Sequence Policy Optimization: PPO's clip on one ratio for the whole answer.

        s_i     = exp(mean_t(log_probs - old_log_probs))
        loss_it = max(-A_it s_i, -A_it clamp(s_i, 1 - clip_low, 1 + clip_high))

    The gradient flows through the mean, so all tokens of an answer get the same. ``gspo_token`` has the same value
    and lets each token's loss move that token alone; where an answer has one advantage and one weight the two have
    equal gradients too. verl's ``gspo`` is our ``gspo_token``; TRL and ms-swift call this one
    ``importance_sampling_level=sequence``. The mean log-ratio is held below 10, as in verl.

    Diagnostics: ``pg_clipfrac`` (tokens of answers where the clamp decided), ``ppo_kl`` (old minus current
    log-prob), ``pg_clipfrac_lower`` (0: there is no dual clip).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip_low: how far below 1 the answer's ratio may go; a thousand times less than for a token's ratio.
        clip_high: how far above 1.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Zheng et al. 2025, Group Sequence Policy Optimization (2507.18071), equations 5 and 7; clip ranges of its
        section 5.1.
    Wrong choice when: clip ranges of a token loss are kept (0.2 never clips an answer's ratio). When tokens have
        advantages or weights of their own: use gspo_token. When a few bad tokens hide in long answers, the mean hides
        them too.

    Raises:
        ValueError: for a negative clip range.
    """
    check_clip_range(clip_low, clip_high)
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    log_ratio = log_probs - old_log_probs
    ratio = masked_mean(log_ratio, mask, axis=1).clamp(max=SEQUENCE_LOG_RATIO_LIMIT).exp()[:, None].expand_as(mask)
    return _clipped_at_answer(ratio, log_ratio, advantages, mask, clip_low, clip_high)


def gspo_token(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    clip_low: Number = 3e-4,
    clip_high: Number = 4e-4,
) -> TokenLoss:
    """GSPO with a gradient per token: the value of the answer's ratio, differentiated through the token's log-prob.

        s_i     = exp(mean_t(log_probs - old_log_probs))
        s_it    = sg(s_i) pi_t / sg(pi_t)
        loss_it = max(-A_it s_it, -A_it clamp(s_it, 1 - clip_low, 1 + clip_high))

    sg stops the gradient. verl calls this ``gspo``. Diagnostics as in ``gspo``.

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t; unlike in ``gspo`` they may differ within an answer.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip_low: how far below 1 the answer's ratio may go.
        clip_high: how far above 1.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Zheng et al. 2025, Group Sequence Policy Optimization (2507.18071), section 4.3, GSPO-token.
    Wrong choice when: clip ranges of a token loss are kept. When all tokens of an answer share advantage and weight it
        is GSPO written in another way.

    Raises:
        ValueError: for a negative clip range.
    """
    check_clip_range(clip_low, clip_high)
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    log_ratio = log_probs - old_log_probs
    of_answer = masked_mean(log_ratio.detach(), mask, axis=1)[:, None]
    ratio = (log_probs - log_probs.detach() + of_answer).clamp(max=SEQUENCE_LOG_RATIO_LIMIT).exp()
    return _clipped_at_answer(ratio, log_ratio, advantages, mask, clip_low, clip_high)


def _clipped_at_answer(
    ratio: Float[Tensor, "B T"],
    log_ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    clip_low: Number,
    clip_high: Number,
) -> TokenLoss:
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return TokenLoss(
        loss=torch.maximum(free, held),
        diagnostics={
            "pg_clipfrac": (held > free).to(mask.dtype),
            "ppo_kl": -log_ratio.detach(),
            "pg_clipfrac_lower": torch.zeros_like(mask),
        },
    )


def geo_mean(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    clip_low: Number = 0.4,
    clip_high: Number = 0.4,
) -> TokenLoss:
    """Geometric-Mean Policy Optimization (GMPO): the geometric mean over tokens of what PPO averages arithmetically.

        d_t    = log_probs - old_log_probs
        d'_t   = min(d_t, clip_high)  where A_t > 0;   max(d_t, -clip_low)  where A_t < 0;   0 where A_t = 0
        rho_i  = exp(mean_t d'_t)
        loss_t = -mean_t(A_t) rho_i                                                         at every token of answer i

    Only the pessimistic side is clipped, token by token and in log space: 0.4 holds ratios within
    [e^-0.4, e^0.4]. mean d' is held below 20, so that a lost answer cannot overflow.

    verl averages over the rows of the micro-batch whatever the aggregation, so its gradient grows with the number of
    micro-batches; here the configured aggregation divides, as everywhere. A factor per token on the loss (weights
    against the sampler) would weigh what is one number per answer: it enters as its geometric mean.

    Diagnostics, as in verl: ``pg_clipfrac`` (tokens out of the range with A > 0, on either side), ``ppo_kl`` (old
    minus current log-prob), ``pg_clipfrac_lower`` (the same with A < 0).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t; the paper has one per answer, otherwise their mean is the answer's.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip_low: how far the log-ratio of a bad answer's token may go below 0.
        clip_high: how far that of a good answer's token may go above 0.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Zhao et al. 2025, Geometric-Mean Policy Optimization (2507.20673), its objective; the range of its
        experiments.
    Wrong choice when: tokens have advantages of their own, as only their mean counts. When clip ranges of a PPO run
        are kept: here they are log-ratios, and 0.2 clips far more than the paper does.

    Raises:
        ValueError: for a negative clip range.
    """
    check_clip_range(clip_low, clip_high)
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    log_ratio = log_probs - old_log_probs
    good, bad = advantages > 0, advantages < 0
    held = torch.where(good, log_ratio.clamp(max=clip_high), torch.where(bad, log_ratio.clamp(min=-clip_low), 0.0))
    ratio = masked_mean(held, mask, axis=1).clamp(max=LOG_RATIO_LIMIT).exp()
    loss = -masked_mean(advantages, mask, axis=1) * ratio
    outside = (log_ratio > clip_high) | (log_ratio < -clip_low)
    return TokenLoss(
        loss=zero_outside(loss[:, None].expand_as(mask), mask),
        diagnostics={
            "pg_clipfrac": (outside & good).to(mask.dtype),
            "ppo_kl": -log_ratio.detach(),
            "pg_clipfrac_lower": (outside & bad).to(mask.dtype),
        },
    )
