"""The advantage of an answer to the best of its group: for pass@k rather than the mean."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms.grouping import divide_by_spread, group_max, group_sum, has_siblings, on_every_token, outcome
from cohort.algorithms.masking import Number
from cohort.algorithms.signatures import Advantages


def grpo_passk(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    *,
    scale: str = "group",
    epsilon: Number = 1e-6,
) -> Advantages:
    """Pass@k: only a group's single best answer learns, by how much it lifts the best of the group.

        A_i = (s_i - second best of the group) / (std + epsilon)  for the best answer, 0 for all others

    It is max(s_group) less max(s_j, j != i), the leave-one-out advantage for the best of k = n samples. Where two
    answers share the first place, neither lifts it: 0. Groups of one have advantage 0; verl refuses them.
    Advantages of a group do not add up to 0: none is negative.

    Args:
        rewards: per-token rewards; their sum is the score s_i.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        scale: ``group`` divides by the group's standard deviation, verl's default; ``none`` is the paper's estimator
            and verl's with ``norm_adv_by_std_in_grpo=False``; ``batch`` divides by that of all scores.
        epsilon: added to the standard deviation.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each.
    Paper: Tang et al. 2025, Optimizing Language Models for Inference Time Objectives using Reinforcement Learning
        (2503.19595), its leave-one-out estimator of the k-sample objective.
    Wrong choice when: one answer is all a user will see, since it does not raise the mean; when answers are often
        right, because two right answers in a group leave it without any gradient.

    Raises:
        ValueError: for an unknown scale.
    """
    scores = outcome(rewards)
    best = scores == group_max(scores, group)
    alone = group_sum(best.to(scores.dtype), group) == 1
    second = group_max(torch.where(best, -torch.inf, scores), group)
    lifts = best & alone & (has_siblings(scores, group) > 0)
    gap = torch.where(lifts, scores - second, torch.zeros_like(scores))
    return on_every_token(divide_by_spread(gap, scores, group, scale, epsilon), mask)
