"""Advantages relative to the group: the other answers to the same prompt are the baseline.

Groups may be of any size and their rows may lie in any order; ``group[b]`` says which one row b is in.

A group of one has no other answers. Its advantage is 0 in every estimator of this family: nothing
is learnt from it, and nothing is made up. verl's ``grpo``, ``rloo``, ``opo`` and ``gpg`` give it its
raw score instead, its ``rloo_vectorized`` gives 0. The same holds for a group whose scores are all
equal, exactly, whatever the score: rounding in the mean is kept from turning into an advantage by
the division by a tiny deviation.

The score of a row is the sum of its rewards over all columns, so none is lost to the mask.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms.grouping import divide_by_spread, group_min, group_statistics, group_sum, on_every_token, outcome
from cohort.algorithms.masking import Number
from cohort.algorithms.signatures import Advantages


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
    deviation = group_statistics(scores, group).deviation
    return on_every_token(divide_by_spread(deviation, scores, group, scale, epsilon), mask)


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


def rloo(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    *,
    scale: str = "none",
    epsilon: Number = 1e-6,
) -> Advantages:
    """REINFORCE leave-one-out: the baseline is the mean of the *other* answers, so the gradient is unbiased.

        A_i = s_i - mean(s_j, j != i) = n / (n - 1) * (s_i - mean(s_group))

    Groups of one have advantage 0, as in verl's ``rloo_vectorized``; its ``rloo`` gives them their raw score.

    Args:
        rewards: per-token rewards; their sum is the score s_i.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        scale: ``none`` is the paper and verl; ``group`` and ``batch`` divide by the standard deviation of the scores,
            as ms-swift's ``scale_rewards`` does.
        epsilon: added to the standard deviation; ms-swift has 1e-4.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each.
    Paper: Ahmadian et al. 2024, Back to Basics (2402.14740), section 3; Kool et al. 2019, Buy 4 REINFORCE Samples.
    Wrong choice when: rewards of different tasks have different scales; when groups are large, where it is Dr. GRPO
        with a learning rate n / (n - 1) times as high; when tokens need credit of their own.

    Raises:
        ValueError: for an unknown scale.
    """
    scores = outcome(rewards)
    size, _, deviation, _ = group_statistics(scores, group)
    others = deviation * size / (size - 1).clamp(min=1)
    return on_every_token(divide_by_spread(others, scores, group, scale, epsilon), mask)


def opo(rewards: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], group: Int[Tensor, "B"]) -> Advantages:
    """On-Policy RL with Optimal reward baseline: the mean of the group, weighted by the length of the answers.

        A_i = s_i - sum_j(len_j * s_j) / sum_j(len_j)

    len_j is the number of tokens that the model wrote. The weights are those of the least variance if each token's
    gradient is as large as any other and orthogonal to it. Groups of one have advantage 0; verl gives them their score.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each.
    Paper: Hao et al. 2025, On-Policy RL with Optimal Reward Baseline (2505.23585).
    Wrong choice when: data is used for more than one update: it is derived for exact on-policy training, without KL
        term. When length goes with the score, because long wrong answers then set the baseline; when a mean of
        advantages of 0 in each group matters, which holds here only weighted by length.
    """
    scores = outcome(rewards)
    above = scores - group_min(scores, group)
    length = mask.sum(dim=1)
    total = group_sum(length, group)
    baseline = group_sum(length * above, group) / torch.where(total > 0, total, torch.ones_like(total))
    return on_every_token(above - baseline, mask)


def gpg(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    *,
    count: str = "scores",
    f_norm: Number = 1.0,
) -> Advantages:
    """Group Policy Gradient: the difference from the group's mean, made up for the rows that say nothing.

        A_i = alpha * (s_i - mean(s_group)) / f_norm,   alpha = B / max(number of rows that count, 1)

    alpha keeps the size of the update when many answers contribute nothing. What counts is where the sources differ:
    verl takes the rows whose score is not 0 (``scores``); the paper's correction is for samples without gradient, the
    groups that are all right or all wrong, which is ``gradients``. With 0/1 rewards the two are different numbers.
    Groups of one have advantage 0; verl gives them alpha times their score. Its policy loss is ``gpg``.

    Args:
        rewards: per-token rewards; their sum is the score s_i.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        count: ``scores``: rows with a score other than 0; ``gradients``: rows with an advantage other than 0.
        f_norm: a constant divisor; 1 in the paper's default and in verl.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each.
    Paper: Chu et al. 2025, GPG: A Simple and Strong Reinforcement Learning Baseline (2504.02546), its accurate
        gradient estimation.
    Wrong choice when: few answers are right: with ``scores`` the whole batch, groups without a right answer left
        aside, is multiplied by the inverse of the success rate, a learning rate that falls as the model improves.
        When wrong answers score below 0, where ``scores`` counts them as rows that say something.

    Raises:
        ValueError: for an unknown count.
    """
    scores = outcome(rewards)
    deviation = group_statistics(scores, group).deviation
    if count == "scores":
        speaks = scores != 0
    elif count == "gradients":
        speaks = deviation != 0
    else:
        raise ValueError(f"count {count!r} is not one of scores, gradients")
    alpha = len(scores) / speaks.to(scores.dtype).sum().clamp(min=1)
    return on_every_token(alpha * deviation / f_norm, mask)


def max_rl(rewards: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], group: Int[Tensor, "B"]) -> Advantages:
    """Maximum Likelihood RL: the difference from the group's mean, in units of that mean.

        A_i = (s_i - mean(s_group)) / mean(s_group), 0 where the mean is not positive

    For 0/1 scores with K of n right this is n/K - 1 for a right answer and -1 for a wrong one: each prompt weighs
    by its inverse success rate, which turns the gradient of the success rate p into that of log p, as far as n
    samples can tell. In expectation the mean over the group of A_i * grad log pi(answer_i) is
    (1 - (1 - p)^(n-1)) / p * grad p, the gradient of the series of log p cut after its first n - 1 terms.

    Groups of one have advantage 0. A group without a right answer has none to learn from: 0, as in the paper.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each.
    Paper: Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning (2602.02710), its on-policy estimator with
        the mean as control variate.
    Wrong choice when: scores may be negative or are not likelihoods of being right: the mean is then no success rate,
        and one near 0 makes huge advantages (groups with a negative mean are left out, never turned around).
        When hard prompts are hard because their answer key is wrong: those get the largest weight.
    """
    statistics = group_statistics(outcome(rewards), group)
    positive = statistics.mean > 0
    mean = torch.where(positive, statistics.mean, torch.ones_like(statistics.mean))
    return on_every_token(torch.where(positive, statistics.deviation / mean, torch.zeros_like(mean)), mask)
