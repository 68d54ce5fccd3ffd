"""Functions that a person registered verl's way, bound into the training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from cohort.algorithms.registry import Advantages
from cohort.config.schema import Config
from cohort.config.tree import nest, values
from cohort.metrics import Metrics
from cohort.models.objective import ScalarLoss
from cohort.trainer.advantage import Advantage
from cohort.trainer.evidence import Evidence, baseline_scores
from cohort.types import Group
from cohort.verl_api.calls import EstimatorCall, PolicyLossCall
from cohort.verl_api.registry import own_estimator, own_policy_loss
from cohort.verl_api.section import Section

__all__ = ["VerlAdvantage", "bind_verl_advantage", "bind_verl_loss", "own_estimator", "own_policy_loss"]


@dataclass(frozen=True, kw_only=True)
class VerlAdvantage(Advantage):
    """An estimator with verl's signature.

    Attributes:
        estimator: the person's function.
    """

    estimator: EstimatorCall

    def __call__(self, rewards: Tensor, evidence: Evidence) -> tuple[Advantages, Metrics]:
        """Advantages and returns  # (B, T); it logs nothing."""
        group = self.groups_of(evidence.groups, evidence.batch)
        return self.estimator(self._available(rewards, group, evidence), evidence.batch.mask), {}

    def _available(self, rewards: Tensor, group: Tensor, evidence: Evidence) -> dict[str, Any]:
        """What this run has, by verl's names."""
        batch, old = evidence.batch, evidence.old
        tensors = {
            "token_level_rewards": rewards,
            "token_level_scores": evidence.scores,
            "response_mask": batch.mask,
            "responses": batch.response_ids,
            "rollout_log_probs": batch.rollout_log_probs,
            "old_log_probs": old.log_probs if old else None,
            "sum_pi_squared": old.sum_pi_squared if old else None,
            "ref_log_prob": evidence.ref_log_probs,
            "values": evidence.values,
            "rollout_is_weights": evidence.weights,
            "reward_baselines": baseline_scores(evidence.groups) if self.reads_baseline else None,
        }
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        uids = np.array([f"prompt-{number}" for number in group.tolist()], dtype=object)
        asked = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights", "reward_baselines")
        return {
            "token_level_rewards": rewards,
            "index": uids,
            "non_tensor_batch": columns_of(evidence.groups) | {"uid": uids},
            "batch": tensors,
            **{name: tensors[name] for name in asked if name in tensors},
        }


def columns_of(groups: Sequence[Group]) -> dict[str, np.ndarray]:
    """Data columns and parts of the reward, one entry per rollout; None where a row has no such column."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rows = [
        {
            **rollout.prompt.columns,
            "data_source": rollout.prompt.data_source,
            **({} if rollout.score is None else rollout.score.parts),
        }
        for rollout in rollouts
    ]
    out: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        out[name] = np.empty(len(rows), dtype=object)
        for i, row in enumerate(rows):
            out[name][i] = row.get(name)
    return out


def bind_verl_advantage(config: Config, function: Callable[..., Any]) -> VerlAdvantage:
    """The estimator with its section of the config."""
    algorithm = config.algorithm
    call = EstimatorCall(
        name=algorithm.adv_estimator,
        function=function,
        config=Section({**_section(config, "algorithm"), **algorithm.adv_kwargs}, "algorithm"),
        extra=algorithm.adv_kwargs,
    )
    return VerlAdvantage(
        function=function, estimator=call, reads=call.needs(), group_by=algorithm.group_by, group_baseline=False
    )


def bind_verl_loss(config: Config, function: Callable[..., Any]) -> ScalarLoss:
    """The loss with its section of the config, and whether it may be cut into micro-batches."""
    actor = config.actor_rollout_ref.actor
    section = _section(config, "actor_rollout_ref", "actor")
    section["policy_loss"] = {**section["policy_loss"], **actor.policy_loss.kwargs}
    mode = actor.loss_agg_mode or "token-mean"
    call = PolicyLossCall(
        name=actor.policy_loss.loss_mode,
        function=function,
        config=Section({**section, "loss_agg_mode": mode, **actor.policy_loss.kwargs}, "actor_rollout_ref.actor"),
        mode=mode,
        horizon=actor.loss_scale_factor,
    )
    return ScalarLoss(function=call, whole=not call.adds_up())


def _section(config: Config, *path: str) -> dict[str, Any]:
    tree: Any = nest(values(config))
    for part in path:
        tree = tree[part]
    return dict(tree)
