"""An advantage worked step by step: the scores, the statistics of the groups, and what the registered function says."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from cohort.algorithms.grouping import GroupStatistics, group_statistics
from cohort.algorithms.masking import masked_mean, masked_var
from cohort.algorithms.registry import ADVANTAGES, AdvantageEntry
from cohort.algorithms.shaping import place
from cohort.config.nearest import nearest_words
from cohort.errors import UserError
from cohort.explain.docstring import parse
from cohort.explain.show import prose, table

MOST_ANSWERS, MOST_TOKENS = 64, 32
NEEDS: Mapping[str, tuple[str, str]] = {
    "values": ("--values", 'the critic\'s value of each token, a row per answer: --values "0.1,0.2,0.3;0.5"'),
    "baseline": ("--baseline", "the score of the greedy answer to each prompt: --baseline 0.5"),
    "parts": ("--parts", 'each part of the reward as a row with a score per answer: --parts "1,0,1;0.5,0.5,1"'),
    "old_log_probs": ("--old-log-probs", 'the log-prob of each token, a row per answer: --old-log-probs "-0.7,-0.1"'),
    "sum_pi_squared": ("--sum-pi-squared", "the sum of squared probabilities at each token: --sum-pi-squared 0.4"),
}
"""Tensors that an estimator may need, the option that gives them, and what to say where it is missing."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """The options of the command, as text."""

    estimator: str | None = None
    rewards: str | None = None
    groups: str | None = None
    lengths: str | None = None
    baseline: str | None = None
    values: str | None = None
    parts: str | None = None
    old_log_probs: str | None = None
    sum_pi_squared: str | None = None
    option: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Example:
    """What the estimator is called with.

    Attributes:
        scores: (B,)
        mask: (B, T)
        group: (B,)
        extra: the further tensors.
        options: the estimator's options.
    """

    scores: Tensor
    mask: Tensor
    group: Tensor
    extra: Mapping[str, Tensor]
    options: Mapping[str, Any]

    @property
    def rewards(self) -> Tensor:
        """Each score on the last token of its answer  # (B, T)."""
        return place(self.scores, self.mask)


def worked(given: Given) -> Iterator[RenderableType]:
    """The example as tables.

    Raises:
        UserError: in one line, for an option that is missing, unreadable or not the estimator's.
    """
    name = given.estimator or "grpo"
    if name not in ADVANTAGES:
        close = nearest_words(name, ADVANTAGES, most=1)
        guess = f"did you mean {close[0]}?" if close else f"there are {', '.join(ADVANTAGES)}"
        raise UserError(f"--estimator {name}: no such advantage estimator; {guess}")
    entry = ADVANTAGES[name]
    example = _read(given, name, entry)
    try:
        result = entry.function(
            rewards=example.rewards, mask=example.mask, group=example.group, **example.extra, **example.options
        )
    except ValueError as problem:
        raise UserError(f"{name}: {problem}") from None
    return _tables(name, entry, example, result.advantages, result.returns)


def _read(given: Given, name: str, entry: AdvantageEntry) -> Example:
    _check_needs(given, name, entry)
    parts = _parts(given.parts) if given.parts else None
    if given.rewards:
        scores = torch.tensor(_numbers("--rewards", given.rewards), dtype=torch.float64)
    elif parts is not None:
        scores = parts.nan_to_num().sum(dim=1)
    else:
        raise UserError("cohort explain advantage needs --rewards, a score for each answer: --rewards 1,0,1")
    B = len(scores)
    if B > MOST_ANSWERS:
        raise UserError(f"--rewards has {B} answers; the tables have room for {MOST_ANSWERS}")
    lengths = _whole("--lengths", given.lengths or "3", B, least=1)
    if max(lengths) > MOST_TOKENS:
        raise UserError(f"--lengths: an answer of {max(lengths)} tokens; the tables have room for {MOST_TOKENS}")
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).to(torch.float64)
    extra: dict[str, Tensor] = {}
    for need in ("values", "old_log_probs", "sum_pi_squared"):
        if text := vars(given)[need]:
            extra[need] = _per_token(NEEDS[need][0], text, lengths)
    if given.baseline:
        extra["baseline"] = torch.tensor(_repeated("--baseline", _numbers("--baseline", given.baseline), B)).double()
    if parts is not None:
        if len(parts) != B:
            raise UserError(f"--parts: scores of {len(parts)} answers, but --rewards has {B}")
        extra["parts"] = parts
    return Example(
        scores=scores,
        mask=mask,
        group=torch.tensor(_whole("--groups", given.groups or "0", B, least=0)),
        extra=extra,
        options=_options(given.option, name, entry.function),
    )


def _check_needs(given: Given, name: str, entry: AdvantageEntry) -> None:
    for need, (option, what) in NEEDS.items():
        present = vars(given)[need] is not None
        if need in entry.needs and not present:
            raise UserError(f"{name} needs {what}")
        if present and need not in entry.needs:
            raise UserError(f"{option}: {name} does not read it; leave it out")


def _tables(
    name: str, entry: AdvantageEntry, example: Example, advantages: Tensor, returns: Tensor
) -> Iterator[RenderableType]:
    said = parse(entry.function.__doc__)
    chosen = "".join(f", {key}={value}" for key, value in example.options.items())
    yield Text.assemble((name, "bold"), (f"  {len(example.scores)} answers{chosen}", "dim"))
    yield prose(said.summary)
    yield Padding(Text(said.formula, style="green"), (1, 0, 1, 4), expand=False)
    if entry.group_baseline:
        yield Text("Groups", style="bold")
        yield _groups(example)
    yield Text("\nAnswers" if entry.group_baseline else "Answers", style="bold")
    yield _answers(entry, example, advantages)
    yield Text(f"\nPer token, from {entry.function.__module__}.{entry.function.__name__}", style="bold")
    if not _constant(advantages, example.mask):
        for need in ("values", "old_log_probs", "sum_pi_squared"):
            if need in example.extra:
                yield from _per_token_table(need, example.extra[need], example.mask)
        yield from _per_token_table("rewards", example.rewards, example.mask)
        yield from _per_token_table("returns", returns, example.mask)
    yield from _per_token_table("advantages", advantages, example.mask)
    yield from _remarks(entry, example, advantages)


def _columns(example: Example) -> dict[str, tuple[Tensor, GroupStatistics]]:
    """What is compared within the groups, with its statistics: the score, or each part of the reward."""
    if "parts" not in example.extra:
        return {"score": (example.scores, group_statistics(example.scores, example.group))}
    found = {}
    for k, part in enumerate(example.extra["parts"].T):
        applies = ~part.isnan()
        known = group_statistics(part[applies], example.group[applies])
        blank = torch.full_like(part, torch.nan)
        found[f"part {k}"] = (part, GroupStatistics(*(blank.masked_scatter(applies, field) for field in known)))
    return found


def _groups(example: Example) -> RenderableType:
    """A row per group and thing compared; below them the whole batch, whose deviation some estimators divide by."""
    rows = []
    for what, (values, statistics) in _columns(example).items():
        for number in dict.fromkeys(example.group.tolist()):
            b = next((i for i, g in enumerate(example.group.tolist()) if g == number and values[i] == values[i]), None)
            if b is not None:
                cells = _cells(statistics.size[b], statistics.mean[b], statistics.std[b])
                rows.append([str(number), what, *cells])
        everyone = (~values.isnan()).to(values.dtype)
        std = masked_var(values, everyone).sqrt()
        rows.append(["all", what, *_cells(everyone.sum(), masked_mean(values, everyone), std)])
    return table(("group", "of", "answers", "mean", "std"), rows, numbers=True)


def _answers(entry: AdvantageEntry, example: Example, advantages: Tensor) -> RenderableType:
    """A row per answer."""
    columns: dict[str, Tensor] = {"tokens": example.mask.sum(dim=1)}
    for what, (values, statistics) in _columns(example).items():
        columns[what] = values
        if entry.group_baseline:
            which = what.removeprefix("part") if "parts" in example.extra else ""
            columns[f"- mean{which}"] = statistics.mean
            columns[f"= deviation{which}"] = statistics.deviation
            columns[f"group std{which}"] = statistics.std
    if "baseline" in example.extra:
        columns["baseline"] = example.extra["baseline"]
    constant = _constant(advantages, example.mask)
    columns["advantage" if constant else "mean advantage"] = masked_mean(advantages, example.mask, axis=1)
    rows = (
        [str(b), str(int(example.group[b])), *_cells(*(column[b] for column in columns.values()))]
        for b in range(len(example.scores))
    )
    return table(("answer", "group", *columns), rows, numbers=True)


def _per_token_table(what: str, values: Tensor, mask: Tensor) -> Iterator[RenderableType]:
    columns = (what, *(f"token {t}" for t in range(mask.shape[1])))
    rows = (
        [f"answer {b}", *(_number(v) if m else "." for v, m in zip(values[b], mask[b], strict=True))]
        for b in range(len(mask))
    )
    yield table(columns, rows, numbers=True)


def _remarks(entry: AdvantageEntry, example: Example, advantages: Tensor) -> Iterator[RenderableType]:
    statistics = group_statistics(example.scores, example.group)
    if entry.group_baseline and bool((statistics.size == 1).any()):
        yield Text("A group of one has nothing to compare with: its advantage is 0.", style="yellow")
    if entry.group_baseline and bool(((statistics.size > 1) & (statistics.std == 0)).any()):
        yield Text("A group whose scores are all equal has no spread: it teaches nothing.", style="yellow")
    yield Text(f"Mean advantage over tokens: {_number(masked_mean(advantages, example.mask))}", style="dim")


def _constant(values: Tensor, mask: Tensor) -> bool:
    """Whether each answer has one value on all its tokens."""
    return bool((((values - values[:, :1]) * mask).abs() < 1e-12).all())


def _cells(*values: Tensor) -> list[str]:
    return [_number(value) for value in values]


def _number(value: Tensor) -> str:
    text = f"{float(value):.4f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _numbers(option: str, text: str, *, nan: bool = False) -> list[float]:
    numbers = []
    for word in text.split(","):
        try:
            number = float(word)
        except ValueError:
            raise UserError(f"{option} {text}: {word.strip() or 'nothing'!r} is no number; write 1,0,0.5") from None
        if number - number != 0 and not (nan and number != number):
            raise UserError(f"{option} {text}: {word.strip()} is not finite")
        numbers.append(number)
    return numbers


def _rows(option: str, text: str, *, nan: bool = False) -> list[list[float]]:
    return [_numbers(option, row, nan=nan) for row in text.split(";")]


def _parts(text: str) -> Tensor:
    """Scores of the answers, a column per part of the reward  # (B, K)."""
    rows = _rows("--parts", text, nan=True)
    if len({len(row) for row in rows}) > 1:
        raise UserError(f"--parts {text}: each part needs a score for each answer; semicolons stand between the parts")
    return torch.tensor(rows, dtype=torch.float64).T.contiguous()


def _whole(option: str, text: str, B: int, *, least: int) -> list[int]:
    numbers = _repeated(option, _numbers(option, text), B)
    if any(number != int(number) or number < least for number in numbers):
        raise UserError(f"{option} {text}: expects whole numbers from {least} on")
    return [int(number) for number in numbers]


def _repeated(option: str, numbers: list[float], B: int) -> list[float]:
    if len(numbers) == 1:
        return numbers * B
    if len(numbers) != B:
        raise UserError(f"{option}: {len(numbers)} numbers for {B} answers; give one for each, or one for all")
    return numbers


def _per_token(option: str, text: str, lengths: list[int]) -> Tensor:
    """Rows of tokens; one row serves all answers, one number all tokens of a row."""
    rows = _rows(option, text)
    if len(rows) == 1:
        rows = rows * len(lengths)
    if len(rows) != len(lengths):
        raise UserError(f"{option}: {len(rows)} rows for {len(lengths)} answers; give one for each, or one for all")
    out = torch.zeros(len(lengths), max(lengths), dtype=torch.float64)
    for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if len(row) not in (1, length):
            raise UserError(f"{option}: row {b} has {len(row)} numbers for an answer of {length} tokens")
        out[b, :length] = torch.tensor(row, dtype=torch.float64)
    return out


def _options(words: list[str], name: str, function: Callable[..., Any]) -> dict[str, Any]:
    legal = {p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in legal:
            close = nearest_words(key, legal, most=1)
            guess = f"did you mean {close[0]}?" if close else f"{name} has {', '.join(legal) or 'no options'}"
            raise UserError(f"--option {word}: expects KEY=VALUE with an option of {name}; {guess}")
        found[key] = _option(word, text, legal[key])
    return found


def _option(word: str, text: str, default: object) -> object:
    """The value, of the type that the option's default has; lists of numbers where the default is none."""
    if isinstance(default, str):
        return text
    try:
        value = json.loads(f"[{text}]" if default is None and not text.startswith("[") else text.lower())
    except json.JSONDecodeError:
        value = None
    kind = "true or false" if isinstance(default, bool) else "a number" if default is not None else "a list of numbers"
    fits = {"true or false": bool, "a number": int | float, "a list of numbers": list}[kind]
    if not isinstance(value, fits) or (kind == "a number" and isinstance(value, bool)):
        raise UserError(f"--option {word}: expects {kind}")
    return value
