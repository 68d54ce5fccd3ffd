"""Advantages relative to the group: the other answers to the same prompt are the baseline.

Groups may be of any size and their rows may lie in any order; ``group[b]`` says which one row b is in.

A group of one has no other answers. Its advantage is 0 in every estimator of this file: nothing
is learnt from it, and nothing is made up (verl's ``grpo`` gives it its raw score). The same holds
for a group whose scores are all equal, exactly, whatever the score: rounding in the mean is kept
from turning into an advantage by the division by a tiny deviation.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms.masking import Number
from cohort.algorithms.signatures import Advantages


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


def group_sum(values: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """At each row, the sum of ``values`` over the rows of its group.

    Shapes: (B,), (B,) -> (B,). Group numbers need not start at 0 or be consecutive.
    """
    numbers, index = torch.unique(group, return_inverse=True)
    return values.new_zeros(numbers.shape).index_add(0, index, values)[index]


def group_min(values: Float[Tensor, "B"], group: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """At each row, the least of ``values`` over the rows of its group.

    Shapes: (B,), (B,) -> (B,).
    """
    numbers, index = torch.unique(group, return_inverse=True)
    return values.new_full(numbers.shape, torch.inf).scatter_reduce(0, index, values, "amin")[index]


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


def on_every_token(values: Float[Tensor, "B"], mask: Float[Tensor, "B T"]) -> Advantages:
    """One value per row as the advantage of each token that the model wrote.

    Shapes: (B,), (B, T) -> (B, T) each.
    """
    advantages = values[:, None] * mask
    return Advantages(advantages=advantages, returns=advantages)


def grpo(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    *,
    scale: str = "group",
    epsilon: Number = 1e-6,
) -> Advantages:
    """Group Relative Policy Optimization: how much better an answer is than its siblings.

        A_i = (s_i - mean(s_group)) / (std + epsilon)

    std is the unbiased one (divisor n - 1): of the group, of all scores in the batch, or absent.
    Groups of one, and groups of equal scores, have advantage 0.

    Args:
        rewards: per-token rewards; their sum is the score s_i.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        scale: whose standard deviation divides: ``group`` (the paper), ``batch``, or ``none`` (Dr. GRPO).
        epsilon: added to the standard deviation; verl has 1e-6, TRL and ms-swift 1e-4.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each.
    Paper: Shao et al. 2024, DeepSeekMath (2402.03300), section 4.1.2 and equation 3; ``batch`` is Hu et al. 2025,
        REINFORCE++ (2501.03262), its normalisation over the global batch.
    Wrong choice when: prompts differ much in difficulty: dividing by the group's deviation makes the one lucky answer
        in eight weigh more than twice as much as each of four right ones (use ``none``). When groups have two or three
        answers, the deviation is mostly noise (use ``batch``). When tokens need credit of their own: all tokens of an
        answer share one advantage.

    Raises:
        ValueError: for an unknown scale.
    """
    scores = outcome(rewards)
    statistics = group_statistics(scores, group)
    if scale == "none":
        return on_every_token(statistics.deviation, mask)
    if scale == "group":
        return on_every_token(statistics.deviation / (statistics.std + epsilon), mask)
    if scale == "batch":
        batch = group_statistics(scores, torch.zeros_like(group))
        return on_every_token(statistics.deviation / (batch.std + epsilon), mask)
    raise ValueError(f"scale {scale!r} is not one of group, batch, none")


def dr_grpo(rewards: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], group: Int[Tensor, "B"]) -> Advantages:
    """GRPO done right: the plain difference from the group's mean, ``grpo`` with ``scale="none"``.

        A_i = s_i - mean(s_group)

    The other half of the method is its loss: aggregation ``seq-mean-token-sum-norm``.
    Groups of one have advantage 0.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each.
    Paper: Liu et al. 2025, Understanding R1-Zero-Like Training (2503.20783), section 3.2.
    Wrong choice when: rewards of different tasks have different scales: the largest dominates the update. The
        learning rate of a GRPO run does not carry over either, since advantages are smaller.
    """
    return grpo(rewards, mask, group, scale="none")
