"""Stored samples for a person: the steps of a run, and the answers of a group side by side."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cohort.tracking.colours import Colouring, printable, tokens
from cohort.tracking.samples import MODEL, Outcome, Sample, read_outcomes
from cohort.tracking.scalars import cohorts, outcome_scalars, verdict
from cohort.tracking.wording import brief, percent, plural, shortened

NARROWEST, GAP = 44, 3
"""Columns that an answer needs, and columns between two answers."""


@dataclass(frozen=True, kw_only=True)
class View:
    """How answers are shown.

    Attributes:
        colouring: what the colours of tokens say.
        colours: styles can be seen; otherwise levels are written out.
        width: columns of the terminal.
        answers: answers per group, 0 shows all: the best, the worst, and others by chance.
        tokens: tokens per answer, the first and the last; 0 shows all.
        seed: names the random choices.
    """

    colouring: Colouring
    colours: bool
    width: int
    answers: int = 8
    tokens: int = 300
    seed: int = 0


# --- the steps of a run -----------------------------------------------------------------------


def step_table(folder: Path, steps: Sequence[int]) -> Table:
    """One row per step: rewards, groups with a signal, lengths."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("step", "answers", "reward", "signal", "cut off", "length", "longest", "unscorable"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step in steps:
        outcomes = read_outcomes(folder, step)
        found = outcome_scalars(outcomes)
        table.add_row(
            str(step),
            f"{len(outcomes):,}",
            brief(found["critic/score/mean"]) if "critic/score/mean" in found else "-",
            f"{found['training/groups_with_signal']:.0f}/{found['training/groups']:.0f}",
            percent(found["response_length/clip_ratio"]),
            brief(found["response_length/mean"]),
            f"{found['response_length/max']:.0f}",
            f"{found['training/unscorable']:.0f}",
        )
    return table


# --- choosing ---------------------------------------------------------------------------------


def choose_groups(outcomes: Sequence[Outcome], *, seed: int) -> list[tuple[str, int]]:
    """(label, group): the group with the best mean score, the worst one, and a random one of the others.

    Groups that are equally good are drawn from, so another seed shows other groups.
    """
    groups = cohorts(outcomes)
    draw = random.Random(seed)
    means = {group: _mean(members) for group, members in groups.items()}
    graded = {group: mean for group, mean in means.items() if mean is not None}
    chosen: list[tuple[str, int]] = []
    if graded and max(graded.values()) > min(graded.values()):
        for label, target in (("best", max(graded.values())), ("worst", min(graded.values()))):
            chosen.append((label, draw.choice([group for group, mean in graded.items() if mean == target])))
    others = [group for group in groups if group not in {group for _, group in chosen}]
    return chosen + ([("random", draw.choice(others))] if others else [])


def _mean(outcomes: Sequence[Outcome]) -> float | None:
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    return float(np.mean(scores)) if scores else None


def choose_answers(samples: Sequence[Sample], *, most: int, seed: int) -> list[Sample]:
    """Best first, ungraded last; of more than ``most`` the best, the worst and others by chance."""
    ranked = sorted(samples, key=lambda s: (s.score is None, -(s.score or 0.0), s.sample))
    if not 0 < most < len(ranked):
        return ranked
    if most == 1:
        return ranked[:1]
    graded = [i for i, s in enumerate(ranked) if s.score is not None] or [0, len(ranked) - 1]
    ends = {graded[0], graded[-1]}
    others = [i for i in range(len(ranked)) if i not in ends]
    return [ranked[i] for i in sorted(ends | set(random.Random(seed).sample(others, most - len(ends))))]


# --- a group ----------------------------------------------------------------------------------


def draw_group(label: str, samples: Sequence[Sample], view: View) -> list[RenderableType]:
    """A group: its question, then its answers, side by side where there is room.

    Args:
        label: why it is shown, may be empty.
        samples: all of its samples.
        view: how.
    """
    shown = choose_answers(samples, most=view.answers, seed=view.seed)
    lines: list[RenderableType] = [_heading(label, samples), *_question(samples[0], view.width)]
    if len(shown) < len(samples):
        told = f"{len(shown)} of {len(samples)} answers; --answers 0 shows all"
        lines.append(Text(told, style="dim"))
    columns = min(len(shown), max(1, (view.width + GAP) // (NARROWEST + GAP)))
    grid = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    width = (view.width - GAP * (columns - 1)) // columns
    for _ in range(columns):
        grid.add_column(width=width, overflow="fold")
    for start in range(0, len(shown), columns):
        cells = [_answer(sample, view) for sample in shown[start : start + columns]]
        grid.add_row(*cells, *[""] * (columns - len(cells)))
        grid.add_row(*[""] * columns)
    return [*lines, Text(), grid]


def _heading(label: str, samples: Sequence[Sample]) -> Text:
    first = samples[0]
    mean = _mean([sample.outcome for sample in samples])
    said = verdict([sample.outcome for sample in samples]).replace("_", " ")
    facts = [f"row {first.row} of {printable(first.data_source)}", plural(len(samples), "answer"), said]
    facts.insert(2, "no score" if mean is None else f"mean score {brief(mean)}")
    title = f"{label} group: {first.group}" if label else f"group {first.group}"
    return Text.assemble((title, "bold reverse"), "  ", (", ".join(facts), "dim"))


def _question(sample: Sample, width: int) -> list[Text]:
    key = sample.ground_truth
    told = "" if key is None else f"   [{printable(shortened(str(key), 60))}]"
    prompt = printable(shortened(sample.prompt.strip(), 8 * width))
    lines = [Text.assemble(("Q  ", "bold"), prompt, (told, "dim"), overflow="fold")]
    if sample.baseline_response is not None:
        score = "no score" if sample.baseline_score is None else f"score {brief(sample.baseline_score)}"
        answer = printable(shortened(sample.baseline_response.strip(), 2 * width))
        lines.append(Text.assemble(("greedy  ", "bold"), f"{score}  ", answer, overflow="fold"))
    return lines


def _answer(sample: Sample, view: View) -> Stack:
    """One answer: what it was worth, then its tokens."""
    colour = "yellow" if sample.score is None else "green" if sample.score > 0 else "red"
    score = "no score" if sample.score is None else f"score {brief(sample.score)}"
    ending = ("yellow" if sample.finish_reason != "stop" else "dim") if view.colours else ""
    head = Text.assemble(
        (f"#{sample.sample}", "bold underline"),
        "  ",
        (score, f"bold {colour}"),
        "  ",
        (sample.finish_reason, ending),
        (f"  {plural(len(sample.author), 'token')}", "dim"),
    )
    lines = [head, *(Text(line, style="dim") for line in _facts(sample))]
    missing = view.colouring.missing(sample)
    if missing:
        lines.append(Text(missing, style="yellow"))
    if sample.pieces is None:
        why = "not recorded in this file" if "pieces" in sample.unrecorded else "not recorded by this run"
        lines.append(Text(f"texts of tokens: {why}; the answer, and the ids", style="yellow"))
        lines.append(Text(printable(sample.response), overflow="fold"))
    shown = tokens(sample, None if missing else view.colouring, most=view.tokens, colours=view.colours)
    return Stack(*lines, shown)


def _facts(sample: Sample) -> list[str]:
    """What is known of an answer beside its score, a line each."""
    facts: list[str] = []
    if sample.unscorable_reason:
        facts.append(printable(sample.unscorable_reason.strip().splitlines()[-1]))
    if sample.reward_parts:
        facts.append("parts  " + "  ".join(f"{printable(k)} {_part(v)}" for k, v in sample.reward_parts.items()))
    if not sample.trained:
        return [*facts, "did not train"]
    written = [author == MODEL for author in sample.author]
    facts.append(f"advantage  {_range(sample.advantages, written)}")
    if sample.rewards is not None and sample.score is not None:
        total = sum(reward for reward, own in zip(sample.rewards, written, strict=True) if own)
        if abs(total - sample.score) > 1e-6:
            facts.append(f"reward after shaping  {brief(total)}")
    for name, column in (("value", sample.values), ("return", sample.returns), ("weight", sample.weights)):
        if column is not None:
            facts.append(f"{name}  {_range(column, written)}")
    if sample.keep is not None:
        kept = sum(bool(k) and own for k, own in zip(sample.keep, written, strict=True))
        if kept < sum(written):
            facts.append(f"{kept} of {plural(sum(written), 'token')} trained; a rule left the others out")
    return facts


def _part(value: object) -> str:
    return brief(float(value)) if isinstance(value, (int, float)) else printable(shortened(str(value), 40))


def _range(column: Sequence[float] | None, written: Sequence[bool]) -> str:
    """One number where all tokens have the same, else the mean and the limits."""
    if column is None:
        return "not recorded"
    values = [value for value, own in zip(column, written, strict=True) if own]
    if not values:
        return "-"
    if max(values) - min(values) < 1e-6:
        return brief(values[0])
    return f"{brief(float(np.mean(values)))} ({brief(min(values))} to {brief(max(values))})"
