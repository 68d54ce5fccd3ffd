"""What a token's colour can say: who wrote it, its advantage, KL, entropy or ratio.

Every colouring sorts tokens into a few levels by fixed limits, so that one colour means the same in every step and
every run. Without colours a level is written out: ``{+2 text}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from cohort.tracking.samples import AUTHORS, MODEL, Sample
from cohort.tracking.wording import brief

UP = ("black on #b7e4c7", "black on #52b788", "white on #1b7a4b")
DOWN = ("black on #ffd6d6", "black on #ff8f8f", "white on #c1121f")
HEAT = ("black on #ffe8a3", "black on #ffb347", "white on #c1440e")
WRITERS = ("dim", "", "black on #a9d6e5", "black on #d8c4f0")

LEFT_OUT = "strike"
"""Style of the model's tokens that a rule kept from training."""


@dataclass(frozen=True, kw_only=True)
class Colouring:
    """One way to colour tokens.

    Attributes:
        name: how it is asked for.
        says: what the number of a token is.
        columns: what a sample must have for it.
        measure: the number of each token.
        limits: a token is on level n if its size is above n of them.
        both_ways: numbers below 0 have levels of their own.
        exponent: the limits are shown as ``exp(limit)``, the numbers being logarithms.
    """

    name: str
    says: str
    columns: tuple[str, ...]
    measure: Callable[[Sample], list[float]]
    limits: tuple[float, ...] = ()
    both_ways: bool = True
    exponent: bool = False

    def levels(self, sample: Sample) -> list[int]:
        """The level of each response token; 0 where the model did not write it."""
        if self.name == "author":
            return list(sample.author)
        values = zip(self.measure(sample), sample.author, strict=True)
        return [self._level(value) if author == MODEL else 0 for value, author in values]

    def _level(self, value: float) -> int:
        if math.isnan(value):
            return 0
        size = sum(abs(value) > limit for limit in self.limits)
        return -size if value < 0 and self.both_ways else 0 if value < 0 else size

    def style(self, level: int) -> str:
        """The style of a level."""
        if self.name == "author":
            return WRITERS[level]
        if level == 0:
            return ""
        return (UP if self.both_ways else HEAT)[level - 1] if level > 0 else DOWN[-level - 1]

    def mark(self, level: int) -> str:
        """The level as a word, for where there are no colours; empty for what is ordinary."""
        if self.name == "author":
            return "" if level == MODEL else AUTHORS[level]
        return "" if level == 0 else f"{level:+d}" if self.both_ways else str(level)

    def missing(self, sample: Sample) -> str:
        """Why the sample cannot be coloured this way; empty if it can."""
        for column in self.columns:
            if column in sample.unrecorded:
                return f"{column}: not recorded in this file"
            if getattr(sample, column) is None:
                return f"{column}: the step had none" if sample.trained else f"{column}: the answer did not train"
        return ""

    def legend(self, *, colours: bool) -> Text:
        """Two lines: what is shown, and what the levels mean."""
        legend = Text(f"tokens by {self.name} ({self.says})\n")
        if self.name == "author":
            words = [(AUTHORS[level], level) for level in range(1, len(AUTHORS))]
        else:
            steps = range(1, len(self.limits) + 1)
            up = [(f"above {self._limit(level)}", level) for level in steps]
            down = [(f"below {self._limit(-level)}", -level) for level in reversed(steps)] if self.both_ways else []
            words = [*down, *up]
        if colours:
            pieces = [Text(f" {word} ", style=self.style(level)) for word, level in words]
        elif self.name == "author":
            pieces = [Text(f"{{{word} ...}}" if self.mark(level) else f"{word} ...") for word, level in words]
        else:
            pieces = [Text(f"{{{self.mark(level)}}} {word}") for word, level in words]
        return legend.append_text(Text("  ").join(pieces))

    def _limit(self, level: int) -> str:
        limit = math.copysign(self.limits[abs(level) - 1], level)
        if self.exponent:
            return f"{math.exp(limit):.3g}"
        return "0" if limit == 0 else brief(limit)


def _column(values: Sequence[float] | None) -> list[float]:
    assert values is not None
    return list(values)


def _less(left: Sequence[float] | None, right: Sequence[float] | None) -> list[float]:
    return [a - b for a, b in zip(_column(left), _column(right), strict=True)]


COLOURINGS = {
    colouring.name: colouring
    for colouring in (
        Colouring(name="author", says="who wrote them", columns=(), measure=lambda s: [float(a) for a in s.author]),
        Colouring(
            name="advantage",
            says="what the update pushes up and down",
            columns=("advantages",),
            measure=lambda s: _column(s.advantages),
            limits=(0.0, 0.5, 1.5),
        ),
        Colouring(
            name="kl",
            says="log-prob less the reference's, in nats",
            columns=("log_probs", "ref_log_probs"),
            measure=lambda s: _less(s.log_probs, s.ref_log_probs),
            limits=(0.05, 0.3, 1.0),
        ),
        Colouring(
            name="entropy",
            says="of the distribution they were drawn from, in nats",
            columns=("entropy",),
            measure=lambda s: _column(s.entropy),
            limits=(0.1, 0.5, 1.5),
            both_ways=False,
        ),
        Colouring(
            name="ratio",
            says="the trainer's probability over the sampler's",
            columns=("log_probs",),
            measure=lambda s: _less(s.log_probs, s.rollout_log_probs),
            limits=(0.01, 0.1, 0.3),
            exponent=True,
        ),
    )
}
"""By the name that ``--colour`` takes."""


def tokens(sample: Sample, colouring: Colouring | None, *, most: int, colours: bool) -> Text:
    """The answer's tokens as text.

    Args:
        sample: the answer.
        colouring: how tokens are coloured, None shows them plain.
        most: show so many tokens, the first and the last; 0 shows all.
        colours: styles can be seen; otherwise levels are written out.
    """
    pieces = _pieces(sample)
    levels = colouring.levels(sample) if colouring else [0] * len(pieces)
    out = [sample.keep is not None and k == 0 and a == MODEL for k, a in zip(_keep(sample), sample.author, strict=True)]
    head = tail = 0
    if 0 < most < len(pieces):
        tail = most // 3
        head = most - tail
    text = Text(overflow="fold")
    for start, stop in ((0, head), (len(pieces) - tail, len(pieces))) if head else ((0, len(pieces)),):
        if start and head:
            text.append(f"\n... {len(pieces) - most:,} tokens ...\n", style="dim italic")
        _append(text, colouring, pieces[start:stop], levels[start:stop], out[start:stop], colours=colours)
    return text if pieces else Text("(no token)", style="dim")


def _append(
    text: Text,
    colouring: Colouring | None,
    pieces: Sequence[str],
    levels: Sequence[int],
    out: Sequence[bool],
    *,
    colours: bool,
) -> None:
    """Adds tokens; neighbours of one level go together."""
    first = 0
    for index in range(len(pieces) + 1):
        if index < len(pieces) and (levels[index], out[index]) == (levels[first], out[first]):
            continue
        if first == len(pieces):
            return
        said, level = "".join(pieces[first:index]), levels[first]
        marks = [colouring.mark(level) if colouring else "", "untrained" if out[first] else ""]
        mark = " ".join(filter(None, marks))
        if colours:
            style = colouring.style(level) if colouring else ""
            text.append(said, style=f"{style} {LEFT_OUT}".strip() if out[first] else style)
        else:
            text.append(f"{{{mark} {said}}}" if mark else said)
        first = index


def _keep(sample: Sample) -> Sequence[float]:
    return [1.0] * len(sample.author) if sample.keep is None else sample.keep


def _pieces(sample: Sample) -> list[str]:
    """The text of each token, safe to print; its id where the file does not have the text."""
    if sample.pieces is None:
        return [f"{token} " for token in sample.ids[sample.prompt_length :]]
    return [printable(piece) for piece in sample.pieces]


def printable(text: str) -> str:
    """``text`` without anything that steers a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
