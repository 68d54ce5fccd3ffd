"""What is known of a step's rollouts before they train: the input of rewards, corrections and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cohort.metrics import Metrics
from cohort.protocols import TokenStats
from cohort.types import Batch, Group

OLD_STATISTICS = frozenset({"old_log_probs", "entropy", "sum_pi_squared", "hidden"})
"""Needs that a pass of the actor over the whole batch answers."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The rollouts of a step and every statistic of them that the run asked for.

    Attributes:
        groups: the rollouts that can train, with scores.
        batch: the same rows as tensors.
        step: training steps finished so far.
        scores: each score on the last token that the model wrote                    # (B, T)
        old: the actor's statistics before the update; None where nobody needs them   # (B, T) each
        ref_log_probs: log pi_ref, None without a reference                           # (B, T)
        values: V(s_t), None without a critic                                         # (B, T)
        keep: 1.0 where a token of the model trains, None where all do                # (B, T)
        weights: importance weights against the sampler, None where there are none    # (B, T)
    """

    groups: Sequence[Group]
    batch: Batch
    step: int
    scores: Tensor
    old: TokenStats | None = None
    ref_log_probs: Tensor | None = None
    values: Tensor | None = None
    keep: Tensor | None = None
    weights: Tensor | None = None

    @property
    def old_log_probs(self) -> Tensor:
        """Log-probs of the old policy  # (B, T).

        Raises:
            ValueError: if no pass computed them, though somebody reads them.
        """
        return self._statistic("log_probs")

    @property
    def entropy(self) -> Tensor:
        """Entropy of pi_old  # (B, T)."""
        return self._statistic("entropy")

    @property
    def hidden(self) -> Tensor:
        """Mean last hidden state of each answer under pi_old  # (B, D)."""
        return self._statistic("hidden")

    def _statistic(self, name: str) -> Tensor:
        value = None if self.old is None else self.old.__dict__[name]
        if value is None:
            raise ValueError(f"{name} of the old policy was not computed: whoever reads it must list it in its needs")
        return value


class Reader(Protocol):
    """Whoever reads evidence says first what it needs: a subset of ``OLD_STATISTICS``."""

    needs: frozenset[str]


class Stage(Reader, Protocol):
    """One step of reward shaping."""

    def __call__(self, rewards: Tensor, evidence: Evidence) -> tuple[Tensor, Metrics]:
        """The new rewards  # (B, T), and what to log."""
        ...


class Correction(Reader, Protocol):
    """What the distance between sampler and trainer does to the tokens.

    Attributes:
        bypass: the sampler's log-probs stand in for the old ones.
    """

    bypass: bool

    def __call__(self, evidence: Evidence) -> tuple[Evidence, Metrics]:
        """The evidence with ``keep`` and ``weights``, and what to log."""
        ...


def score_values(groups: Sequence[Group]) -> Tensor:
    """The score of every rollout  # (B,)."""
    values = [rollout.score.value for group in groups for rollout in group.rollouts if rollout.score]
    return torch.tensor([float(v) for v in values if v is not None])


def baseline_scores(groups: Sequence[Group]) -> Tensor:
    """The score of the greedy answer to each rollout's prompt  # (B,).

    Raises:
        ValueError: if a group has no greedy answer, or an unscored one: such groups leave before.
    """
    values = []
    for group in groups:
        score = group.baseline.score if group.baseline else None
        if score is None or score.value is None:
            raise ValueError(f"the group of row {group.prompt.row} has no scored greedy answer to compare with")
        values += [float(score.value)] * len(group.rollouts)
    return torch.tensor(values)


def reward_parts(groups: Sequence[Group], names: Sequence[str]) -> Tensor:
    """Named parts of every rollout's reward; NaN where a part does not apply  # (B, K).

    Raises:
        ValueError: if no rollout has one of them, naming those that there are.
    """
    scores = [rollout.score for group in groups for rollout in group.rollouts if rollout.score]
    known = sorted({name for score in scores for name in score.parts})
    for name in names:
        if name not in known:
            raise ValueError(f"the reward has no part {name!r}; it has: {', '.join(known) or 'none'}")
    rows = [[_number(score.parts.get(name)) for name in names] for score in scores]
    return torch.tensor(rows)


def _number(value: float | str | None) -> float:
    return float("nan") if value is None or isinstance(value, str) else float(value)
