"""The clipped policy loss of PPO."""

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import Number, zero_outside
from cohort.algorithms.signatures import TokenLoss

LOG_RATIO_LIMIT = 20.0


def check_clip_range(clip_low: Number, clip_high: Number) -> None:
    """Refuses a clip range that no loss of this package can mean.

    Raises:
        ValueError: if either side is negative or not a number.
    """
    if not (clip_low >= 0 and clip_high >= 0):
        raise ValueError(f"clip_low and clip_high must not be negative, got {clip_low} and {clip_high}")


def clipped(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    dual_clip: Number | None = 3.0,
    delta: Number | None = None,
) -> TokenLoss:
    """PPO's pessimistic loss: no reward for moving the ratio out of ``[1 - clip_low, 1 + clip_high]``.

        ratio = exp(log_probs - old_log_probs)
        free  = -A min(ratio, delta)
        loss  = max(free, -A clamp(ratio, 1 - clip_low, 1 + clip_high))
        loss  = min(loss, -A dual_clip)                                       where A < 0

    Without delta, free is ``-A ratio``. delta and dual_clip bound the same thing, the ratio of a bad
    answer, which PPO leaves unbounded; for delta > 1 + clip_high either alone gives the same loss.

    The log-ratio is held within 20, so that a token the policy has lost cannot overflow. Where
    one update consumes the rollouts, pass ``log_probs.detach()`` as the old ones: the ratio is
    then exactly 1 and the gradient that of REINFORCE.

    Diagnostics: ``pg_clipfrac`` (the clamp decided), ``ppo_kl`` (old minus current log-prob: k1
    of the update), ``pg_clipfrac_lower`` (dual_clip or delta decided).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip_low: how far below 1 the ratio may go.
        clip_high: how far above 1; larger than clip_low is DAPO's clip-higher.
        dual_clip: the most that a bad answer's ratio may weigh, above 1; None for no such limit.
        delta: the same limit as INTELLECT-2 and TRL have it, above ``1 + clip_high``; where it is not the smaller
            of the two, pass ``dual_clip=None``. INTELLECT-2 has 4.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Schulman et al. 2017, PPO (1707.06347), equation 7; two clip ranges, Yu et al. 2025, DAPO (2503.14476),
        section 3.1; dual clip, Ye et al. 2020, Mastering Complex Control in MOBA Games (1912.09729), Dual-clip PPO;
        delta, Prime Intellect 2025, INTELLECT-2 (2505.07291), two-sided GRPO clipping.
    Wrong choice when: sampler and trainer disagree on single tokens, as mixture-of-experts models do: token ratios are
        noise there, and a ratio per answer (GSPO) is steadier. With one update per rollout nothing is ever clipped.

    Raises:
        ValueError: for a negative clip range, a dual clip that is not above 1, or a delta that is not above
            1 + clip_high.
    """
    check_clip_range(clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be above 1, got {dual_clip}")
    if delta is not None and not delta > 1 + clip_high:
        raise ValueError(f"delta must be above 1 + clip_high = {1 + clip_high}, got {delta}")
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))

    log_ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    bad = advantages < 0
    free = -advantages * (ratio if delta is None else ratio.clamp(max=delta))
    held = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, held)
    lower = torch.zeros_like(bad) if delta is None else bad & (ratio > delta)
    if dual_clip is not None:
        limit = -advantages * dual_clip
        lower = lower | (bad & (loss > limit))
        loss = torch.where(bad, torch.minimum(loss, limit), loss)
    return TokenLoss(
        loss=loss,
        diagnostics={
            "pg_clipfrac": (held > free).to(mask.dtype),
            "ppo_kl": -log_ratio.detach(),
            "pg_clipfrac_lower": lower.to(mask.dtype),
        },
    )
