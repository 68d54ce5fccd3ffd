"""The loss of a critic."""

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
    clip: Number | None = 0.5,
) -> TokenLoss:
    """Half the squared error of the value, or that of the value held near the old one, whichever is larger.

        held = clamp(values, old_values - clip, old_values + clip)
        loss = 1/2 max((values - returns)^2, (held - returns)^2)

    Diagnostics: ``vf_clipfrac`` (the clamp decided), ``vpred_mean`` (the value).

    Args:
        values: V(s_t), with gradient.
        old_values: V(s_t) when the advantages were computed.
        returns: what V should have been.
        mask: 1 where the model wrote the token; elsewhere loss, gradient and diagnostics are 0.
        clip: how far a value may move in the updates of one step; None for the plain squared error.

    Shapes: (B, T) each -> (B, T) each.
    Paper: Schulman et al. 2016, High-Dimensional Continuous Control Using GAE (1506.02438), section 5, for a trust
        region of the value; in this form it comes with OpenAI's PPO code: Engstrom et al. 2020, Implementation Matters
        in Deep Policy Gradients (2005.12729), section 2.
    Wrong choice when: returns are larger than a few times clip: the critic then needs many steps to reach them.
        Andrychowicz et al. 2020 (2006.05990) found that clipping the value does not help.

    Raises:
        ValueError: for a clip that is not positive.
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive, or None for no clipping, got {clip}")
    values, old_values, returns = (zero_outside(x, mask) for x in (values, old_values, returns))
    free = (values - returns) ** 2
    held = free if clip is None else (values.clamp(old_values - clip, old_values + clip) - returns) ** 2
    return TokenLoss(
        loss=0.5 * torch.maximum(free, held),
        diagnostics={"vf_clipfrac": (held > free).to(mask.dtype), "vpred_mean": values.detach()},
    )
