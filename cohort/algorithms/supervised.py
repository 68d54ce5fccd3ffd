"""The loss on demonstrations: what CHORD mixes into reinforcement learning."""

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import zero_outside
from cohort.algorithms.signatures import TokenLoss


def demonstration_loss(log_probs: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], *, phi: bool = False) -> TokenLoss:
    """Cross-entropy on text that somebody else wrote, token by token.

        loss_t = -phi_t log p_t
        phi_t  = p_t (1 - p_t), without gradient    with phi (CHORD-phi)
               = 1                                  without (plain supervised learning)

    phi is largest at p = 1/2 and vanishes at both ends: tokens that the policy knows already teach nothing, and tokens
    that it would never write do not tear it away from what it can do. ``aggregate`` with token-mean divides the
    weighted sum by the plain number of tokens, so phi makes the loss smaller as well.

    Args:
        log_probs: log p_t of the demonstration under the current policy at temperature 1, with gradient.
        mask: 1 on the tokens to learn.
        phi: weigh each token.

    Shapes: all (B, T).
    Paper: Zhang et al. 2025, On-Policy RL Meets Off-Policy Experts (2508.11408), the losses of CHORD-mu and CHORD-phi.
    Wrong choice when: phi and the policy has nearly no probability for what is demonstrated: the weight is then near 0
        and it hardly learns; and without phi, when the demonstrations' style is far from the policy's own.

    Returns:
        the loss, and as diagnostics ``sft_nll`` (plain cross-entropy) and, with phi, ``sft_phi`` (the weight).
    """
    log_probs = zero_outside(log_probs, mask)
    own = log_probs.detach()
    if not phi:
        return TokenLoss(-log_probs, {"sft_nll": -own})
    weight = own.exp() * -torch.expm1(own)  # 1 - p without cancellation near p = 1
    weight = zero_outside(weight, mask)
    return TokenLoss(-weight * log_probs, {"sft_nll": -own, "sft_phi": weight})
