"""``reward.*`` and ``custom_reward_function.*``: what an answer is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from cohort.config.schema.limits import Positive, Range, Share


@dataclass(frozen=True, kw_only=True)
class CustomRewardFunction:
    """One reward function from a file of yours."""

    path: str | None = None
    """Python file with the function; null takes reward.functions, or the built-in that data_source names."""
    name: str = "compute_score"
    """Name of the function in that file."""
    reward_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments for it."""


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """One part of a sum of rewards."""

    name: str
    """A built-in reward (gsm8k, math, format, arithmetic, ...), or the function's name in path."""
    path: str | None = None
    """Python file with the function; null means a built-in."""
    weight: float = 1.0
    """Its weight in the sum."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments for it."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """How rewards are run."""

    functions: tuple[RewardFunction, ...] = ()
    """Several rewards with weights, for example [{name: gsm8k}, {name: format, weight: 0.1}]."""
    num_workers: Annotated[int, Range(low=0, high=1024)] = 2
    """Processes that run plain functions; 0 runs them inline, so that a debugger stops in them."""
    timeout: Positive = 30.0
    """Seconds that one answer may take to grade; then the worker is replaced and the answer is unscorable."""
    max_unscorable_rate: Share = 0.1
    """Largest share of a step's answers that may be unscorable; above it the run stops with the reward's traceback."""
