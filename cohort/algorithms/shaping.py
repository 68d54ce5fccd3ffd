"""From a score per answer to a reward per token."""

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.kl import kl_penalty
from cohort.algorithms.masking import Number, masked_mean, zero_outside


def place(scores: Float[Tensor, "B"], mask: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each score on the last token that the model wrote, 0 elsewhere.

    Never on a tool's token or on padding, where some estimators would lose it. A row in which the
    model wrote nothing gets no reward: there is no token to credit, so such rows should not be scored.

    Shapes: scores (B,), mask (B, T) -> (B, T).
    """
    written = mask > 0
    count = written.cumsum(dim=1)
    last = written & (count == count[:, -1:])
    return torch.where(last, scores[:, None], torch.zeros_like(scores[:, None]))


def kl_in_reward(
    scores: Float[Tensor, "B T"],
    log_probs: Float[Tensor, "B T"],
    ref_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    coef: Number,
    kind: str,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B"]]:
    """Rewards less a penalty for leaving the reference: ``scores - coef * KL_t`` on the model's tokens.

    Only the value of the KL enters; nothing carries a gradient. The kind ``k1`` makes the policy
    gradient of the penalty that of KL(policy || reference); the others do not (see ``kl.py``).

    Args:
        scores: per-token scores.
        log_probs: log pi(token) of the policy that sampled.
        ref_log_probs: log pi_ref(token).
        mask: 1 where the model wrote the token.
        coef: beta.
        kind: a name of ``kl.KL_KINDS``.

    Returns:
        The rewards, and each row's mean KL per token (0 for a row without a token), which is what
        an adaptive coefficient is steered by and what ``actor/reward_kl_penalty`` averages.

    Shapes: (B, T) each -> (B, T), (B,).
    Paper: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences (1909.08593), equation 2.
    """
    kl = zero_outside(kl_penalty(log_probs, ref_log_probs, kind, mask), mask).detach()
    return scores - coef * kl * mask, masked_mean(kl, mask, axis=1)
