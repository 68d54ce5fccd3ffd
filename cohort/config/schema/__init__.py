"""The whole config as one tree of frozen dataclasses; attribute paths are the dotted keys.

Each field carries its type, its default and, in the string under it, its meaning. That string is what
``docs/config.md`` and error messages show.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cohort.config.schema.actor import Actor
from cohort.config.schema.algorithm import Algorithm
from cohort.config.schema.critic import Critic
from cohort.config.schema.data import Data
from cohort.config.schema.model import Model
from cohort.config.schema.reward import CustomRewardFunction, Reward, RewardModel
from cohort.config.schema.rollout import Ref, Rollouts
from cohort.config.schema.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class ActorRolloutRef:
    """The policy: its model, its update, its sampler and its frozen reference."""

    model: Model
    """Which model."""
    actor: Actor = field(default_factory=Actor)
    """How it is updated."""
    rollout: Rollouts = field(default_factory=Rollouts)
    """How it is sampled."""
    ref: Ref = field(default_factory=Ref)
    """How its frozen reference is run."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a run is told. Made by ``cohort.config.build``; do not read it below ``assemble/``."""

    data: Data = field(default_factory=Data)
    """Which prompts."""
    actor_rollout_ref: ActorRolloutRef
    """The policy."""
    critic: Critic = field(default_factory=Critic)
    """The value model, where the advantage needs one."""
    algorithm: Algorithm = field(default_factory=Algorithm)
    """From rewards to advantages."""
    reward: Reward = field(default_factory=Reward)
    """What an answer is worth."""
    custom_reward_function: CustomRewardFunction = field(default_factory=CustomRewardFunction)
    """One reward function from a file of yours."""
    reward_model: RewardModel = field(default_factory=RewardModel)
    """A model that grades, alone or beside reward functions."""
    trainer: Trainer = field(default_factory=Trainer)
    """The run."""


__all__ = [
    "Actor",
    "ActorRolloutRef",
    "Algorithm",
    "Config",
    "Critic",
    "CustomRewardFunction",
    "Data",
    "Model",
    "Ref",
    "Reward",
    "RewardModel",
    "Rollouts",
    "Trainer",
]
