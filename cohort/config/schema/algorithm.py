"""``algorithm.*``: advantages, and the KL in the reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cohort.config.schema.actor import KLKind
from cohort.config.schema.correction import RolloutCorrection
from cohort.config.schema.demonstrations import Chord
from cohort.config.schema.limits import NonNegative, Positive, Share
from cohort.config.schema.samples import FilterGroups
from cohort.config.schema.shaping import RefRewardBlend, ReprAlign


@dataclass(frozen=True, kw_only=True)
class KLControl:
    """The coefficient of the KL in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """fixed stays at kl_coef; adaptive moves it until the KL is near target_kl."""
    kl_coef: NonNegative = 0.001
    """Weight of the KL in the reward, at the start."""
    target_kl: Positive = 0.1
    """The KL that adaptive aims at."""
    horizon: Positive = 10000.0
    """Answers over which adaptive corrects."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """From rewards to advantages."""

    adv_estimator: Literal["grpo", "gae"] = "grpo"
    """grpo: an answer's score minus the mean of its group (DeepSeekMath, arXiv 2402.03300). gae: PPO's, with a critic
    (arXiv 1506.02438)."""
    gamma: Share = 1.0
    """Discount of later rewards per token, in gae; 1 does not discount."""
    lam: Share = 1.0
    """GAE's lambda: 1 compares the value with everything that followed, 0 with the next value alone."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation; false is Dr. GRPO (arXiv 2503.20783)."""
    use_kl_in_reward: bool = False
    """Subtract the KL to the reference model from the reward of each token."""
    kl_penalty: KLKind = "kl"
    """Estimator of that KL."""
    kl_ctrl: KLControl = field(default_factory=KLControl)
    """Coefficient of that KL."""
    filter_groups: FilterGroups = field(default_factory=FilterGroups)
    """Dynamic sampling."""
    overlong_filter: bool = False
    """Answers that the token limit cuts do not train; they stay in their group's statistics."""
    group_by: str | None = None
    """Compare all answers of a step whose prompts agree in this data column; null compares those to one prompt."""
    rollout_correction: RolloutCorrection = field(default_factory=RolloutCorrection)
    """What to do where the sampler's log-probs are not the trainer's."""
    ref_reward_blend: RefRewardBlend = field(default_factory=RefRewardBlend)
    """Rewards mixed with how plausible the reference finds each token."""
    repr_align: ReprAlign = field(default_factory=ReprAlign)
    """A bonus for answers whose hidden states are near to the gold answer's."""
    chord: Chord = field(default_factory=Chord)
    """Demonstrations beside the rollouts."""
