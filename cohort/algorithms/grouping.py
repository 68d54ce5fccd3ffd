"""Statistics of groups, for formulas over groups that read as formulas over rows.

Groups may be of any size and their rows may lie in any order; ``group[b]`` says which one row b is in. Group numbers
need not start at 0 or be consecutive.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms.masking import Number, zero_outside
from cohort.algorithms.signatures import Advantages

SCALES = ("group", "batch", "none")


class GroupStatistics(NamedTuple):
    """Statistics of each row's own group, so that formulas over groups read as formulas over rows.

    Attributes:
        size: rows in the group                                    # (B,)
        mean: mean score of the group                              # (B,)
        deviation: score - mean; exactly 0 where all are equal     # (B,)
        std: unbiased standard deviation, 0 for a group of one     # (B,)
    """

    size: Float[Tensor, "B"]
    mean: Float[Tensor, "B"]
    deviation: Float[Tensor, "B"]
    std: Float[Tensor, "B"]


def group_sum(values: Float[Tensor, "B *rest"], group: Int[Tensor, "B"]) -> Float[Tensor, "B *rest"]:
    """At each row, the sum of ``values`` over the rows of its group.

    Shapes: (B, ...), (B,) -> (B, ...); what follows the rows is summed column by column.
    """
    numbers, index = torch.unique(group, return_inverse=True)
    return values.new_zeros((*numbers.shape, *values.shape[1:])).index_add(0, index, values)[index]


def group_min(values: Float[Tensor, "B *rest"], group: Int[Tensor, "B"]) -> Float[Tensor, "B *rest"]:
    """At each row, the least of ``values`` over the rows of its group.

    Shapes: (B, ...), (B,) -> (B, ...).
    """
    numbers, index = torch.unique(group, return_inverse=True)
    start = values.new_full((*numbers.shape, *values.shape[1:]), torch.inf)
    wide = index.view(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return start.scatter_reduce(0, wide, values, "amin")[index]


def group_max(values: Float[Tensor, "B *rest"], group: Int[Tensor, "B"]) -> Float[Tensor, "B *rest"]:
    """At each row, the greatest of ``values`` over the rows of its group.

    Shapes: (B, ...), (B,) -> (B, ...).
    """
    return -group_min(-values, group)


def group_statistics(scores: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> GroupStatistics:
    """Size, mean, deviation and unbiased standard deviation of each row's group.

    Shapes: (B,), (B,) -> (B,) each.
    """
    # Measured from the group's least score, equal scores give exactly 0 and large ones keep their digits.
    least = group_min(scores, group)
    above = scores - least
    size = group_sum(torch.ones_like(scores), group)
    mean = group_sum(above, group) / size
    deviation = above - mean
    variance = group_sum(deviation**2, group) / (size - 1).clamp(min=1)
    return GroupStatistics(size=size, mean=least + mean, deviation=deviation, std=variance.sqrt())


def outcome(rewards: Float[Tensor, "B T"]) -> Float[Tensor, "B"]:
    """The score of each row: its rewards summed over all tokens, without gradient.

    The mask is not applied, so a reward that arrives at a tool's token counts too.

    Shapes: (B, T) -> (B,).
    """
    return rewards.detach().sum(dim=1)


def has_siblings(scores: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """1 for the rows whose group has another row, 0 for a group of one. ``scores`` gives the type only.

    Shapes: (B,), (B,) -> (B,).
    """
    return (group_sum(torch.ones_like(scores), group) > 1).to(scores.dtype)


def divide_by_spread(
    values: Float[Tensor, "B"],
    scores: Float[Tensor, "B"],
    group: Int[Tensor, "B"],
    scale: str,
    epsilon: Number,
) -> Float[Tensor, "B"]:
    """``values`` over the unbiased standard deviation of ``scores``: of the row's group, of the batch, or as they are.

    Args:
        values: what is divided.
        scores: whose deviation divides.
        group: which group a row belongs to.
        scale: ``group``, ``batch`` or ``none``.
        epsilon: added to the standard deviation.

    Shapes: (B,) each -> (B,).

    Raises:
        ValueError: for an unknown scale.
    """
    if scale == "none":
        return values
    if scale == "group":
        return values / (group_statistics(scores, group).std + epsilon)
    if scale == "batch":
        return values / (group_statistics(scores, torch.zeros_like(group)).std + epsilon)
    raise ValueError(f"scale {scale!r} is not one of {', '.join(SCALES)}")


def on_every_token(values: Float[Tensor, "B"], mask: Float[Tensor, "B T"]) -> Advantages:
    """One value per row as the advantage of each token that the model wrote.

    Shapes: (B,), (B, T) -> (B, T) each.
    """
    advantages = zero_outside(values[:, None] * mask, mask)
    return Advantages(advantages=advantages, returns=advantages)
