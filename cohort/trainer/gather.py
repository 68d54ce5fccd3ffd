"""The groups of a step: what was sampled, and which of it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cohort.metrics import Metrics
from cohort.types import Group


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What a step starts from.

    Attributes:
        groups: the groups that go on to learning.
        collected: every group that was sampled.
        drawn: prompts that were taken from the data.
        metrics: what to log about the choice.
        warnings: what a person should know about it.
    """

    groups: Sequence[Group]
    collected: Sequence[Group]
    drawn: int
    metrics: Metrics = field(default_factory=dict)
    warnings: Sequence[str] = ()


Draw = Callable[[int], list[Group]]
"""Samples and scores the next so many prompts of the data."""


class Filter(Protocol):
    """Chooses which groups train, and draws more in place of the others."""

    def __call__(self, draw: Draw, wanted: int, step: int) -> Gathered:
        """``wanted`` groups that train, in the order of their prompts.

        Raises:
            UserError: where there are not enough of them.
        """
        ...
