"""The scalars of a step, computed again from its samples: every logged number that is a function of them.

Names and definitions are those of ``docs/metrics.md``. Losses, gradients, times, memory and schedules are no functions
of the samples; nor are numbers that need a setting as well (the limits of a correction, the weight of a KL).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from cohort.tracking.samples import MODEL, WITHOUT_A_SCORE, Outcome, Sample

Numbers = NDArray[np.float64]

VERDICTS = ("with_signal", "all_right", "all_wrong", "all_truncated", "all_unscorable", "all_equal")
"""What a group can teach; ``verdict`` says which."""

NUMBERS_AS_TEXT = ("nan", "inf", "-inf")
"""How files write numbers that JSON does not have."""

LOG_RATIO_LIMIT = 20.0


def scalars(samples: Sequence[Sample]) -> dict[str, float]:
    """Every scalar of a step that its samples determine, by the name it is logged under.

    A file may determine more than its run has logged (``dynamic_sampling/*`` without dynamic sampling, say).

    Args:
        samples: all samples of one step, as ``read_step`` gives them.
    """
    found = outcome_scalars([sample.outcome for sample in samples])
    found["training/global_step"] = float(samples[0].step)
    found["perf/total_num_tokens"] = float(sum(len(sample.ids) for sample in samples))
    trained = [sample for sample in samples if sample.trained]
    if trained:
        found |= _training(trained) | _agreement(trained)
    return found


def outcome_scalars(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The scalars that need no tokens: scores, lengths, groups, parts of the reward.

    Args:
        outcomes: all samples of one step, group after group.
    """
    groups = cohorts(outcomes)
    found = {
        **_spread("critic/score", [o.score for o in outcomes if o.trained and o.score is not None]),
        **_spread("response_length", [o.written for o in outcomes]),
        **_spread("prompt_length", [o.prompt_length for o in outcomes]),
        **_spread("num_turns", [o.turns for o in outcomes]),
        "response_length/clip_ratio": _share(o.finish_reason == "length" for o in outcomes),
        "response/aborted_ratio": _share(o.finish_reason == "abort" for o in outcomes),
        "training/unscorable": float(sum(o.score is None for o in outcomes)),
        "training/dropped_rollouts": float(sum(not o.trainable for o in outcomes)),
        "training/groups": float(len(groups)),
    }
    verdicts = [verdict(group) for group in groups.values()]
    found |= {f"training/groups_{name}": float(verdicts.count(name)) for name in VERDICTS}
    kept = sum(any(o.trained for o in group) for group in groups.values())
    found |= {
        "dynamic_sampling/groups_sampled": float(len(groups)),
        "dynamic_sampling/groups_kept": float(kept),
        "dynamic_sampling/kept_share": kept / len(groups),
    }
    seconds = [o.reward_seconds for o in outcomes if o.unscorable_reason != WITHOUT_A_SCORE]
    if seconds:
        found |= {"timing_s/reward/mean": float(np.mean(seconds)), "timing_s/reward/max": max(seconds)}
    return found | _parts(outcomes)


def cohorts(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    """The outcomes of each group, by its number."""
    return {number: list(group) for number, group in groupby(outcomes, key=lambda outcome: outcome.group)}


def verdict(group: Sequence[Outcome]) -> str:
    """Which of ``VERDICTS`` a group is; the rules are those of ``cohort.trainer.verdict``."""
    answers = [outcome for outcome in group if outcome.trainable]
    values = [outcome.score for outcome in answers if outcome.score is not None]
    if len(values) < min(2, len(group)) or not values:
        return "all_unscorable"
    if max(values) > min(values):
        return "with_signal"
    if all(outcome.finish_reason == "length" for outcome in answers):
        return "all_truncated"
    right = [outcome.correctness for outcome in answers]
    if min(right) >= 1:
        return "all_right"
    return "all_wrong" if max(right) <= 0 else "all_equal"


def _parts(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """``reward/<part>/mean`` of every part that is a number."""
    seen: dict[str, list[object]] = {}
    for outcome in outcomes:
        for name, value in outcome.reward_parts.items():
            if outcome.score is not None:
                seen.setdefault(name, []).append(value)
    found: dict[str, float] = {}
    for name, values in seen.items():
        if all(isinstance(value, str) for value in values):
            continue
        numbers = [float(str(v)) if isinstance(v, str) else float(v) for v in values if _is_number(v)]  # pyright: ignore[reportArgumentType]
        found[f"reward/{name}/mean"] = float(np.mean(numbers))
    return found


def _is_number(value: object) -> bool:
    return value in NUMBERS_AS_TEXT if isinstance(value, str) else value is not None


def _training(trained: Sequence[Sample]) -> dict[str, float]:
    """Rewards, advantages, values and returns of the answers that trained."""
    rewards = [_on_mask(sample, sample.rewards).sum() for sample in trained if sample.rewards is not None]
    found = _spread("critic/rewards", rewards) | _spread("critic/advantages", _tokens(trained, "advantages"))
    values, returns = _tokens(trained, "values"), _tokens(trained, "returns")
    if len(values) and len(returns):
        found |= _spread("critic/values", values) | _spread("critic/returns", returns)
        found["critic/vf_explained_var"] = float(1 - (returns - values).var() / (returns.var() + 1e-5))
    return found


def _agreement(trained: Sequence[Sample]) -> dict[str, float]:
    """How far the sampler's log-probs are from the trainer's; ``algorithms/mismatch.py`` has formulas and sources."""
    rows = [
        (_on_mask(sample, sample.log_probs), _on_mask(sample, sample.rollout_log_probs))
        for sample in trained
        if sample.log_probs is not None and MODEL in sample.author
    ]
    if not rows:
        return {}
    trainer, sampler = (np.concatenate(side) for side in zip(*rows, strict=True))
    difference = trainer - sampler
    log_ratio = difference.clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    row_log_ratio = np.array([(t - s).sum() for t, s in rows]).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    distance = np.abs(np.exp(sampler) - np.exp(trainer))
    training = -np.array([t.mean() for t, _ in rows])
    rollout = -np.array([s.mean() for _, s in rows])
    apart = training - rollout
    corr = {
        "training_ppl": np.exp(training).mean(),
        "training_log_ppl": training.mean(),
        "rollout_ppl": np.exp(rollout).mean(),
        "rollout_log_ppl": rollout.mean(),
        "kl": -difference.mean(),
        "k3_kl": (np.expm1(log_ratio) - log_ratio).mean(),
        "log_ppl_diff": apart.mean(),
        "log_ppl_abs_diff": np.abs(apart).mean(),
        "log_ppl_diff_max": apart.max(),
        "log_ppl_diff_min": apart.min(),
        "ppl_ratio": np.exp(apart).mean(),
        "chi2_token": np.expm1(2 * log_ratio).mean(),
        "chi2_seq": np.expm1(2 * row_log_ratio).mean(),
    }
    return {
        "training/rollout_probs_diff_mean": float(distance.mean()),
        "training/rollout_probs_diff_max": float(distance.max()),
        "training/rollout_probs_diff_std": float(distance.std(ddof=1)) if len(distance) > 1 else 0.0,
        "training/rollout_actor_probs_pearson_corr": _pearson(np.exp(sampler), np.exp(trainer)),
        **{f"rollout_corr/{name}": float(value) for name, value in corr.items()},
    }


def _pearson(x: Numbers, y: Numbers) -> float:
    """Correlation; NaN where either does not vary."""
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x * x).sum()) * np.sqrt((y * y).sum()))
    return float((x * y).sum() / size) if size else float("nan")


def _on_mask(sample: Sample, column: Sequence[float]) -> Numbers:
    """What ``column`` says of the tokens that the model wrote."""
    return np.asarray(column, np.float64)[np.asarray(sample.author) == MODEL]


def _tokens(trained: Sequence[Sample], name: str) -> Numbers:
    """A column of all the model's tokens; empty where the step had none."""
    columns: list[Numbers] = []
    for sample in trained:
        given = getattr(sample, name)
        if given is not None:
            columns.append(_on_mask(sample, given))
    return np.concatenate(columns) if columns else np.empty(0)


def _spread(prefix: str, values: Iterable[float]) -> dict[str, float]:
    """Mean, maximum and minimum; nothing where there are no values."""
    found = np.asarray(list(values), np.float64)
    if not len(found):
        return {}
    return {
        f"{prefix}/mean": float(found.mean()),
        f"{prefix}/max": float(found.max()),
        f"{prefix}/min": float(found.min()),
    }


def _share(truths: Iterable[bool]) -> float:
    return float(np.mean([float(truth) for truth in truths]))
