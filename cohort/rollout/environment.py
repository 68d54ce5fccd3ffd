"""Environments turn a prompt into trajectories. Single-turn is the trivial one."""

from __future__ import annotations

from cohort.protocols import Request, Sampler, Sampling, SeedKey
from cohort.rollout.ending import Decodes
from cohort.types import Author, Prompt, Rollout, Segment


class SingleTurn:
    """One completion per prompt.

    Args:
        tokenizer: decodes the response for the reward, without special tokens.
    """

    def __init__(self, tokenizer: Decodes) -> None:
        self._tokenizer = tokenizer

    async def rollout(self, prompt: Prompt, sample: int, sampler: Sampler, sampling: Sampling, key: SeedKey) -> Rollout:
        """The prompt's answer as one segment by the model."""
        answer = await sampler.complete(Request(ids=prompt.ids, sampling=sampling, key=key, media=prompt.media))
        segment = Segment(
            ids=answer.ids,
            author=Author.MODEL,
            log_probs=answer.log_probs,
            policy_versions=answer.policy_versions,
        )
        return Rollout(
            prompt=prompt,
            sample=sample,
            segments=(segment,),
            finish_reason=answer.finish_reason,
            text=self._tokenizer.decode(answer.ids, skip_special_tokens=True),
            turns=2,
        )
