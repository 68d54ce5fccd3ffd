"""verl's advantage functions, over ``cohort.algorithms``: its names, argument order and numbers.

All take ``token_level_rewards`` and ``response_mask`` (B, T) and mostly ``index`` (B,), the name of each row's prompt,
and return ``(advantages, returns)``, (B, T) each, without gradient.

Different from the estimators that ``algorithm.adv_estimator`` names: a group of one has no baseline here, so its
advantage is its raw score (0 in ``rloo_vectorized``). Different from verl: groups of equal scores are exactly 0, and
what stands outside the mask is 0 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.algorithms import masking
from cohort.algorithms.gae import gae
from cohort.algorithms.group import grpo, opo, rloo
from cohort.algorithms.grouping import group_statistics, on_every_token, outcome
from cohort.algorithms.pass_at_k import grpo_passk
from cohort.algorithms.reinforce import reinforce_plus_plus, remax
from cohort.algorithms.signatures import Advantages
from cohort.algorithms.token_baseline import optimal_token_baseline, tir_optimal_token_baseline
from cohort.verl_api.registry import AdvantageEstimator, register_adv_est
from cohort.verl_api.section import read

Index = np.ndarray | Tensor | Sequence[object]


@register_adv_est(AdvantageEstimator.GAE)
def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lam: float
) -> Advantages:
    """Generalized advantage estimation, whitened over the mask. verl leaves numbers outside of it; here they are 0."""
    mask = _mask(response_mask, token_level_rewards)
    return gae(token_level_rewards, mask, _no_group(mask), values, gamma=gamma, lam=lam)


@register_adv_est(AdvantageEstimator.GRPO)
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """Score less the mean of the group, over its deviation. A group of one: its score over ``1 + epsilon``."""
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    ours = grpo(token_level_rewards, mask, group, scale=_scale(norm_adv_by_std_in_grpo), epsilon=epsilon)
    return _alone_raw(ours, token_level_rewards, mask, group, 1 / (1 + epsilon) if norm_adv_by_std_in_grpo else 1.0)


@register_adv_est(AdvantageEstimator.GRPO_VECTORIZED)
def compute_grpo_vectorized_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """``compute_grpo_outcome_advantage`` by another name."""
    return compute_grpo_outcome_advantage(token_level_rewards, response_mask, index, epsilon, norm_adv_by_std_in_grpo)


@register_adv_est(AdvantageEstimator.GDPO)
def compute_gdpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    batch: Any = None,
    **kwargs: Any,
) -> Advantages:
    """Each reward of ``config.gdpo_reward_keys`` through grpo, their weighted sum, whitened over the tokens.

    Raises:
        ValueError: without reward keys, or without one of them in ``non_tensor_batch``.
    """
    keys = list(read(config, "gdpo_reward_keys", []))
    weights = list(read(config, "gdpo_reward_weights", None) or [1.0] * len(keys))
    missing = [key for key in keys if key not in (non_tensor_batch or {})]
    if not keys or missing:
        what = f"non_tensor_batch has no {', '.join(missing)}" if missing else "config.gdpo_reward_keys is empty"
        raise ValueError(f"gdpo: {what}; name the parts that the reward function returns")
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    total = torch.zeros_like(mask[:, 0])
    for key, weight in zip(keys, weights, strict=True):
        scores = torch.as_tensor(np.asarray((non_tensor_batch or {})[key], dtype=np.float64)).to(mask)
        statistics = group_statistics(scores, group)
        divisor = statistics.std + epsilon if norm_adv_by_std_in_grpo else torch.ones_like(scores)
        alone = scores / (1 + epsilon) if norm_adv_by_std_in_grpo else scores
        total = total + weight * torch.where(statistics.size > 1, statistics.deviation / divisor, alone)
    return _whitened(total, mask)


@register_adv_est(AdvantageEstimator.GRPO_PASSK)
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """The best answer of a group by its lead over the second best, the others 0.

    ``config.norm_adv_by_std_in_grpo`` beats the argument, as in verl.

    Raises:
        ValueError: for a group of one.
    """
    group = group_of(index)
    if bool((torch.unique(group, return_counts=True)[1] < 2).any()):
        raise ValueError("pass@k compares the two best answers to a prompt: every group needs at least 2")
    scale = _scale(read(config, "norm_adv_by_std_in_grpo", norm_adv_by_std_in_grpo))
    mask = _mask(response_mask, token_level_rewards)
    return grpo_passk(token_level_rewards, mask, group, scale=scale, epsilon=epsilon)


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS_BASELINE)
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """Score less the mean of the group, whitened over all tokens. Groups of one bring their score into that."""
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    scores = outcome(token_level_rewards)
    statistics = group_statistics(scores, group)
    return _whitened(torch.where(statistics.size > 1, statistics.deviation, scores), mask)


@register_adv_est(AdvantageEstimator.RLOO)
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """Score less the mean of the other answers; the score itself in a group of one."""
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    return _alone_raw(rloo(token_level_rewards, mask, group), token_level_rewards, mask, group)


@register_adv_est(AdvantageEstimator.RLOO_VECTORIZED)
def compute_rloo_vectorized_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """Score less the mean of the other answers; 0 in a group of one, unlike ``compute_rloo_outcome_advantage``."""
    return rloo(token_level_rewards, _mask(response_mask, token_level_rewards), group_of(index))


@register_adv_est(AdvantageEstimator.OPO)
def compute_opo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """Score less the mean of the group, weighted by length; the score itself in a group of one."""
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    return _alone_raw(opo(token_level_rewards, mask, group), token_level_rewards, mask, group)


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS)
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **kwargs: Any
) -> Advantages:
    """Discounted returns (``config.gamma``), whitened. Rewards cross a tool's tokens; in verl 0.5 they did not."""
    mask = _mask(response_mask, token_level_rewards)
    return reinforce_plus_plus(token_level_rewards, mask, _no_group(mask), gamma=read(config, "gamma", 1.0))


@register_adv_est(AdvantageEstimator.REMAX)
def compute_remax_outcome_advantage(
    token_level_rewards: Tensor, reward_baselines: Tensor, response_mask: Tensor, config: Any = None, **kwargs: Any
) -> Advantages:
    """Returns less the score of the greedy answer to the same prompt."""
    mask = _mask(response_mask, token_level_rewards)
    return remax(token_level_rewards, mask, _no_group(mask), reward_baselines.to(mask))


@register_adv_est(AdvantageEstimator.GPG)
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    f_norm: float = 1.0,
    alpha: float = 1.0,
    config: Any = None,
    **kwargs: Any,
) -> Advantages:
    """Score less the mean of the group, times rows over rows with a score. ``alpha`` is overwritten, as in verl."""
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    scores = outcome(token_level_rewards)
    factor = len(scores) / (scores != 0).sum().clamp(min=1) / f_norm
    statistics = group_statistics(scores, group)
    return on_every_token(factor * torch.where(statistics.size > 1, statistics.deviation, scores), mask)


@register_adv_est(AdvantageEstimator.OPTIMAL_TOKEN_BASELINE)
def compute_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    **kwargs: Any,
) -> Advantages:
    """Returns less the baseline of least variance at each position; the return itself in a group of one."""
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    evidence = (old_log_probs, sum_pi_squared, rollout_is_weights)
    ours = optimal_token_baseline(token_level_rewards, mask, group, *evidence, handle_zero_tail=handle_zero_tail)
    return _alone_return(ours, group)


@register_adv_est(AdvantageEstimator.TIR_OPTIMAL_TOKEN_BASELINE)
def compute_multi_turn_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    **kwargs: Any,
) -> Advantages:
    """The same where position t is the t-th token that the model wrote."""
    mask, group = _mask(response_mask, token_level_rewards), group_of(index)
    evidence = (old_log_probs, sum_pi_squared, rollout_is_weights)
    ours = tir_optimal_token_baseline(token_level_rewards, mask, group, *evidence, handle_zero_tail=handle_zero_tail)
    return _alone_return(ours, group)


def group_of(index: Index) -> Tensor:
    """Names of prompts as group numbers  # (B,)."""
    names = index.cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)
    return torch.from_numpy(np.unique(names.astype(str), return_inverse=True)[1].reshape(-1).astype(np.int64))


def _mask(response_mask: Tensor, like: Tensor) -> Tensor:
    return response_mask.to(like.dtype)


def _no_group(mask: Tensor) -> Tensor:
    return torch.zeros(len(mask), dtype=torch.int64)


def _scale(divide: bool) -> str:
    return "group" if divide else "none"


def _alone(group: Tensor) -> Tensor:
    numbers, size = torch.unique(group, return_inverse=True, return_counts=True)[1:]
    return (size[numbers] == 1)[:, None]


def _alone_raw(ours: Advantages, rewards: Tensor, mask: Tensor, group: Tensor, factor: float = 1.0) -> Advantages:
    """``ours`` with the raw score in groups of one."""
    raw = on_every_token(outcome(rewards) * factor, mask).advantages
    advantages = torch.where(_alone(group), raw, ours.advantages)
    return Advantages(advantages=advantages, returns=advantages)


def _alone_return(ours: Advantages, group: Tensor) -> Advantages:
    """``ours`` with the plain return in groups of one."""
    return Advantages(advantages=torch.where(_alone(group), ours.returns, ours.advantages), returns=ours.returns)


def _whitened(values: Tensor, mask: Tensor) -> Advantages:
    advantages = masking.zero_outside(masking.whiten(on_every_token(values, mask).advantages, mask), mask)
    return Advantages(advantages=advantages, returns=advantages)
