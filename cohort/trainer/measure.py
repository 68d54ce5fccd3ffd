"""What a training step reports. Names are verl's wherever verl has one; ours stand under ``training/``."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from cohort.algorithms.mismatch import mismatch
from cohort.metrics import Last, Max, Mean, Metrics, Sum, merge, summary
from cohort.protocols import StepRecord
from cohort.trainer.screen import trains
from cohort.trainer.verdict import Verdict, judge
from cohort.types import Author, FinishReason, Group, Rollout


class Stopwatch:
    """Wall seconds per named section; a section entered twice adds up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Times the block under ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def measure(record: StepRecord, clock: Stopwatch, *, epoch: float) -> StepRecord:
    """``record`` with the metrics of the data, the groups, the sampler's agreement and the time added.

    Args:
        record: what the step did; dropped rollouts are measured too, those of ``groups`` trained.
        clock: the step's sections.
        epoch: passes over the data set so far, fractional.
    """
    metrics: Metrics = dict(record.metrics)
    groups = record.collected
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    for part in (
        _tensors(record),
        _lengths(rollouts),
        _groups(groups),
        _rewards(rollouts),
        _agreement(record),
        _time(rollouts, clock),
        {"training/global_step": Last(record.step), "training/epoch": Last(epoch)},
    ):
        merge(metrics, part)
    return replace(record, metrics=metrics, collected=groups)


def _tensors(record: StepRecord) -> Metrics:
    """Scores and rewards per rollout, advantages per token of the model."""
    batch = record.experience.batch
    on_mask = batch.mask.bool()
    scores = [r.score.value for g in record.groups for r in g.rollouts if r.score and r.score.value is not None]
    metrics = summary("critic/score", scores)
    merge(metrics, summary("critic/rewards", (record.rewards * batch.mask).sum(1).tolist()))
    merge(metrics, summary("critic/advantages", record.experience.advantages[on_mask].tolist()))
    values, returns = record.experience.values, record.experience.returns
    if values is not None and returns is not None and on_mask.any():
        merge(metrics, summary("critic/values", values[on_mask].tolist()))
        merge(metrics, summary("critic/returns", returns[on_mask].tolist()))
        metrics["critic/vf_explained_var"] = Last(explained_variance(values[on_mask], returns[on_mask]))
    return metrics


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """``1 - Var(returns - values) / (Var(returns) + 1e-5)`` over tokens (N,): 1 is perfect, 0 a constant."""
    left = (returns - values).double().var(correction=0)
    return float(1 - left / (returns.double().var(correction=0) + 1e-5))


def _lengths(rollouts: Sequence[Rollout]) -> Metrics:
    """Lengths count the tokens that the model wrote; a prompt's and a tool's are not its response."""
    written = [sum(a is Author.MODEL for a in rollout.authors) for rollout in rollouts]
    metrics = summary("response_length", written)
    merge(metrics, summary("prompt_length", [len(r.prompt.ids) for r in rollouts]))
    merge(metrics, summary("num_turns", [r.turns for r in rollouts]))
    metrics["response_length/clip_ratio"] = Mean.of(float(r.finish_reason is FinishReason.LENGTH) for r in rollouts)
    metrics["response/aborted_ratio"] = Mean.of(float(r.finish_reason is FinishReason.ABORT) for r in rollouts)
    return metrics


def _groups(groups: Sequence[Group]) -> Metrics:
    """How many groups carry a signal, and why the others do not."""
    metrics: Metrics = {"training/groups": Sum(len(groups))}
    for verdict in Verdict:
        metrics[f"training/groups_{verdict}"] = Sum(0)
    for group in groups:
        merge(metrics, {f"training/groups_{judge(group)}": Sum(1)})
    return metrics


def _rewards(rollouts: Sequence[Rollout]) -> Metrics:
    """Reward parts, ungraded answers and the slowest grading."""
    metrics: Metrics = {
        "training/unscorable": Sum(sum(r.score is None or r.score.value is None for r in rollouts)),
        "training/dropped_rollouts": Sum(sum(not trains(r) for r in rollouts)),
    }
    for rollout in rollouts:
        if rollout.score is None:
            continue
        for name, value in rollout.score.parts.items():
            if rollout.score.value is not None and not isinstance(value, str):
                merge(metrics, {f"reward/{name}/mean": Mean(float(value))})
        merge(metrics, {"timing_s/reward/mean": Mean(rollout.score.seconds)})
        merge(metrics, {"timing_s/reward/max": Max(rollout.score.seconds)})
    return metrics


def _agreement(record: StepRecord) -> Metrics:
    """How far the sampler's log-probs are from the trainer's on the same tokens, always reported."""
    batch = record.experience.batch
    numbers = mismatch(record.log_probs, batch.rollout_log_probs, batch.mask)
    return {name: Last(float(value)) for name, value in numbers.named().items()}


def _time(rollouts: Sequence[Rollout], clock: Stopwatch) -> Metrics:
    """Seconds per section, milliseconds per token, tokens per second."""
    metrics: Metrics = {f"timing_s/{name}": Sum(seconds) for name, seconds in clock.seconds.items()}
    response = sum(len(r.response_ids) for r in rollouts)
    total = response + sum(len(r.prompt.ids) for r in rollouts)
    over_all = ("ref", "values", "adv", "update_critic", "update_actor")
    for name, tokens in (("gen", response), *((name, total) for name in over_all)):
        if name in clock.seconds and tokens:
            metrics[f"timing_per_token_ms/{name}"] = Last(1000 * clock.seconds[name] / tokens)
    step = clock.seconds["step"]
    metrics["perf/total_num_tokens"] = Sum(total)
    metrics["perf/time_per_step"] = Sum(step)
    metrics["perf/throughput"] = Last(total / step)
    metrics["perf/cpu_memory_used_gb"] = Max(resident_gib())
    if torch.cuda.is_available():
        metrics["perf/max_memory_allocated_gb"] = Max(torch.cuda.max_memory_allocated() / 2**30)
    return metrics


def resident_gib() -> float:
    """The largest resident set of this process so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
