"""CHORD: which demonstrations join an update of the actor, and how much they weigh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cohort.data.demonstrations import DemonstrationLoader
from cohort.metrics import Mean, Metrics
from cohort.types import Demonstrations


@dataclass(frozen=True, kw_only=True)
class Chord:
    """Called before each update of the actor; what it returns depends on nothing but the update's number.

    That number s counts the actor's optimiser steps since the run began, as planned: ``updates`` per training step,
    so a step that lost groups still takes up its whole share of numbers. Update s reads the ``rows`` demonstrations
    from position ``s x rows`` on; where mu is 0 they are passed over unread. So there is nothing to save, and a
    resumed run reads what it would have read.

    Paper: Zhang et al. 2025, On-Policy RL Meets Off-Policy Experts (arXiv 2508.11408).

    Attributes:
        source: the demonstrations in order.
        mu: the demonstrations' weight in update s, 0 to 1.
        rows: demonstrations per update.
        updates: updates of the actor per training step.
        phi: weigh each token by p (1 - p).
        start: training steps at the start in which the actor is not updated (critic warm-up).
    """

    source: DemonstrationLoader
    mu: Callable[[int], float]
    rows: int
    updates: int
    phi: bool = False
    start: int = 0

    def __call__(self, step: int, update: int) -> Demonstrations | None:
        """The demonstrations of an update, None where they weigh nothing.

        Args:
            step: training steps finished so far.
            update: updates of this training step so far.
        """
        number = self._number(step, update)
        weight = self.mu(number)
        if weight == 0:
            return None
        return Demonstrations(batch=self.source.batch(number * self.rows, self.rows), weight=weight, phi=self.phi)

    def metrics(self, step: int, update: int) -> Metrics:
        """What to log about the schedule."""
        return {"actor/chord_mu": Mean(self.mu(self._number(step, update)))}

    def _number(self, step: int, update: int) -> int:
        return (step - self.start) * self.updates + update
