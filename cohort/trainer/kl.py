"""KL in the reward: a stage of reward shaping whose coefficient is fixed, or steered towards a target."""

from __future__ import annotations

from torch import Tensor

from cohort.algorithms.schedules import adaptive_kl
from cohort.algorithms.shaping import kl_in_reward
from cohort.metrics import Last, Metrics
from cohort.trainer.evidence import Evidence


class KLController:
    """Holds beta of ``rewards = scores - beta * KL(policy || reference)``.

    Paper: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences (1909.08593), section 2.2.

    Args:
        coef: beta; the first one where a target steers it.
        kind: the KL estimator, a name of ``algorithms.kl.KL_KINDS``.
        target: the KL per token to hold; None keeps beta fixed.
        horizon: rollouts over which beta may change by its proportional error.
    """

    needs = frozenset({"old_log_probs"})

    def __init__(self, *, coef: float, kind: str, target: float | None = None, horizon: float = 10_000) -> None:
        self.coef = coef
        self.kind = kind
        self.target = target
        self.horizon = horizon

    def __call__(self, rewards: Tensor, evidence: Evidence) -> tuple[Tensor, Metrics]:
        """Rewards less the penalty  # (B, T); moves beta for the next step."""
        if evidence.ref_log_probs is None:
            raise ValueError("the KL in the reward needs a reference")
        old, ref, mask = evidence.old_log_probs, evidence.ref_log_probs, evidence.batch.mask
        rewards, kl = kl_in_reward(rewards, old, ref, mask, self.coef, self.kind)
        return rewards, self.observe(kl)

    def observe(self, kl: Tensor) -> Metrics:
        """Takes the KL of each rollout  # (B,); moves beta for the next step. Returns what held in this one."""
        current, rows = float(kl.mean()), len(kl)
        metrics: Metrics = {
            "actor/reward_kl_penalty": Last(current),
            "actor/reward_kl_penalty_coeff": Last(self.coef),
        }
        if self.target is not None:
            self.coef = adaptive_kl(self.coef, current, self.target, self.horizon, rows)
        return metrics
