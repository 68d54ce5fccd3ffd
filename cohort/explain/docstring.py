"""Docstrings of the house, taken apart: summary, formula, paragraphs, arguments, paper, wrong choice."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

HEADER = re.compile(
    r"^(Args|Attributes|Shapes|Paper|Wrong choice when|Raises|Returns|Diagnostics)(?:, as in verl)?:\s*(.*)$"
)
INLINE = re.compile(r"``([^`]* [^`]*)``")


@dataclass(frozen=True, kw_only=True)
class Docstring:
    """What a docstring says.

    Attributes:
        summary: its first paragraph.
        formula: its indented blocks, line by line; else the code of the summary.
        paragraphs: what else stands before the sections.
        arguments: name -> meaning.
        sections: ``Paper``, ``Wrong choice when``, ``Diagnostics``, ... as one line each.
    """

    summary: str
    formula: str
    paragraphs: tuple[str, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """Where it comes from."""
        return self.sections.get("Paper", "")

    @property
    def wrong(self) -> str:
        """When it is the wrong choice."""
        return self.sections.get("Wrong choice when", "")


def parse(text: str | None) -> Docstring:
    """The parts of a docstring; all are empty for None."""
    prose: list[str] = []
    formula: list[str] = []
    arguments: dict[str, str] = {}
    sections: dict[str, str] = {}
    for header, lines in _blocks(inspect.cleandoc(text or "")):
        if header in ("Args", "Attributes"):
            arguments |= _arguments(lines)
        elif header:
            sections[header] = _joined(lines)
        elif all(line.startswith("    ") for line in lines):
            formula += [*([""] if formula else []), *inspect.cleandoc("\n".join(["", *lines])).splitlines()]
        else:
            prose.append(_joined(lines))
    summary = prose[0] if prose else ""
    if not formula:
        formula = INLINE.findall(summary)
    return Docstring(
        summary=summary,
        formula="\n".join(formula),
        paragraphs=tuple(prose[1:]),
        arguments=arguments,
        sections=sections,
    )


def clause(text: str, word: str) -> str:
    """The parts of ``text``, cut at semicolons, that name ``word``."""
    named = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return "; ".join(part.strip() for part in text.rstrip(".").split(";") if named.search(part))


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    """Header (empty for prose) and lines of each block; a block ends at an empty line or at the next header."""
    blocks: list[tuple[str, list[str]]] = []
    fresh = True
    for line in text.splitlines():
        if header := HEADER.match(line):
            blocks.append((header[1], [header[2]] if header[2] else []))
        elif not line.strip():
            fresh = True
            continue
        elif fresh or (line.startswith("    ") and not blocks[-1][0] and not blocks[-1][1][-1].startswith("    ")):
            blocks.append(("", [line]))
        else:
            blocks[-1][1].append(line)
        fresh = False
    return blocks


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if start := re.match(r"^    (\w+): (.*)$", line):
            name = start[1]
            found[name] = [start[2]]
        elif found:
            found[name].append(line)
    return {name: _joined(parts) for name, parts in found.items()}


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
