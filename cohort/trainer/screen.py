"""Which rollouts train: those that were scored and have a token to credit. The others leave their group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cohort.errors import UserError
from cohort.rewards.unscorable import check_unscorable
from cohort.types import Author, Group, Rollout


class Screen:
    """Drops rollouts that cannot train; too many unscorable ones end the run with the reward's own traceback.

    Args:
        max_unscorable_rate: the largest share of a step's rollouts that may be unscorable.
    """

    def __init__(self, *, max_unscorable_rate: float = 0.1) -> None:
        self.max_unscorable_rate = max_unscorable_rate

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups without the rollouts that cannot train; a group that is left empty goes.

        Raises:
            UserError: if more than the allowed share is unscorable, or no rollout at all can train.
        """
        self.check(groups)
        left = [group for group in map(trainable, groups) if group.rollouts and comparable(group)]
        if not left:
            raise UserError("no answer of this step has both a score and a token: nothing can be trained on")
        return left

    def check(self, groups: Sequence[Group]) -> None:
        """Ends a run whose reward fails too often.

        Raises:
            UserError: if more than the allowed share is unscorable.
        """
        check_unscorable([r.score for group in groups for r in group.rollouts], self.max_unscorable_rate)


def trainable(group: Group) -> Group:
    """The group without the rollouts that cannot train."""
    return replace(group, rollouts=tuple(rollout for rollout in group.rollouts if trains(rollout)))


def comparable(group: Group) -> bool:
    """Whether the greedy answer was scored, where there is one: an estimator is going to compare with it."""
    return group.baseline is None or (group.baseline.score is not None and group.baseline.score.value is not None)


def trains(rollout: Rollout) -> bool:
    """Whether a rollout has a score, and a token of the model that it can be credited to."""
    scored = rollout.score is not None and rollout.score.value is not None
    return scored and Author.MODEL in rollout.authors
