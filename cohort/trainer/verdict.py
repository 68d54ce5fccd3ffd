"""What a group of answers can teach: differing scores are a signal, equal ones have a cause."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from cohort.trainer.screen import trainable
from cohort.types import FinishReason, Group


class Verdict(StrEnum):
    """Each group is exactly one of these; ``training/groups_<verdict>`` counts them."""

    WITH_SIGNAL = "with_signal"
    ALL_RIGHT = "all_right"
    ALL_WRONG = "all_wrong"
    ALL_TRUNCATED = "all_truncated"
    ALL_UNSCORABLE = "all_unscorable"
    ALL_EQUAL = "all_equal"


def judge(group: Group, measured: Sequence[float] | None = None) -> Verdict:
    """What the answers that can train say together.

    Equal scores are all truncated where the token limit ended every answer, all right where every answer is (its
    ``acc``, or else its score, is 1 or more), all wrong where none is at all (0 or less), and else simply equal: partly
    right, or right and wrong answers that the reward does not tell apart. Where fewer than two of several answers can
    train, the group is unscorable.

    Args:
        group: the answers, scored.
        measured: what is compared instead of the scores, one value for each answer that can train.
    """
    answers = trainable(group).rollouts
    scores = [rollout.score for rollout in answers if rollout.score]
    values = [score.value for score in scores if score.value is not None] if measured is None else measured
    if len(values) < min(2, len(group.rollouts)) or not values:
        return Verdict.ALL_UNSCORABLE
    if max(values) > min(values):
        return Verdict.WITH_SIGNAL
    if all(rollout.finish_reason is FinishReason.LENGTH for rollout in answers):
        return Verdict.ALL_TRUNCATED
    right = [score.correctness or 0.0 for score in scores]
    if min(right) >= 1:
        return Verdict.ALL_RIGHT
    return Verdict.ALL_WRONG if max(right) <= 0 else Verdict.ALL_EQUAL
