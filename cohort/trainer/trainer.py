"""The training step, in the order of the paper.

    collect:  sample a group of n answers per prompt and score each one
    learn:    log-probs, rewards, advantages, then epochs x minibatches of updates
    publish:  the sampler takes the new weights and proves that it holds them

What happens every N steps (validation, checkpoints) is in ``loop.py``; what a number is called and
how it is measured is in ``measure.py``. Asynchronous training calls ``collect`` and ``learn`` as they are.

Paper: Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), algorithm 1; Schulman et al. 2017, PPO (1707.06347).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.algorithms.registry import Advantages
from cohort.algorithms.shaping import kl_in_reward, place
from cohort.metrics import Last, Metrics, merge
from cohort.protocols import (
    Environment,
    Policy,
    PromptSource,
    Reference,
    Reward,
    Sampler,
    Sampling,
    StepRecord,
)
from cohort.rollout.collect import collect
from cohort.rollout.event_loop import EventLoop
from cohort.trainer.kl import KLController
from cohort.trainer.measure import Stopwatch, measure
from cohort.trainer.screen import Screen
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
        sampling: how training answers are drawn.
    """

    prompts: int
    n: int
    minibatch: int
    epochs: int = 1
    seed: int = 0
    shuffle: int | None = None
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
        advantage: Callable[..., Advantages],
        kl_reward: KLController | None = None,
        screen: Screen | None = None,
    ) -> None:
        self.plan = plan
        self.prompts = prompts
        self.environment = environment
        self.sampler = sampler
        self.reward = reward
        self.actor = actor
        self.reference = reference
        self.advantage = advantage
        self.kl_reward = kl_reward
        self.screen = screen or Screen()
        self.event_loop = EventLoop()
        self.steps = 0  # finished training steps; also the version of the weights
        self.position = 0  # prompts drawn since the run began

    def step(self) -> StepRecord:
        """One training step: collect, learn, publish."""
        clock = Stopwatch()
        with clock("step"):
            prompts = self.prompts.batch(self.position, self.plan.prompts)  # P
            with clock("gen"):
                groups = self.collect(prompts)  # P groups of n
            record = self.learn(groups, clock)
            with clock("update_weights"):
                self.publish()
        self.position += len(prompts)
        return measure(replace(record, collected=groups), clock, epoch=self.position / len(self.prompts))

    def collect(self, prompts: Sequence[Prompt]) -> list[Group]:
        """A scored group of n rollouts for each prompt."""
        work = collect(
            prompts,
            n=self.plan.n,
            environment=self.environment,
            sampler=self.sampler,
            sampling=self.plan.sampling,
            reward=self.reward,
            seed=self.plan.seed,
            step=self.steps + 1,
        )
        return self.event_loop.run(work)

    def learn(self, groups: Sequence[Group], clock: Stopwatch) -> StepRecord:
        """Updates the actor on ``groups``; rollouts that could not be scored leave their group first.

        Raises:
            UserError: where too many rollouts could not be scored, with the reward's own traceback.
        """
        kept = self.screen(groups)
        batch = collate(kept)
        scores = place(score_values(kept), batch.mask)  # (B, T)
        updates = self.plan.updates(len(kept))
        metrics: Metrics = {}
        warnings: list[str] = []

        # One update consumes the rollouts: its own detached log-probs are the old ones, the ratio is exactly 1.
        old_log_probs = ref_log_probs = None
        if updates > 1 or self.kl_reward:
            with clock("old_log_prob"):
                old_log_probs = self.actor.log_probs(batch).log_probs  # (B, T)
        if self.reference:
            with clock("ref"):
                ref_log_probs = self.reference.log_probs(batch).log_probs  # (B, T)
        with clock("adv"):
            rewards = scores  # (B, T)
            if self.kl_reward and old_log_probs is not None and ref_log_probs is not None:
                coef, kind = self.kl_reward.coef, self.kl_reward.kind
                rewards, kl = kl_in_reward(scores, old_log_probs, ref_log_probs, batch.mask, coef, kind)
                merge(metrics, self.kl_reward.observe(kl))
            advantages, _returns = self.advantage(rewards=rewards, mask=batch.mask, group=batch.group)  # (B, T)
        experience = Experience(
            batch=batch,
            advantages=advantages,
            old_log_probs=old_log_probs if updates > 1 else None,
            ref_log_probs=ref_log_probs,
        )

        log_probs, entropy = old_log_probs, None
        shuffle = None if self.plan.shuffle is None else self.plan.shuffle + self.steps * self.plan.epochs
        with clock("update_actor"):
            for minibatch in experience.minibatches(self.plan.minibatch, epochs=self.plan.epochs, seed=shuffle):
                update = self.actor.update(minibatch)
                merge(metrics, update.metrics)
                warnings += [update.warning] if update.warning else []
                if updates == 1:
                    log_probs, entropy = update.stats.log_probs, update.stats.entropy  # (B, T)
            self.actor.advance()
        self.steps += 1
        metrics["training/updates"] = Last(updates)
        return StepRecord(
            step=self.steps,
            groups=kept,
            experience=experience,
            rewards=rewards,
            log_probs=log_probs if log_probs is not None else batch.rollout_log_probs,
            entropy=entropy,
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


def score_values(groups: Sequence[Group]) -> Tensor:
    """The score of every rollout  # (B,)."""
    values = [rollout.score.value for group in groups for rollout in group.rollouts if rollout.score]
    return torch.tensor([float(v) for v in values if v is not None])
