"""The critic's loss."""

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import Number, zero_outside
from cohort.algorithms.signatures import TokenLoss


def clipped_value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    clip: Number = 0.5,
) -> TokenLoss:
    """Half the squared error of the value, pessimistic about leaving the value of collection time.

        near = old_values + clamp(values - old_values, -clip, clip)
        loss = max((values - returns)^2, (near - returns)^2) / 2

    Once a value has moved by more than ``clip`` towards its return, the second term decides and
    the gradient of that token is 0.

    Diagnostics: ``vf_clipfrac`` (the second term decided), ``vpred_mean`` (the value).

    Args:
        values: V(s_t), with gradient.
        old_values: V(s_t) when the rollouts were collected.
        returns: what V regresses on.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip: how far a value may move in one training step.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Schulman et al. 2016, GAE (1506.02438), equation 28, for the regression; the clipping is of the PPO
        implementation of OpenAI baselines, described by Engstrom et al. 2020 (2005.12729), section 3, item 1.
    Wrong choice when: returns are much larger than ``clip``: the values then take many steps to get there. Scale
        the rewards, or widen the clip.

    Raises:
        ValueError: for a clip range that is not positive.
    """
    if clip <= 0:
        raise ValueError(f"clip must be positive, got {clip}")
    values, old_values, returns = (zero_outside(x, mask) for x in (values, old_values, returns))

    near = old_values + (values - old_values).clamp(-clip, clip)
    free, held = (values - returns) ** 2, (near - returns) ** 2
    return TokenLoss(
        loss=0.5 * torch.maximum(free, held),
        diagnostics={"vf_clipfrac": (held > free).to(mask.dtype), "vpred_mean": values.detach()},
    )
