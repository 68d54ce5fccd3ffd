"""Function rewards and a model that grades, as one sum."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from cohort.errors import UserError
from cohort.rewards.base import Graded, user_traceback
from cohort.rewards.conversation import answer_text
from cohort.rewards.runner import RewardRunner, combine
from cohort.types import Group, Prompt, Rollout, Score


class Grader(Protocol):
    """A model that grades.

    Attributes:
        together: grade all answers of a step at once, when the last one is finished; False grades each one as soon as
            it is finished.
    """

    together: bool

    async def grade(self, rollouts: Sequence[Rollout]) -> list[Graded]:
        """One outcome per rollout, in order; ``rollout.text`` is the answer as rewards see it."""
        ...


class MixedReward:
    """Weight x model's score, plus the function rewards. ``protocols.Reward`` and ``protocols.GroupReward``.

    Each summand is a part under its name, as with several functions; entries of the model are ``NAME/entry``. If one of
    them cannot grade an answer, it is unscorable: part of a sum is another objective.

    A grader that works on all answers together leaves its summand out until ``score_groups``. It is not asked about
    answers that are unscorable by then.

    Args:
        grader: the model.
        functions: the function rewards; None where the model alone grades.
        weight: factor of the model's score.
        name: the model's name in the logs.
        prefill: what the chat template writes into the answer; see ``RewardRunner``.
        live: objects that are made later than the reward (``sampler``), shared with ``functions``.
    """

    def __init__(
        self,
        grader: Grader,
        *,
        functions: RewardRunner | None = None,
        weight: float = 1.0,
        name: str = "reward_model",
        prefill: str = "",
        live: dict[str, object] | None = None,
    ) -> None:
        self.grader = grader
        self.functions = functions
        self.weight = weight
        self.name = name
        self.prefill = prefill
        self.live = functions.live if functions else ({} if live is None else live)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Compares what the functions ask for with what the data has; see ``RewardRunner.check``."""
        if self.functions:
            self.functions.check(prompts)

    async def score(self, rollout: Rollout) -> Score:
        """The functions' sum, with the model's summand if it grades answers one by one."""
        if self.grader.together:
            return await self._by_functions(rollout)
        score, (graded, seconds) = await asyncio.gather(self._by_functions(rollout), self._ask([rollout]))
        return self._add(score, graded[0], max(seconds, score.seconds))

    async def score_groups(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the model's summand in every score, graded in the order (prompt, sample)."""
        if not self.grader.together:
            return list(groups)
        asked = [r for group in groups for r in _rollouts(group) if r.score is not None and r.score.value is not None]
        graded, seconds = await self._ask(asked)
        each = seconds / max(len(asked), 1)
        scores = {
            id(rollout): self._add(rollout.score, outcome, rollout.score.seconds + each)
            for rollout, outcome in zip(asked, graded, strict=True)
            if rollout.score is not None
        }
        return [_with_scores(group, scores) for group in groups]

    def close(self) -> None:
        """Ends the functions' processes. May be called twice."""
        if self.functions:
            self.functions.close()

    async def _by_functions(self, rollout: Rollout) -> Score:
        if self.functions is None:
            return Score(value=0.0)
        outcomes, seconds = await self.functions.outcomes(rollout)
        return combine(self.functions.functions, outcomes, seconds, named=True)

    async def _ask(self, rollouts: Sequence[Rollout]) -> tuple[list[Graded], float]:
        """The model's outcomes and how long they took. What it raises about an answer is the reason for no score."""
        started = time.perf_counter()
        seen = [replace(rollout, text=answer_text(rollout, self.prefill)) for rollout in rollouts]
        if self.grader.together:
            graded = await self.grader.grade(seen)
        else:
            try:
                graded = await self.grader.grade(seen)
            except UserError:
                raise
            except Exception as error:
                graded = [Graded(None, reason=user_traceback(error))] * len(seen)
        return graded, time.perf_counter() - started

    def _add(self, score: Score, graded: Graded, seconds: float) -> Score:
        parts = {**score.parts, **{f"{self.name}/{entry}": part for entry, part in graded.parts.items()}}
        if graded.value is None:
            reason = "\n".join(filter(None, [score.reason, f"{self.name}: {graded.reason}"]))
            return Score(value=None, parts=parts, reason=reason, seconds=seconds)
        parts[self.name] = graded.value
        value = None if score.value is None else score.value + self.weight * graded.value
        return replace(score, value=value, parts=parts, seconds=seconds)


def _rollouts(group: Group) -> list[Rollout]:
    """Every answer of a group that is graded."""
    return [*group.rollouts, *([group.baseline] if group.baseline else [])]


def _with_scores(group: Group, scores: Mapping[int, Score]) -> Group:
    def scored(rollout: Rollout) -> Rollout:
        return replace(rollout, score=scores.get(id(rollout), rollout.score))

    baseline = scored(group.baseline) if group.baseline else None
    return replace(group, rollouts=tuple(scored(rollout) for rollout in group.rollouts), baseline=baseline)
