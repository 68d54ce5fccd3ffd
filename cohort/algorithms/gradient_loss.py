"""Policy losses whose gradient goes through the log-prob itself: a weight that is a constant, times grad log pi.

No token drops out of the gradient, as it does where PPO's clamp decides.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import Number, zero_outside
from cohort.algorithms.ppo_loss import LOG_RATIO_LIMIT, check_clip_range
from cohort.algorithms.signatures import TokenLoss


def cispo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    clip_low: Number | None = None,
    clip_high: Number = 4.0,
    ratio_cap: Number | None = None,
) -> TokenLoss:
    """Clipped IS-weight Policy Optimization: the importance weight is clipped, the token keeps its gradient.

        ratio = exp(log_probs - old_log_probs)
        loss  = -sg(clamp(ratio, 1 - clip_low, 1 + clip_high)) A log_probs

    sg stops the gradient. The paper sets no lower bound and publishes no number for the upper one; weights up to 5
    are those of ScaleRL. verl bounds both sides by its clip ratios (``clip_low=0.2, clip_high=0.2``); in ms-swift and
    TRL ``epsilon_high`` is the largest weight itself (``ratio_cap=5.0``), not a distance from 1.

    Diagnostics: ``pg_clipfrac`` (weights that were clipped), ``ppo_kl`` (old minus current log-prob),
    ``pg_clipfrac_lower`` (0: there is no dual clip).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip_low: how far below 1 the weight may go; None for no lower bound.
        clip_high: how far above 1.
        ratio_cap: the largest weight itself; given, it stands in place of ``1 + clip_high``.

    Shapes: (B, T) each -> (B, T) each.
    Paper: MiniMax 2025, MiniMax-M1 (2506.13585), equations 4 and 5; the upper bound, Khatri et al. 2025, ScaleRL
        (2510.13786).
    Wrong choice when: many updates are made of the same rollouts: nothing stops a token that has moved far enough. A
        cap of 0.2, meant as a distance from 1, shrinks every weight to 0.2.

    Raises:
        ValueError: for a negative clip range or a cap that is not positive.
    """
    check_clip_range(0 if clip_low is None else clip_low, clip_high)
    if ratio_cap is not None and not ratio_cap > 0:
        raise ValueError(f"ratio_cap must be positive, got {ratio_cap}")
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    log_ratio = (log_probs - old_log_probs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    weight = ratio.clamp(0.0 if clip_low is None else 1 - clip_low, 1 + clip_high if ratio_cap is None else ratio_cap)
    return TokenLoss(
        loss=-weight * advantages * log_probs,
        diagnostics={
            "pg_clipfrac": zero_outside((weight != ratio).to(mask.dtype), mask),
            "ppo_kl": -log_ratio,
            "pg_clipfrac_lower": torch.zeros_like(mask),
        },
    )


def gpg(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
) -> TokenLoss:
    """Group Policy Gradient: the plain policy gradient, averaged over tokens.

        loss = -A log_probs

    What is the paper's own lies in the advantage (estimator ``gpg``). Old log-probs are not used; no diagnostics.

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: not used.
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss and gradient are 0.

    Shapes: (B, T) each -> (B, T).
    Paper: Chu et al. 2025, GPG: A Simple and Strong Reinforcement Learning Baseline (2504.02546), its objective.
    Wrong choice when: rollouts are used for more than one update, or are older than the policy: nothing corrects for
        that, and nothing stops the policy from running away.
    """
    log_probs, advantages = zero_outside(log_probs, mask), zero_outside(advantages, mask)
    return TokenLoss(loss=-advantages * log_probs, diagnostics={})


def reinforce(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
) -> TokenLoss:
    """REINFORCE: the gradient of the log-prob, times how good it was.

        loss = -A log_probs

    The loss of ``gpg``, with the diagnostic ``ppo_kl`` (old minus current log-prob), which says how far the policy
    has gone from what sampled: this loss does not look. The episode's own gradient is aggregation
    ``seq-mean-token-sum``; the field averages over tokens, and so does the default.

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token), for the diagnostic alone.
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Williams 1992, Simple Statistical Gradient-Following Algorithms (Machine Learning 8), section 4; for language
        models, Ahmadian et al. 2024, Back to Basics (2402.14740), section 3.
    Wrong choice when: rollouts are used for more than one update, or are older than the policy: use a loss with a
        ratio, such as vanilla or cispo.
    """
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    return TokenLoss(loss=-advantages * log_probs, diagnostics={"ppo_kl": old_log_probs.detach() - log_probs.detach()})


def dro(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    *,
    beta: Number = 1.0,
) -> TokenLoss:
    """Direct Reward Optimisation: the policy gradient, held back by the square of the log-ratio.

        loss = -(A log_probs - beta / 2 (log_probs - old_log_probs)^2)

    Up to a factor this is the policy gradient of the squared distance between A and beta times the log-ratio: the
    optimum is ``log pi - log pi_old = A / beta``, whatever policy wrote the data. The paper has one log-ratio per
    answer, against a frozen reference and with a learnt value in A; per token and against the old policy it is as
    in verl and Tinker. verl refuses to run without a beta of its own choice.

    Diagnostics: ``ppo_kl`` (old minus current log-prob).

    Args:
        log_probs: log pi(token), with gradient.
        old_log_probs: log pi_old(token).
        advantages: A_t.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        beta: weight of the square, the paper's tau; 1.0 did best there.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Richemond et al. 2024, Offline Regularised Reinforcement Learning for LLM Alignment (2405.19107), equation 4;
        Kimi Team 2025, Kimi k1.5 (2501.12599), its policy optimisation.
    Wrong choice when: there is one update per rollout: the square and its gradient are 0 and it is REINFORCE. Its
        optimum needs advantages on an absolute scale; divided by a group's deviation they have none.

    Raises:
        ValueError: for a beta that is not positive.
    """
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be positive, got {beta}")
    log_probs, old_log_probs, advantages = (zero_outside(x, mask) for x in (log_probs, old_log_probs, advantages))
    log_ratio = log_probs - old_log_probs
    return TokenLoss(
        loss=-(advantages * log_probs - 0.5 * beta * log_ratio**2), diagnostics={"ppo_kl": -log_ratio.detach()}
    )
