"""The table at the end of a run: held-out numbers before and after, with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from cohort.tracking import wording

if TYPE_CHECKING:
    from cohort.trainer.evaluate import Evaluation, Summary


@dataclass(frozen=True)
class Line:
    """One row of the table; None where it was not measured."""

    label: str
    before: str | None
    after: str | None
    change: str


def lines(first: Evaluation | None, last: Evaluation) -> list[Line]:
    """The rows: accuracy sampled and greedy, answer length, share that ends, share that parses."""
    found: list[Line] = []
    several = len(last.summaries) > 1
    for after in last.summaries:
        name = f"{after.data_source}: " if several else ""
        before = _of(first, after.data_source)
        temperature = ", sampled" if last.greedy else ""
        found.append(_mean(f"{name}{what(after)}{temperature}", before, after))
        if last.greedy:
            greedy = _of(last.greedy, after.data_source)
            if greedy:
                found.append(
                    _mean(f"{name}{what(after)}, greedy", _of(first and first.greedy, after.data_source), greedy)
                )
        found.append(_plain(f"{name}answer length", before, after, lambda s: s.length, share=False))
        found.append(_plain(f"{name}ends by itself", before, after, lambda s: s.ended, share=True))
        if after.parsed is not None:
            found.append(_plain(f"{name}answer parses", before, after, lambda s: s.parsed, share=True))
    return found


def what(summary: Summary) -> str:
    """Accuracy where every value is right or wrong, else the mean of the graded score."""
    return "accuracy" if summary.binary else f"mean {summary.variable}"


def table(found: list[Line]) -> Table:
    """The rows as a table; without a validation before training there is one column of numbers."""
    paired = any(line.before for line in found)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    drawn.add_column("held-out prompts", no_wrap=True)
    if paired:
        drawn.add_column("before", justify="right")
    drawn.add_column("after" if paired else "result", justify="right", style="bold")
    if paired:
        drawn.add_column("change", justify="right", style="cyan")
    for line in found:
        cells = [line.before or "-", line.after or "-", line.change] if paired else [line.after or "-"]
        drawn.add_row(line.label, *cells)
    return drawn


def basis(last: Evaluation) -> str:
    """What the numbers rest on, in words."""
    told = []
    for summary in last.summaries:
        name = f"{summary.data_source}: " if len(last.summaries) > 1 else ""
        prompts, answers = wording.plural(summary.prompts, "prompt"), wording.plural(summary.answers, "answer")
        told.append(f"{name}{prompts}, {answers}")
    method = "Wilson" if all(summary.binary for summary in last.summaries) else "bootstrap for graded scores"
    return f"{'; '.join(told)}; in brackets the 95% interval ({method}, with the prompt as the unit)"


def _of(evaluation: Evaluation | None, source: str) -> Summary | None:
    return next((s for s in evaluation.summaries if s.data_source == source), None) if evaluation else None


def _mean(label: str, before: Summary | None, after: Summary) -> Line:
    change = ""
    if before:
        gain = after.interval.mean - before.interval.mean
        change = f"{100 * gain:+.1f} pts" if after.binary else f"{gain:+.3f}"
    told = [s and wording.interval(s.interval, binary=s.binary) for s in (before, after)]
    return Line(label, told[0], told[1], change)


def _plain(
    label: str, before: Summary | None, after: Summary, pick: Callable[[Summary], float | None], *, share: bool
) -> Line:
    old, new = pick(before) if before else None, pick(after)
    told = [None if x is None else wording.percent(x) if share else f"{x:,.1f} tokens" for x in (old, new)]
    if old is None or new is None:
        return Line(label, told[0], told[1], "")
    return Line(label, told[0], told[1], f"{100 * (new - old):+.1f} pts" if share else f"{new - old:+.1f}")
