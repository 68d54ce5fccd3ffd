"""Validation as the loop calls it: its own prompts and sampling settings over the trainer's sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cohort.protocols import Sampling
from cohort.rewards.unscorable import check_unscorable
from cohort.rollout.collect import collect
from cohort.trainer.evaluate import Evaluation, evaluate
from cohort.trainer.trainer import Trainer
from cohort.types import Prompt


class Validator:
    """Answers every validation prompt with the weights that the sampler holds.

    Args:
        trainer: lends its sampler, environment, reward and event loop.
        prompts: the validation set.
        sampling: how answers are drawn.
        n: answers per prompt.
        batch_size: prompts in flight together; None takes all.
        also_greedy: a greedy answer to every prompt as well, reported beside the sampled ones.
    """

    def __init__(
        self,
        trainer: Trainer,
        prompts: Sequence[Prompt],
        *,
        sampling: Sampling,
        n: int = 1,
        batch_size: int | None = None,
        also_greedy: bool = False,
    ) -> None:
        self.trainer = trainer
        self.prompts = prompts
        self.sampling = sampling
        self.n = n
        self.batch_size = batch_size
        self.also_greedy = also_greedy and sampling.temperature > 0

    def __call__(self) -> Evaluation:
        """One pass over the validation set.

        Raises:
            UserError: where too many answers could not be scored, with the reward's own traceback.
        """
        evaluation = self._evaluate(self.sampling, self.n)
        if not self.also_greedy:
            return evaluation
        greedy = replace(self.sampling, temperature=0.0, top_k=-1, top_p=1.0, min_p=0.0)
        return evaluation.beside(self._evaluate(greedy, 1))

    def _evaluate(self, sampling: Sampling, n: int) -> Evaluation:
        trainer = self.trainer
        work = evaluate(
            self.prompts,
            n=n,
            environment=trainer.environment,
            sampler=trainer.sampler,
            sampling=sampling,
            reward=trainer.reward,
            seed=trainer.plan.seed,
            collect=collect,
            batch_size=self.batch_size,
        )
        evaluation = trainer.event_loop.run(work)
        check_unscorable([rollout.score for rollout in evaluation.rollouts], trainer.screen.max_unscorable_rate)
        return evaluation
