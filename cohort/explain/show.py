"""Explanations for the terminal, as rich renderables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cohort.explain.catalogue import KINDS, WORKED
from cohort.explain.entries import Explanation

CODE = re.compile(r"(``[^`]+``|`[^`]+`)")
LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


def lines(found: Sequence[Explanation]) -> Iterator[RenderableType]:
    """Several explanations of one name, one after another."""
    for number, explanation in enumerate(found):
        if number:
            yield ""
        yield from _one(explanation)


def overview() -> Iterator[RenderableType]:
    """Every name by kind."""
    for kind, names in KINDS.items():
        yield Text(f"{kind}s" if kind != "term of the step" else "terms of the step", style="bold")
        yield Padding(Text(", ".join(names)), (0, 0, 1, 2))
    yield Text.assemble(
        ("cohort explain NAME", "cyan"), " explains one;  ",
        (f"cohort explain {WORKED} --rewards 1,0,1 --estimator grpo", "cyan"), " works an example.",
    )  # fmt: skip


def prose(text: str) -> Text:
    """Text of a docstring or page, with its code in colour."""
    out = Text()
    for part in CODE.split(LINK.sub(r"\1", text)):
        out.append(part.strip("`"), style="cyan") if CODE.fullmatch(part) else out.append(part)
    return out


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> Table:
    """A plain table; ``numbers`` are flush right."""
    made = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for place, column in enumerate(columns):
        if numbers:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, style="cyan" if place == 0 else "", no_wrap=place == 0, overflow="fold")
    for row in rows:
        made.add_row(*(cell if numbers else prose(cell) for cell in row))
    return made


def _one(said: Explanation) -> Iterator[RenderableType]:
    yield Text.assemble((said.name, "bold"), (f"  {said.kind}", "dim"))
    yield prose(said.summary)
    if said.kind == "metric":
        yield _labelled("Healthy", said.healthy or "no range; it depends on the task")
        yield from map(prose, said.details)
        return
    if said.parts:
        yield from _parts(said)
    else:
        if said.formula:
            yield Padding(Text(said.formula, style="green"), (1, 0, 1, 4), expand=False)
        yield from map(prose, said.details)
        if said.paper:
            yield _labelled("Paper", said.paper)
        if said.wrong:
            yield _labelled("Wrong choice when", said.wrong)
    if said.settings:
        yield ""
        yield table(
            ("key", "preset" if said.parts else "default", "meaning"),
            ((s.key, s.default, s.meaning) for s in said.settings),
        )
    if said.options:
        yield ""
        yield table((f"in {said.by}", "default", "meaning"), said.options)
    if said.metrics:
        yield _labelled("Logged", ", ".join(f"`{name}`" for name in said.metrics))


def _parts(said: Explanation) -> Iterator[RenderableType]:
    for role, part in said.parts:
        yield ""
        if part.name == said.name:  # find() has it too
            yield Text.assemble((f"{role}: ", "dim"), (part.name, "bold"), ("  below", "dim"))
            continue
        yield Text.assemble((f"{role}: ", "dim"), (part.name, "bold"), (f"  cohort explain {part.name}", "dim"))
        yield prose(part.summary)
        if part.formula:
            yield Padding(Text(part.formula, style="green"), (0, 0, 0, 4), expand=False)
        if part.paper:
            yield _labelled("Paper", part.paper)
        if part.wrong:
            yield _labelled("Wrong choice when", part.wrong)


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}: ", "bold")).append_text(prose(text))
