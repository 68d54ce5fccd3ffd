"""When too many answers cannot be graded, the run stops and shows the reward's own traceback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cohort.errors import UserError
from cohort.types import Score


class UnscorableRate(UserError):
    """More answers than allowed could not be graded. The commonest reason follows the first line."""


def check_unscorable(scores: Sequence[Score | None], max_rate: float) -> None:
    """Stops a run whose reward fails too often. An answer without a score is never taken for a 0.

    Args:
        scores: one step's scores; None stands for an answer that was not graded at all.
        max_rate: the largest share that may be unscorable, 0 to 1.

    Raises:
        UnscorableRate: with the counts, and the commonest reason in full.
    """
    reasons = [score.reason if score else "not graded" for score in scores if score is None or score.value is None]
    if len(reasons) <= max_rate * len(scores):
        return
    counts = Counter(reasons)
    commonest, times = counts.most_common(1)[0]
    others = f" ({len(counts)} different reasons, this one {times} times)" if len(counts) > 1 else ""
    raise UnscorableRate(
        f"the reward could not grade {len(reasons)} of {len(scores)} answers; at most a share of {max_rate:g} may "
        f"fail{others}:\n{commonest}"
    )
