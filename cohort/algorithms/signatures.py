"""What the registered functions return."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Advantages(NamedTuple):
    """What an advantage estimator returns; neither carries a gradient.

    Attributes:
        advantages: A_t, 0 where the model did not write the token     # (B, T)
        returns: what a critic regresses on; outcome estimators have no
            critic and return the advantages again                     # (B, T)
    """

    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]


class TokenLoss(NamedTuple):
    """What a policy loss returns: nothing is averaged yet.

    Attributes:
        loss: loss of each token; ``aggregate`` makes it a number      # (B, T)
        diagnostics: per-token values to average over the mask, under
            verl's metric names without prefix; no gradient            # (B, T) each
    """

    loss: Float[Tensor, "B T"]
    diagnostics: dict[str, Float[Tensor, "B T"]]
