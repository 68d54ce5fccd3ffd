"""REINFORCE with little beside it: a batch mean, a group mean, or one greedy answer as the baseline."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms import masking
from cohort.algorithms.grouping import divide_by_spread, group_statistics, has_siblings, on_every_token, outcome
from cohort.algorithms.masking import Number, masked_var, zero_outside
from cohort.algorithms.signatures import Advantages


def discounted_returns(
    rewards: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], gamma: Number
) -> Float[Tensor, "B T"]:
    """``G_t = r_t + gamma * G_next``, where next is the next token that the model wrote; no gradient.

    Columns outside the mask are carried over without discount, and a reward on them is dropped.

    Shapes: rewards and mask (B, T) -> (B, T), 0 outside the mask.
    """
    on = mask > 0
    r = zero_outside(rewards, mask).detach()
    returns = torch.zeros_like(r)
    running = torch.zeros_like(r[:, 0])
    for t in reversed(range(r.shape[1])):
        running = torch.where(on[:, t], r[:, t] + gamma * running, running)
        returns[:, t] = running
    return zero_outside(returns, mask)


def reinforce_plus_plus(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    *,
    gamma: Number = 1.0,
    whiten: bool = True,
) -> Advantages:
    """REINFORCE++: each token's return, normalised over all tokens of the batch. No group, no critic.

        G_t = r_t + gamma * G_next
        A_t = (G_t - mean(G over the mask)) / sqrt(var(G over the mask) + 1e-8)

    "next" is the next token that the model wrote, so rewards cross tool output undiscounted (verl 0.5 lost them
    there). A reward outside the mask is dropped: scores have to lie on tokens of the model, where ``shaping.place``
    puts them. ms-swift's estimator of this name centres on the group first: that is ``reinforce_plus_plus_baseline``
    with ``scale="batch"``.

    Args:
        rewards: per-token rewards; the paper has the KL to the reference in them.
        mask: 1 where the model wrote the token.
        group: not used; one answer per prompt is enough.
        gamma: discount per token of the model.
        whiten: False gives the plain returns, REINFORCE without baseline.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each, 0 outside the mask.
    Paper: Hu et al. 2025, REINFORCE++ (2501.03262), its advantage with normalisation over the global batch.
    Wrong choice when: prompts differ in difficulty: answers to easy ones are then reinforced for being easy (use
        ``reinforce_plus_plus_baseline``). When batches are small: mean and deviation are over the batch, and each row
        moves the advantage of all others. Long answers weigh more in both.
    """
    returns = discounted_returns(rewards, mask, gamma)
    advantages = zero_outside(masking.whiten(returns, mask), mask) if whiten else returns
    return Advantages(advantages=advantages, returns=returns)


def reinforce_plus_plus_baseline(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    *,
    scale: str = "tokens",
    epsilon: Number = 1e-6,
) -> Advantages:
    """REINFORCE++ with the group's mean as the baseline and the batch for the scale.

        a_i = s_i - mean(s_group)
        A_t = (a_t - mean(a over the mask)) / sqrt(var(a over the mask) + 1e-8)      (scale="tokens")
        A_i = a_i / (std(a) + epsilon)                                              (the other scales)

    Groups of one have advantage 0 and are kept out of mean and variance (verl takes their raw score for a_i). With
    ``tokens`` the mean over tokens is not 0 where length goes with the score; it moves all rows, also those of groups
    without any spread.

    Args:
        rewards: per-token rewards; their sum is the score s_i.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        scale: ``tokens`` is the paper and verl: every token counts once. ``batch`` is ms-swift's
            ``reinforce_plus_plus``: every answer counts once and nothing is shifted. ``group`` and ``none`` are
            ms-swift's other choices and equal those of ``grpo``.
        epsilon: added to the standard deviation, except for ``tokens``; ms-swift has 1e-4.

    Shapes: rewards and mask (B, T), group (B,) -> (B, T) each, 0 outside the mask.
    Paper: Hu et al. 2025, REINFORCE++ (2501.03262), its variant with the group mean as baseline.
    Wrong choice when: nearly all groups are all right or all wrong: the few that are not are scaled up to fill the
        batch's deviation. When lengths differ widely, since ``tokens`` lets long answers set the scale.

    Raises:
        ValueError: for an unknown scale.
    """
    scores = outcome(rewards)
    centred = group_statistics(scores, group).deviation
    siblings = has_siblings(scores, group)
    if scale == "tokens":
        compared = mask * siblings[:, None]
        advantages = zero_outside(masking.whiten(centred[:, None] * compared, compared), compared)
        return Advantages(advantages=advantages, returns=advantages)
    if scale == "batch":
        return on_every_token(centred / (masked_var(centred, siblings).sqrt() + epsilon), mask)
    if scale not in ("group", "none"):
        raise ValueError(f"scale {scale!r} is not one of tokens, group, batch, none")
    return on_every_token(divide_by_spread(centred, centred, group, scale, epsilon), mask)


def remax(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    baseline: Float[Tensor, "B"],
) -> Advantages:
    """ReMax: the return less the score of the greedy answer to the same prompt.

        A_t = sum_{k >= t} r_k - baseline

    The greedy answer depends on the prompt alone, so the gradient stays unbiased with a single sample per prompt.
    A reward outside the mask is dropped: scores have to lie on tokens of the model, where ``shaping.place`` puts
    them.

    Args:
        rewards: per-token rewards.
        mask: 1 where the model wrote the token.
        group: not used; one answer per prompt is enough.
        baseline: score of the greedy answer to each row's prompt.

    Shapes: rewards and mask (B, T), group and baseline (B,) -> (B, T) each, 0 outside the mask.
    Paper: Li et al. 2023, ReMax (2310.10505), algorithm 1.
    Wrong choice when: several samples per prompt are drawn anyway: their mean is as good a baseline and costs no
        greedy answer. When greedy answers are much better or worse than samples, at high temperature: advantages then
        share one sign. A KL in the reward is not in the baseline.
    """
    returns = discounted_returns(rewards, mask, 1.0)
    return Advantages(advantages=zero_outside(returns - baseline.detach()[:, None], mask), returns=returns)
