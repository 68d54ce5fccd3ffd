"""Validation: every row exactly once, its own sampling settings, numbers that carry their uncertainty.

Nothing of the training path is shared but ``collect``: no shuffling, no dropped rows, no padding rows.
An answer that could not be scored is counted and left out of the means; it is never a 0.

Metric names are verl's: ``val-core/<data_source>/<var>/mean@N`` and its family, see ``validation_metrics``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np

from cohort.protocols import Environment, Reward, Sampler, Sampling
from cohort.types import Author, FinishReason, Group, Prompt, Rollout

RESAMPLES = 1000
SEED = 42
Z95 = 1.959963984540054  # the normal quantile of a two-sided 95% interval

Collect = Callable[..., Awaitable[Sequence[Group]]]
"""``cohort.rollout.collect.collect`` or anything that is called like it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One graded answer, as the metrics see it.

    Attributes:
        data_source: where its row comes from; metrics are kept apart by it.
        prompt: position of the prompt in the validated list: equal for the samples of one row only.
        sample: number of the sample within its prompt.
        score: the reward, or None when the answer could not be graded.
        parts: named numbers and strings of the reward; ``acc`` and ``pred`` have a meaning here.
        reason: why ``score`` is None.
        length: tokens that the model wrote.
        finish_reason: why the answer ended.
        turns: messages in the conversation.
    """

    data_source: str
    prompt: int
    sample: int = 0
    score: float | None
    parts: Mapping[str, float | str] = field(default_factory=dict)
    reason: str = ""
    length: int = 0
    finish_reason: FinishReason | None = None
    turns: int = 2

    @classmethod
    def of(cls, rollout: Rollout, prompt: int) -> Result:
        """The result of a finished rollout of the prompt at position ``prompt``."""
        score = rollout.score
        return cls(
            data_source=rollout.prompt.data_source,
            prompt=prompt,
            sample=rollout.sample,
            score=score.value if score else None,
            parts=score.parts if score else {},
            reason=score.reason if score else "it was never graded",
            length=sum(author is Author.MODEL for author in rollout.authors),
            finish_reason=rollout.finish_reason,
            turns=rollout.turns,
        )


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a person wants to know about one data source.

    Attributes:
        data_source: its name.
        variable: ``acc`` if the reward gives it, else ``reward``.
        binary: every value is 0 or 1, so that the mean is an accuracy.
        interval: the mean over prompts of each prompt's mean, with its uncertainty.
        prompts: prompts with a scored answer.
        answers: answers drawn, unscorable ones included.
        unscorable: answers that could not be graded.
        length: mean tokens the model wrote per answer.
        ended: share of answers that ended by themselves rather than by the token limit.
        parsed: share of answers the reward could read; None where it does not say.
    """

    data_source: str
    variable: str
    binary: bool
    interval: Interval
    prompts: int
    answers: int
    unscorable: int
    length: float
    ended: float
    parsed: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One pass over a validation set. Every answer is kept.

    Attributes:
        results: what the metrics are made of, ordered by (prompt, sample).
        rollouts: the answers themselves, in the same order.
        metrics: scalars under verl's names.
        greedy: a greedy pass over the same prompts beside this sampled one, or None.
    """

    results: tuple[Result, ...]
    rollouts: tuple[Rollout, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    greedy: Evaluation | None = None

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        """One summary per data source, by name."""
        sources = sorted({result.data_source for result in self.results})
        return tuple(_summary(name, [r for r in self.results if r.data_source == name]) for name in sources)

    def beside(self, greedy: Evaluation) -> Evaluation:
        """A copy that holds ``greedy`` too, its metrics under ``val-aux/<source>/greedy_<var>/mean``."""
        extra: dict[str, float] = {}
        for summary in greedy.summaries:
            name = f"val-aux/{summary.data_source}/greedy_{summary.variable}/mean"
            extra |= {name: summary.interval.mean, f"{name}/low": summary.interval.low}
            extra[f"{name}/high"] = summary.interval.high
        return replace(self, metrics={**self.metrics, **extra}, greedy=greedy)


async def evaluate(
    prompts: Sequence[Prompt],
    *,
    n: int = 1,
    environment: Environment,
    sampler: Sampler,
    sampling: Sampling,
    reward: Reward,
    seed: int,
    collect: Collect,
    batch_size: int | None = None,
) -> Evaluation:
    """Answers every prompt ``n`` times and grades every answer.

    Draws depend on the seed, the row and the sample alone (step 0, which no training step has), so two
    evaluations of one model agree whatever the batch size, and two models are compared on the same draws.

    Args:
        prompts: the rows, in order; each is used exactly once.
        n: answers per prompt.
        environment: turns a prompt into an answer.
        sampler: holds the weights that are judged.
        sampling: how validation answers are drawn; temperature 0 is greedy.
        reward: grades an answer.
        seed: names the draws.
        collect: samples and scores groups, ``cohort.rollout.collect.collect``.
        batch_size: prompts in flight together; None takes all at once. Changes memory, not results.

    Raises:
        RuntimeError: if ``collect`` lost, repeated or reordered a row.
    """
    results: list[Result] = []
    rollouts: list[Rollout] = []
    size = batch_size or max(len(prompts), 1)
    for start in range(0, len(prompts), size):
        chosen = prompts[start : start + size]
        groups = await collect(
            chosen,
            n=n,
            environment=environment,
            sampler=sampler,
            sampling=sampling,
            reward=reward,
            seed=seed,
            step=0,
        )
        if [(g.prompt.row, len(g.rollouts)) for g in groups] != [(prompt.row, n) for prompt in chosen]:
            raise RuntimeError(f"validation asked for {len(chosen)} rows x {n} answers and got other groups back")
        for position, group in enumerate(groups, start):
            rollouts += group.rollouts
            results += [Result.of(rollout, position) for rollout in group.rollouts]
    return Evaluation(results=tuple(results), rollouts=tuple(rollouts), metrics=validation_metrics(results))


# --- metrics ----------------------------------------------------------------------------------


def validation_metrics(results: Iterable[Result]) -> dict[str, float]:
    """Validation metrics as verl names and computes them, from the scored answers.

    With N scored answers to a prompt, each number variable of the reward (``reward`` itself included) gives
    ``mean@N``, and for N > 1 ``std@N`` (population) and, for n = 2, 4, 8, ... below N and N itself,
    ``best@n/{mean,std}``, ``worst@n/{mean,std}`` and, where the reward gives ``pred``, ``maj@n/{mean,std}``:
    the value of the commonest prediction, ties to the one drawn first. The last three are bootstrap estimates
    over 1000 resamples of size n with replacement. All are then averaged over prompts.

    ``val-core/<source>/<var>/...`` holds mean, best and maj at the largest N of the core variable (``acc`` if the
    reward gives it, else ``reward``); the rest is ``val-aux/``. Ours: ``val-aux/<source>/unscorable``,
    ``.../response_length``, ``.../truncated`` and the interval ``val-aux/<source>/<core>/ci95/{low,high}``.
    """
    by_source: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_source[result.data_source].append(result)
    metrics: dict[str, float] = {}
    turns = [result.turns for items in by_source.values() for result in items]
    for source, items in by_source.items():
        metrics |= _source_metrics(source, items)
    if turns:
        metrics["val-aux/num_turns/min"] = float(min(turns))
        metrics["val-aux/num_turns/max"] = float(max(turns))
        metrics["val-aux/num_turns/mean"] = float(np.mean(turns))
    return metrics


def _source_metrics(source: str, items: Sequence[Result]) -> dict[str, float]:
    metrics = {
        f"val-aux/{source}/unscorable": float(sum(r.score is None for r in items)),
        f"val-aux/{source}/response_length": float(np.mean([r.length for r in items])),
        f"val-aux/{source}/truncated": float(np.mean([r.finish_reason is FinishReason.LENGTH for r in items])),
    }
    variables = _variables(items)
    core = "acc" if "acc" in variables else "reward"
    for variable, prompts in variables.items():
        numbers = _over_prompts(prompts.values())
        largest = max(int(name.split("@")[1].split("/")[0]) for name in numbers)
        for name, value in numbers.items():
            kind, size = name.split("/")[0].split("@")
            is_core = variable == core and kind in ("mean", "maj", "best") and int(size) == largest
            metrics[f"{'val-core' if is_core else 'val-aux'}/{source}/{variable}/{name}"] = value
    if core in variables:
        interval = confidence_interval([values for values, _ in variables[core].values()])
        metrics[f"val-aux/{source}/{core}/ci95/low"] = interval.low
        metrics[f"val-aux/{source}/{core}/ci95/high"] = interval.high
    return metrics


Answers = tuple[list[float], list[object]]
"""The values of one variable for one prompt, and the predictions that go with them (empty without ``pred``)."""


def _variables(items: Sequence[Result]) -> dict[str, dict[int, Answers]]:
    """Answers by variable, then prompt, of the scored results. Strings are not variables."""
    variables: dict[str, dict[int, Answers]] = defaultdict(dict)
    for result in items:
        if result.score is None:
            continue
        numbers = {name: value for name, value in result.parts.items() if not isinstance(value, str)}
        for name, value in {**numbers, "reward": result.score}.items():
            values, predictions = variables[name].setdefault(result.prompt, ([], []))
            values.append(float(value))
            if "pred" in result.parts:
                predictions.append(result.parts["pred"])
    return variables


def _over_prompts(prompts: Iterable[Answers]) -> dict[str, float]:
    """The metrics of one variable: each prompt's, then the mean over the prompts that have them."""
    collected: dict[str, list[float]] = defaultdict(list)
    for values, predictions in prompts:
        for name, value in _of_prompt(np.asarray(values), predictions).items():
            collected[name].append(value)
    return {name: float(np.mean(values)) for name, values in collected.items()}


def _of_prompt(values: np.ndarray, predictions: Sequence[object]) -> dict[str, float]:
    N = len(values)
    metrics = {f"mean@{N}": float(values.mean())}
    if N == 1:
        return metrics
    metrics[f"std@{N}"] = float(values.std())
    codes = np.asarray([predictions.index(p) for p in predictions]) if len(predictions) == N else None
    for n in _sizes(N):
        if values.min() == values.max():  # every resample gives this value; most prompts of a good model are so
            for name in ("best", "worst", "maj") if codes is not None else ("best", "worst"):
                metrics |= {f"{name}@{n}/mean": float(values[0]), f"{name}@{n}/std": 0.0}
            continue
        drawn = _resamples(N, n)  # (1000, n)
        estimates = {"best": values[drawn].max(1), "worst": values[drawn].min(1)}
        if codes is not None:
            estimates["maj"] = values[drawn[np.arange(RESAMPLES), _first_of_majority(codes[drawn])]]
        for name, estimate in estimates.items():
            metrics[f"{name}@{n}/mean"] = float(estimate.mean())
            metrics[f"{name}@{n}/std"] = float(estimate.std())
    return metrics


def _sizes(N: int) -> list[int]:
    """2, 4, 8, ... below N, and N."""
    return [2**i for i in range(1, N.bit_length()) if 2**i < N] + [N]


@cache
def _resamples(N: int, n: int) -> np.ndarray:
    """Positions of 1000 resamples of size n out of N, with replacement  # (1000, n).

    The stream is that of ``np.random.seed(42)`` and 1000 calls of ``choice``, which is where published numbers
    come from; the generator is private, so nobody else's random state moves.
    """
    return np.random.RandomState(SEED).randint(0, N, size=(RESAMPLES, n))


def _first_of_majority(codes: np.ndarray) -> np.ndarray:
    """Position, in each row, of the first answer of the commonest prediction  # (R, n) -> (R,)."""
    counts = (codes[:, :, None] == codes[:, None, :]).sum(2)  # (R, n): how often the answer at this position occurs
    return counts.argmax(1)  # the first maximum belongs to the prediction that was seen first


# --- uncertainty ------------------------------------------------------------------------------


def confidence_interval(values_by_prompt: Sequence[Sequence[float]]) -> Interval:
    """The mean over prompts of each prompt's mean, with a 95% interval that respects shared prompts.

    Answers to one prompt are not independent, so the prompt is the unit. For values of 0 and 1 it is Wilson's
    interval with the effective number of answers ``m = p(1-p) / Var``, Var the variance of the mean over
    prompts, kept between the number of prompts and the number of answers. With one answer per prompt this is
    Wilson's interval itself, and it stays honest at 0% and 100%. For other values it is the percentile bootstrap
    over prompts (1000 resamples, seed 42).

    Papers: Wilson 1927, JASA 22, 209-212; Kish 1965, Survey Sampling, section 8.2 (design effect). Wrong choice
    where prompts are themselves clustered (many rows from one document): it is then too narrow.
    """
    means = np.asarray([np.mean(values) for values in values_by_prompt if len(values)])
    if not len(means):
        return Interval(math.nan, math.nan, math.nan)
    mean = float(means.mean())
    if all(value in (0.0, 1.0) for values in values_by_prompt for value in values):
        answers = sum(len(values) for values in values_by_prompt)
        spread = float(means.var(ddof=1)) / len(means) if len(means) > 1 else 0.0
        effective = mean * (1 - mean) / spread if spread else float(len(means))
        return wilson(mean, min(max(effective, len(means)), answers))
    drawn = means[np.random.RandomState(SEED).randint(0, len(means), size=(RESAMPLES, len(means)))].mean(1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(mean, float(low), float(high))


def wilson(share: float, count: float) -> Interval:
    """Wilson's 95% interval of a share seen in ``count`` independent trials."""
    centre = (share + Z95**2 / (2 * count)) / (1 + Z95**2 / count)
    half = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2)) / (1 + Z95**2 / count)
    return Interval(share, max(centre - half, 0.0), min(centre + half, 1.0))


def _summary(source: str, items: Sequence[Result]) -> Summary:
    variables = _variables(items)
    variable = "acc" if "acc" in variables else "reward"
    values = [values for values, _ in variables.get(variable, {}).values()]
    return Summary(
        data_source=source,
        variable=variable,
        binary=all(value in (0.0, 1.0) for prompt in values for value in prompt),
        interval=confidence_interval(values),
        prompts=len(values),
        answers=len(items),
        unscorable=sum(r.score is None for r in items),
        length=float(np.mean([r.length for r in items])),
        ended=float(np.mean([r.finish_reason is FinishReason.STOP for r in items])),
        parsed=_parsed(items),
    )


def _parsed(items: Sequence[Result]) -> float | None:
    """Share of scored answers the reward could read: part ``parsed`` or ``format``, else a ``pred`` with text."""
    scored = [r for r in items if r.score is not None]
    for name in ("parsed", "format"):
        told = [float(r.parts[name]) for r in scored if name in r.parts and not isinstance(r.parts[name], str)]
        if told:
            return sum(told) / len(told)
    told = [r.parts["pred"] not in ("", "None", "[INVALID]") for r in scored if "pred" in r.parts]
    return sum(told) / len(told) if told else None
