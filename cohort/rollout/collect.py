"""Samples a group of answers for each prompt and scores each one as soon as it is finished."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cohort.errors import UserError
from cohort.protocols import Environment, GroupReward, Reward, Sampler, Sampling, SeedKey
from cohort.types import FinishReason, Group, Prompt, Rollout, Score


async def collect(
    prompts: Sequence[Prompt],
    *,
    n: int,
    environment: Environment,
    sampler: Sampler,
    sampling: Sampling,
    reward: Reward | None,
    seed: int,
    step: int,
    baseline: bool = False,
    repeats: Counter[int] | None = None,
) -> list[Group]:
    """A group of ``n`` rollouts per prompt, in the order of ``prompts`` and of the sample numbers.

    One coroutine per rollout runs the environment and then the reward, so rewards overlap with the
    sampling of what is not finished yet. A ``GroupReward`` has the last word when all are finished. A
    rollout or reward that raises is data: the rollout is there, aborted where the environment failed,
    with a score of None and the traceback as reason.

    Args:
        prompts: the questions. A prompt that occurs twice gets different draws each time.
        n: rollouts per prompt.
        environment: makes a rollout of a prompt.
        sampler: what the environment calls.
        sampling: how tokens are drawn.
        reward: grades finished rollouts; None leaves their score None.
        seed: names the random draws, with ``step``, the prompt's row and the sample number.
        step: the training step.
        baseline: also a greedy answer to each prompt, as ``Group.baseline``.
        repeats: how often each data row was drawn in this step before; counted on.

    Raises:
        UserError: at once, where a component refuses its input; the other rollouts are cancelled.
        asyncio.CancelledError, KeyboardInterrupt: after all rollouts have been cancelled.
    """
    seen = Counter[int]() if repeats is None else repeats
    greedy = replace(sampling, temperature=0.0)
    tasks = []
    for prompt in prompts:
        first = seen[prompt.row] * (n + baseline)
        seen[prompt.row] += 1
        for sample in range(n + baseline):
            key = SeedKey(seed=seed, step=step, prompt=prompt.row, sample=first + sample)
            how = sampling if sample < n else greedy
            tasks.append(asyncio.create_task(_finish(prompt, sample, environment, sampler, how, reward, key)))
    try:
        rollouts = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    width = n + baseline
    cohorts = [tuple(rollouts[i * width : (i + 1) * width]) for i in range(len(prompts))]
    groups = [
        Group(prompt=prompt, rollouts=cohort[:n], baseline=cohort[n] if baseline else None)
        for prompt, cohort in zip(prompts, cohorts, strict=True)
    ]
    return await reward.score_groups(groups) if isinstance(reward, GroupReward) else groups


async def _finish(
    prompt: Prompt,
    sample: int,
    environment: Environment,
    sampler: Sampler,
    sampling: Sampling,
    reward: Reward | None,
    key: SeedKey,
) -> Rollout:
    """One rollout with its score. Failures become data; what is addressed to the user goes through."""
    try:
        rollout = await environment.rollout(prompt, sample, sampler, sampling, key)
    except UserError:
        raise
    except Exception:
        failed = Score(value=None, reason=traceback.format_exc())
        return Rollout(prompt=prompt, sample=sample, finish_reason=FinishReason.ABORT, score=failed, key=key)
    rollout = replace(rollout, key=key)
    if reward is None:
        return rollout
    started = time.perf_counter()
    try:
        score = await reward.score(rollout)
    except UserError:
        raise
    except Exception:
        score = Score(value=None, reason=traceback.format_exc(), seconds=time.perf_counter() - started)
    return replace(rollout, score=score)
