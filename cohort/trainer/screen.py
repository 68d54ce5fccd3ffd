"""Which rollouts train: those that could be scored. The others leave their group and are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cohort.errors import UserError
from cohort.types import Group


class Screen:
    """Drops unscorable rollouts; too many of them end the run with the reward's own traceback.

    Args:
        max_unscorable_rate: the largest share of a step's rollouts that may be unscorable.
    """

    def __init__(self, *, max_unscorable_rate: float = 0.1) -> None:
        self.max_unscorable_rate = max_unscorable_rate

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups without their unscorable rollouts; a group that is left empty goes.

        Raises:
            UserError: if more than the allowed share is unscorable, naming the commonest reason.
        """
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        reasons = [
            r.score.reason if r.score else "not scored" for r in rollouts if r.score is None or r.score.value is None
        ]
        if len(reasons) > self.max_unscorable_rate * len(rollouts):
            commonest = max(sorted(set(reasons)), key=reasons.count)
            raise UserError(
                f"{len(reasons)} of {len(rollouts)} rollouts could not be scored, more than "
                f"reward.max_unscorable_rate={self.max_unscorable_rate:g} allows; the commonest reason "
                f"({reasons.count(commonest)} times):\n{commonest}"
            )
        kept = [
            replace(g, rollouts=tuple(r for r in g.rollouts if r.score and r.score.value is not None)) for g in groups
        ]
        return [group for group in kept if group.rollouts]
