"""Dynamic sampling: groups of equal scores teach nothing, so more prompts are drawn in their place.

Paper: Yu et al. 2025, DAPO (arXiv 2503.14476), section 3.2. Wrong choice when: most groups carry no signal (the price
is the sampling of all that are thrown away), or the estimator compares more than the answers to one prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from cohort.errors import UserError
from cohort.metrics import Mean, Metrics, Sum
from cohort.trainer.gather import Draw, Gathered
from cohort.trainer.screen import Screen, comparable, trainable
from cohort.trainer.verdict import Verdict, judge
from cohort.types import FinishReason, Group, Rollout

SCORES = ("score", "seq_reward", "seq_final_reward")
"""Names of the score itself; the last two are verl's. What a group is judged by is never shaped."""

LEAST_BATCHES = 10
"""Batches that may be drawn, at least, where no limit is set and the data is small."""

REMEDY = {
    Verdict.ALL_RIGHT: "the data is too easy for this model: take harder prompts",
    Verdict.ALL_WRONG: "the data is too hard for this model: take easier prompts, a stronger model, or more answers "
    "per prompt (rollout.n)",
    Verdict.ALL_TRUNCATED: "the token limit cuts the answers off: raise data.max_response_length",
    Verdict.ALL_UNSCORABLE: "the reward cannot grade the answers: look at their reasons in the run's rollouts",
    Verdict.ALL_EQUAL: "the reward does not tell the answers apart: give it finer values",
}


@dataclass(frozen=True, kw_only=True)
class DynamicSampling:
    """Keeps the groups whose answers differ and draws on in place of the others. Implements ``gather.Filter``.

    The first batch has the step's size. A later one has as many prompts as the share of valid groups so far makes
    likely, at most a step's; a fixed ``batch_size`` is used as it is. Each batch is judged as soon as it is there.
    Kept are the first valid groups in the order of the prompts; valid ones beyond that are dropped, and counted.
    Everything is a function of the answers, so a resumed run draws the same.

    Attributes:
        prompts: prompts in one pass over the data.
        metric: what must differ: ``score``, or the name of a part of the reward, such as ``acc``.
        max_batches: batches of ``batch_size`` (or else of the step's size) that a step may draw; 0 and less allow one
            pass over the data, and at least ten batches.
        batch_size: prompts per batch; None sizes batches by what is missing.
        train_fewer: at the limit, train on the groups there are, if there is one.
        overlong_filter: answers that the token limit cut do not train, so one other must be in a group.
        screen: ends the run where the reward fails too often.
    """

    prompts: int
    metric: str = "score"
    max_batches: int = 0
    batch_size: int | None = None
    train_fewer: bool = False
    overlong_filter: bool = False
    screen: Screen = field(default_factory=Screen)

    def __call__(self, draw: Draw, wanted: int, step: int) -> Gathered:
        """``wanted`` valid groups.

        Raises:
            UserError: if the limit is reached before, with what the other groups are; or if the reward has no part
                of the metric's name.
        """
        collected: list[Group] = []
        valid: list[Group] = []
        found = Counter[Verdict]()
        limit, batches = self.limit(wanted), 0
        while len(valid) < wanted and len(collected) < limit:
            size = self.next_batch(wanted, len(collected), len(valid))
            groups = draw(min(size, limit - len(collected)))
            batches += 1
            collected += groups
            self.screen.check(collected)
            self.check_metric(collected)
            for group in groups:
                verdict = self.judge(group)
                found[verdict] += 1
                if verdict is Verdict.WITH_SIGNAL:
                    valid.append(trainable(group))
        warnings = []
        if len(valid) < wanted:
            told = self.exhausted(len(valid), wanted, len(collected), batches, found)
            if not (valid and self.train_fewer):
                raise UserError(f"step {step}: {told}")
            warnings.append(told)
        kept = valid[:wanted]
        metrics: Metrics = {
            "dynamic_sampling/batches": Sum(batches),
            "dynamic_sampling/groups_sampled": Sum(len(collected)),
            "dynamic_sampling/groups_kept": Sum(len(kept)),
            "dynamic_sampling/kept_share": Mean(len(kept), len(collected)),
            "dynamic_sampling/dropped_valid": Sum(len(valid) - len(kept)),
        }
        return Gathered(
            groups=kept, collected=collected, drawn=len(collected), metrics=metrics, warnings=tuple(warnings)
        )

    def limit(self, wanted: int) -> int:
        """The most prompts that a step may draw."""
        batch = self.batch_size or wanted
        most = self.max_batches * batch if self.max_batches > 0 else max(self.prompts, LEAST_BATCHES * batch)
        return max(wanted, most)

    def next_batch(self, wanted: int, drawn: int, valid: int) -> int:
        """Prompts of the next batch: what is missing over the share of valid groups so far, at most ``wanted``."""
        if self.batch_size:
            return self.batch_size
        if not valid:
            return wanted
        missing = wanted - valid
        return min(wanted, -(-missing * drawn // valid))

    def judge(self, group: Group) -> Verdict:
        """What a group can teach by the metric. Answers that cannot train are left out before."""
        answers = trainable(group).rollouts
        measured = [value for value in map(self.measure, answers) if value is not None]
        verdict = judge(group, measured)
        if verdict is not Verdict.WITH_SIGNAL:
            return verdict
        if not comparable(group):
            return Verdict.ALL_UNSCORABLE
        if self.overlong_filter and all(rollout.finish_reason is FinishReason.LENGTH for rollout in answers):
            return Verdict.ALL_TRUNCATED
        return verdict

    def measure(self, rollout: Rollout) -> float | None:
        """The metric of one answer; None where there is no such number."""
        score = rollout.score
        if score is None:
            return None
        if self.metric in SCORES:
            return score.value
        value = score.parts.get(self.metric)
        return None if value is None or isinstance(value, str) or value != value else float(value)

    def check_metric(self, groups: Sequence[Group]) -> None:
        """Some answer must have the metric; a part may be missing where it does not apply.

        Raises:
            UserError: if none has, naming the parts there are.
        """
        scored = [rollout for group in groups for rollout in trainable(group).rollouts]
        if not scored or any(self.measure(rollout) is not None for rollout in scored):
            return
        parts = [item for rollout in scored if rollout.score for item in rollout.score.parts.items()]
        known = ["score", *sorted({name for name, value in parts if not isinstance(value, str)})]
        raise UserError(
            f"algorithm.filter_groups.metric={self.metric}: the reward gives no such number; it has {', '.join(known)}"
        )

    def exhausted(self, valid: int, wanted: int, drawn: int, batches: int, found: Counter[Verdict]) -> str:
        """What came of a step that did not fill up."""
        others = {verdict: count for verdict, count in found.items() if verdict is not Verdict.WITH_SIGNAL}
        causes = ", ".join(f"{others[v]} {v.replace('_', ' ')}" for v in Verdict if v in others)
        told = (
            f"algorithm.filter_groups: {valid} of the {wanted} groups wanted differ in {self.metric} after "
            f"{_many(drawn, 'prompt')} in {_many(batches, 'batch')} ({causes})"
        )
        remedy = REMEDY[max(others, key=lambda verdict: others[verdict])]
        if self.train_fewer and valid:
            return f"{told}; training on these; {remedy}"
        softer = ", or set algorithm.filter_groups.on_exhausted=train to train on those there are" if valid else ""
        return f"{told}; {remedy}; or raise algorithm.filter_groups.max_num_gen_batches{softer}"


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {'batches' if word == 'batch' else word + 's'}"
