"""Numbers and model output as short, safe text for a terminal."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.trainer.evaluate import Interval


def number(value: float) -> str:
    """At most eight characters: 0.0072, 0.412, 23.1, 412, 3.2e-05, nan."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= 10_000 or 0 < size < 5e-5:
        return f"{value:.1e}"
    return f"{value:.{4 if size < 0.1 else 3 if size < 10 else 1 if size < 1000 else 0}f}"


def brief(value: float) -> str:
    """Three digits that matter and no zeros behind them: 0, 1, 0.875, -0.0787, 3.2e-05."""
    return f"{value:.3g}"


def large(value: float) -> str:
    """A count with a unit: 950, 4.2k, 1.3M."""
    for limit, divisor, unit in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if value < limit:
            return f"{value / divisor:.{0 if divisor == 1 else 1}f}{unit}"
    return f"{value:.1e}"


def percent(share: float, digits: int = 1) -> str:
    """0.4123 -> 41.2%."""
    return f"{100 * share:.{digits}f}%"


def duration(seconds: float) -> str:
    """0:07, 12:30, 3:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def interval(value: Interval, *, binary: bool) -> str:
    """41.2% (38.1 to 44.4) for a share, 0.412 (0.381 to 0.444) for other means; "-" where nothing was scored."""
    if math.isnan(value.mean):
        return "-"
    if binary:
        return f"{percent(value.mean)} ({100 * value.low:.1f} to {100 * value.high:.1f})"
    return f"{value.mean:.3f} ({value.low:.3f} to {value.high:.3f})"


def plural(count: int, noun: str) -> str:
    """1 answer, 2 answers."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def safe(text: str, *, newline: str) -> str:
    """Model output on one line: line ends are shown as ``newline``, control characters by their escape.

    An answer must not be able to steer the terminal it is shown in.
    """
    lines = (" ".join(line.split(" ")).rstrip() for line in text.strip().splitlines())
    joined = newline.join(line for line in lines if line)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)


def shortened(text: str, width: int) -> str:
    """``text`` cut in its middle to ``width`` characters: an answer's end is as telling as its start."""
    if len(text) <= width:
        return text
    tail = max((width - 5) // 2, 0)
    return f"{text[: width - 5 - tail]} ... {text[len(text) - tail :]}"


def block(text: str, width: int, lines: int) -> list[str]:
    """``text`` shortened and wrapped to at most ``lines`` lines of ``width`` characters."""
    for cut in range(lines * width, width, -width // 8):
        wrapped = textwrap.wrap(shortened(text, cut), width)
        if len(wrapped) <= lines:
            return wrapped
    return [shortened(text, width)]
