"""The pages of the documentation, cut into fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = ROOT / "docs" / "config.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(
    r'^```(?P<language>[^\s`]*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Command:
    """A shell command, and what the page says it prints."""

    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A fenced block. One with a title is a file of that name."""

    language: str
    title: str | None
    text: str
    place: str

    def commands(self) -> list[Command]:
        """Of ``bash`` every line, of ``console`` the lines after ``$ ``; a backslash continues a line."""
        found: list[Command] = []
        for line in self.text.replace("\\\n", "").splitlines():
            if self.language == "bash" and line.strip():
                found.append(Command(line))
            elif self.language == "console" and line.startswith("$ "):
                found.append(Command(line[2:]))
            elif self.language == "console" and line.strip():
                found[-1] = Command(found[-1].text, (*found[-1].shown, line))
        return found


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["title"], m["text"], f"{page.name}:{text.count(chr(10), 0, m.start()) + 1}")
        for m in FENCE.finditer(text)
    ]


def file_of(page: str, title: str) -> str:
    """The text of the block called ``title`` on a page."""
    (found,) = [block.text for block in blocks(ROOT / page) if block.title == title]
    return found
