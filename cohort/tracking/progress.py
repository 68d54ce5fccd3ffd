"""The progress bar: one line at the bottom of a terminal, rewritten only when something happened.

There is no thread and no hidden cursor, so a debugger, a print in a reward and Ctrl-C find an ordinary terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from cohort.tracking import wording


class ProgressBar:
    """Steps done, share and time left.

    Args:
        console: where to draw; nothing is drawn unless it is a terminal.
        total: steps of the whole run.
        done: steps that were done before; their time is not counted.
        clock: seconds since some moment.
    """

    def __init__(
        self, console: Console, *, total: int, done: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.console = console
        self.total = total
        self.first = self.done = done
        self.clock = clock
        self.started = clock()
        self.shown = False
        self.drawn = console.is_terminal and not console.is_dumb_terminal

    def follow(self, *, total: int, done: int) -> None:
        """Takes the length of the run, where it was not known at first."""
        self.total = total
        self.first = self.done = done

    def restart(self) -> None:
        """Starts the clock: what came before is no guide to the speed of the steps."""
        self.started = self.clock()

    def advance(self, step: int) -> None:
        """Step ``step`` is done."""
        self.done = step
        self.show()

    def time_left(self) -> float | None:
        """Seconds until the last step at the mean speed so far, None before the first."""
        here = self.done - self.first
        return (self.clock() - self.started) / here * (self.total - self.done) if here else None

    def show(self, doing: str = "") -> None:
        """Draws the bar and leaves the cursor at its start, where the next line will be printed.

        Args:
            doing: what is going on, said in place of the time left.
        """
        if not self.drawn:
            return
        self.hide()
        if self.total == 0:  # not known yet
            if doing:
                self.console.print(Text(f"  {doing}", style="dim"), end="\r", no_wrap=True, overflow="crop", crop=True)
                self.shown = True
            return
        left = self.time_left()
        when = doing or ("first step" if left is None else f"{wording.duration(left)} left")
        tail = f"  {self.done}/{self.total}  {when}"
        width = max(min(self.console.width, 80) - len(tail) - 3, 5)
        full = round(width * self.done / max(self.total, 1))
        line = "#" if self.console.options.ascii_only else "━"
        rest = "-" if self.console.options.ascii_only else "─"
        bar = Text.assemble("  ", (line * full, "cyan"), (rest * (width - full), "dim"), (tail, "bold"))
        self.console.print(bar, end="\r", no_wrap=True, overflow="crop", crop=True)
        self.shown = True

    def hide(self) -> None:
        """Takes the bar away."""
        if self.shown:
            self.console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self.shown = False
