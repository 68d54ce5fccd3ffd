"""The training step, in the order of the paper.

    collect:  sample a group of n answers per prompt and score each one
    learn:    log-probs, rewards, advantages, then epochs x minibatches of updates
    publish:  the sampler takes the new weights and proves that it holds them

What happens every N steps (validation, checkpoints) is in ``loop.py``; what a number is called and
how it is measured is in ``measure.py``. Asynchronous training calls ``collect`` and ``learn`` as they are.

Paper: Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), algorithm 1; Schulman et al. 2017, PPO (1707.06347).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from cohort.algorithms.shaping import place
from cohort.metrics import Last, Metrics, Sum, merge
from cohort.models.scoring import Collector
from cohort.protocols import (
    Critic,
    Environment,
    ObservingSource,
    Policy,
    PromptSource,
    Reference,
    Reward,
    Sampler,
    Sampling,
    StepRecord,
    TokenStats,
)
from cohort.rollout.collect import collect
from cohort.rollout.event_loop import EventLoop
from cohort.trainer.advantage import Advantage
from cohort.trainer.chord import Chord
from cohort.trainer.evidence import Correction, Evidence, Stage, score_values
from cohort.trainer.gather import Filter, Gathered
from cohort.trainer.kl import KLController
from cohort.trainer.measure import Stopwatch, measure
from cohort.trainer.screen import Screen
from cohort.trainer.selection import Selection
from cohort.types import Experience, Group, Prompt, collate


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers of the algorithm: what is sampled per step and how it is cut into updates.

    Attributes:
        prompts: P, prompts per training step.
        n: samples per prompt.
        minibatch: prompts per optimiser step.
        epochs: passes over the rollouts of a step.
        seed: names every random choice of the run.
        shuffle: names the shuffles of groups before they are cut into minibatches; None keeps their order.
        critic_warmup: training steps in which the critic learns alone.
        overlong_filter: answers that the token limit cut do not train (they stay in their group's statistics).
        sampling: how training answers are drawn.
    """

    prompts: int
    n: int
    minibatch: int
    epochs: int = 1
    seed: int = 0
    shuffle: int | None = None
    critic_warmup: int = 0
    overlong_filter: bool = False
    sampling: Sampling

    def updates(self, groups: int) -> int:
        """Optimiser steps that ``groups`` groups give."""
        return self.epochs * -(-groups // self.minibatch)


class Trainer:
    """Owns the parts of a run and steps them. Everything it needs is handed in, already built."""

    def __init__(
        self,
        *,
        plan: Plan,
        prompts: PromptSource,
        environment: Environment,
        sampler: Sampler,
        reward: Reward,
        actor: Policy,
        reference: Reference | None,
        advantage: Advantage,
        critic: Critic | None = None,
        kl_reward: KLController | None = None,
        shaping: Sequence[Stage] = (),
        correction: Correction | None = None,
        selection: Selection | None = None,
        group_filter: Filter | None = None,
        screen: Screen | None = None,
        chord: Chord | None = None,
    ) -> None:
        self.plan = plan
        self.prompts = prompts
        self.environment = environment
        self.sampler = sampler
        self.reward = reward
        self.actor = actor
        self.reference = reference
        self.critic = critic
        self.advantage = advantage
        self.kl_reward = kl_reward
        self.shaping: tuple[Stage, ...] = (*([kl_reward] if kl_reward else []), *shaping)
        self.correction = correction
        self.selection = selection
        self.group_filter = group_filter
        self.screen = screen or Screen()
        self.chord = chord
        self.event_loop = EventLoop()
        self.steps = 0  # finished training steps; also the version of the weights
        self.position = 0  # prompts drawn since the run began

    def step(self) -> StepRecord:
        """One training step: collect, learn, publish."""
        clock = Stopwatch()
        with clock("step"):
            with clock("gen"):
                gathered = self.gather()  # P groups of n
            record = self.learn(gathered.groups, clock)
            with clock("update_weights"):
                self.publish()
        self.position += gathered.drawn
        if isinstance(self.prompts, ObservingSource):
            self.prompts.observe(gathered.collected, self.position)
        merge(record.metrics, gathered.metrics)
        record = replace(record, collected=gathered.collected, warnings=[*gathered.warnings, *record.warnings])
        return measure(record, clock, epoch=self.position / len(self.prompts))

    def gather(self) -> Gathered:
        """The step's groups; where a filter is set, it draws on until enough of them carry a signal."""
        drawn, repeats = 0, Counter[int]()

        def draw(count: int) -> list[Group]:
            nonlocal drawn
            prompts = self.prompts.batch(self.position + drawn, count)
            drawn += count
            return self.collect(prompts, repeats)

        if self.group_filter:
            return self.group_filter(draw, self.plan.prompts, self.steps + 1)
        groups = draw(self.plan.prompts)
        return Gathered(groups=groups, collected=groups, drawn=drawn)

    def collect(self, prompts: Sequence[Prompt], repeats: Counter[int] | None = None) -> list[Group]:
        """A scored group of n rollouts for each prompt, with a greedy one where the advantage compares with it.

        Args:
            prompts: the questions.
            repeats: how often each data row was drawn in this step already; counted on.
        """
        work = collect(
            prompts,
            n=self.plan.n,
            environment=self.environment,
            sampler=self.sampler,
            sampling=self.plan.sampling,
            reward=self.reward,
            seed=self.plan.seed,
            step=self.steps + 1,
            baseline=self.advantage.reads_baseline,
            repeats=repeats,
        )
        return self.event_loop.run(work)

    def examine(self, groups: Sequence[Group], clock: Stopwatch) -> Evidence:
        """Log-probs of the old policy and the reference, values, and the correction for the sampler's distance."""
        batch = collate(groups)
        evidence = Evidence(groups=groups, batch=batch, step=self.steps, scores=place(score_values(groups), batch.mask))
        # One update consumes the rollouts: its own detached log-probs are the old ones, the ratio is exactly 1.
        several = self.plan.updates(len(groups)) > 1 and not self.bypass
        if several or self.needs or self.warming:
            wanted = {name: name in self.needs for name in ("entropy", "sum_pi_squared", "hidden")}
            with clock("old_log_prob"):
                evidence = replace(evidence, old=self.actor.log_probs(batch, **wanted))  # (B, T)
        if self.reference:
            with clock("ref"):
                evidence = replace(evidence, ref_log_probs=self.reference.log_probs(batch).log_probs)  # (B, T)
        if self.critic:
            with clock("values"):
                evidence = replace(evidence, values=self.critic.values(batch))  # (B, T)
        if self.plan.overlong_filter:
            keep = (1 - batch.truncated)[:, None].expand_as(batch.mask)
            evidence = replace(evidence, keep=keep)  # (B, T)
        return evidence

    def learn(self, groups: Sequence[Group], clock: Stopwatch) -> StepRecord:
        """Updates critic and actor on ``groups``; rollouts that could not be scored leave their group first.

        Raises:
            UserError: where too many rollouts could not be scored, with the reward's own traceback.
        """
        metrics: Metrics = {}
        warnings: list[str] = []
        evidence = self.examine(self.screen(groups), clock)
        if self.plan.overlong_filter:
            metrics["training/filtered_rollouts"] = Sum(float(evidence.batch.truncated.sum()))
        with clock("adv"):
            if self.correction:
                evidence, seen = self.correction(evidence)
                merge(metrics, seen)
            rewards = evidence.scores  # (B, T)
            for stage in self.shaping:  # KL in the reward -> reference blend -> representation alignment
                rewards, seen = stage(rewards, evidence)
                merge(metrics, seen)
            (advantages, returns), seen = self.advantage(rewards, evidence)  # (B, T) each
            merge(metrics, seen)
        updates = self.plan.updates(len(evidence.groups))
        experience = self.experience(evidence, advantages, returns, updates)

        passed = Collector(evidence.batch)  # the actor's statistics as the first epoch met them
        slices = experience.slices(self.plan.minibatch, epochs=self.plan.epochs, seed=self._shuffle())
        for index, rows in enumerate(slices):
            minibatch = experience.select(rows)
            if self.critic:
                with clock("update_critic"):
                    fitted = self.critic.update(minibatch)
                merge(metrics, fitted.metrics)
                warnings += [fitted.warning] if fitted.warning else []
            if self.warming:
                continue
            if self.selection:
                with clock("select"):
                    known = _select_stats(evidence.old, rows) if index == 0 else None
                    minibatch = self.selection(minibatch, self.actor, known=known, step=self.steps, update=index)
            demonstrations = self.chord(self.steps, index) if self.chord else None
            with clock("update_actor"):
                update = self.actor.update(minibatch, demonstrations=demonstrations)
            merge(metrics, update.metrics)
            merge(metrics, self.chord.metrics(self.steps, index) if self.chord else {})
            warnings += [update.warning] if update.warning else []
            if index < updates // self.plan.epochs:
                passed.add(rows, update.stats)
        self.advance()
        metrics["training/updates"] = Last(updates)
        return self._record(evidence, experience, rewards, passed.stats(), metrics, warnings)

    def experience(self, evidence: Evidence, advantages: Tensor, returns: Tensor, updates: int) -> Experience:
        """What the updates read."""
        batch = evidence.batch
        old = evidence.old.log_probs if evidence.old and updates > 1 else None
        return Experience(
            batch=batch,
            advantages=advantages,
            old_log_probs=batch.rollout_log_probs if self.bypass else old,
            ref_log_probs=evidence.ref_log_probs,
            values=evidence.values,
            returns=returns if self.critic else None,
            keep=evidence.keep,
            weights=evidence.weights,
        )

    def advance(self) -> None:
        """Moves schedules and the step on; the actor's schedule waits while the critic learns alone."""
        if not self.warming:
            self.actor.advance()
        if self.critic:
            self.critic.advance()
        self.steps += 1

    @property
    def needs(self) -> frozenset[str]:
        """Statistics of the old policy that somebody reads."""
        readers = (self.advantage, *self.shaping, *(part for part in (self.correction, self.selection) if part))
        return frozenset[str]().union(*(reader.needs for reader in readers))

    @property
    def bypass(self) -> bool:
        """Whether the sampler's log-probs stand in for the old ones."""
        return self.correction is not None and self.correction.bypass

    @property
    def warming(self) -> bool:
        """Whether the critic still learns alone."""
        return self.steps < self.plan.critic_warmup

    def _shuffle(self) -> int | None:
        return None if self.plan.shuffle is None else self.plan.shuffle + self.steps * self.plan.epochs

    def _record(
        self,
        evidence: Evidence,
        experience: Experience,
        rewards: Tensor,
        passed: TokenStats,
        metrics: Metrics,
        warnings: Sequence[str],
    ) -> StepRecord:
        old = evidence.old
        return StepRecord(
            step=self.steps,
            groups=evidence.groups,
            experience=experience,
            rewards=rewards,
            log_probs=old.log_probs if old else passed.log_probs,
            entropy=old.entropy if old and old.entropy is not None else passed.entropy,
            metrics=metrics,
            warnings=warnings,
        )

    def publish(self) -> None:
        """Hands the actor's weights to the sampler, which proves that it holds them."""
        self.sampler.load(self.actor.weights(), self.steps)

    def close(self) -> None:
        """Ends the reward's processes and the event loop."""
        self.reward.close()
        self.event_loop.close()


def _select_stats(stats: TokenStats | None, rows: Tensor) -> TokenStats | None:
    if stats is None:
        return None
    return TokenStats(**{name: None if x is None else x[rows] for name, x in vars(stats).items()})  # pyright: ignore[reportArgumentType]
