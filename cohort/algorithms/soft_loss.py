"""A policy loss that fades a token out where PPO cuts it off."""

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import Number, zero_outside
from cohort.algorithms.ppo_loss import LOG_RATIO_LIMIT
from cohort.algorithms.signatures import TokenLoss


def sapo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    tau_pos: Number = 1.0,
    tau_neg: Number = 1.05,
) -> TokenLoss:
    """Soft Adaptive Policy Optimization: a sigmoid of the ratio in place of the clip.

        ratio = exp(log_probs - old_log_probs)
        tau   = tau_pos where A > 0, tau_neg elsewhere
        loss  = -A (4 / tau) sigmoid(tau (ratio - 1))

    At ratio 1 the gradient is that of REINFORCE (a sigmoid's slope there is 1/4); it decays on both sides and is
    never exactly 0. The larger tau is, the faster.

    Diagnostics: ``ppo_kl`` (old minus current log-prob), ``pg_clipfrac`` and ``pg_clipfrac_lower`` (0: nothing is
    clipped).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        tau_pos: how fast tokens of good answers fade.
        tau_neg: how fast tokens of bad answers fade; above tau_pos, as pushing one token down lifts all others.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Gao et al. 2025, Soft Adaptive Policy Optimization (2511.20347), its objective and gate.
    Wrong choice when: a hard limit on the step is wanted: ratios far above 1 still push, a little. A logged loss of a
        run is not comparable to PPO's, as its value at ratio 1 is ``-2 A / tau`` and not ``-A``.

    Raises:
        ValueError: for a temperature that is not positive.
    """
    if not (tau_pos > 0 and tau_neg > 0):
        raise ValueError(f"tau_pos and tau_neg must be positive, got {tau_pos} and {tau_neg}")
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    log_ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    tau = torch.full_like(advantages, tau_neg).masked_fill(advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1)) * 4 / tau
    return TokenLoss(
        loss=-advantages * gate,
        diagnostics={
            "pg_clipfrac": torch.zeros_like(mask),
            "ppo_kl": -log_ratio.detach(),
            "pg_clipfrac_lower": torch.zeros_like(mask),
        },
    )
