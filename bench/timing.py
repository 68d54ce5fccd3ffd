"""Clocks, and measurements of two sides that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Seconds(NamedTuple):
    """Wall time, and processor time of all threads; what other programs do shows in the first alone."""

    wall: float
    cpu: float

    @staticmethod
    def now() -> Seconds:
        """The clocks of this process."""
        return Seconds(time.perf_counter(), time.process_time())

    def passed(self) -> Seconds:
        """What has passed since."""
        now = Seconds.now()
        return Seconds(now.wall - self.wall, now.cpu - self.cpu)


class Spread(NamedTuple):
    """Least, middle and largest of some values."""

    low: float
    median: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of these values, at least one."""
        return Spread(min(values), statistics.median(values), max(values))

    def __str__(self) -> str:
        return f"{self.low:.2f} / {self.median:.2f} / {self.high:.2f}"


@dataclass
class Turns:
    """What Cohort and the other side took, turn by turn."""

    ours: list[Seconds] = field(default_factory=list)
    theirs: list[Seconds] = field(default_factory=list)

    def add(self, ours: Seconds, theirs: Seconds) -> None:
        """One more turn of each."""
        self.ours.append(ours)
        self.theirs.append(theirs)

    @property
    def ratio(self) -> Spread:
        """How many times as long the other side took, by the clock on the wall."""
        return Spread.of([b.wall / a.wall for a, b in zip(self.ours, self.theirs, strict=True)])

    @property
    def cpu_ratio(self) -> Spread:
        """The same in processor seconds."""
        return Spread.of([b.cpu / a.cpu for a, b in zip(self.ours, self.theirs, strict=True)])

    @property
    def our_median(self) -> Seconds:
        """The middle of our times."""
        return Seconds(*map(statistics.median, zip(*self.ours, strict=True)))

    @property
    def their_median(self) -> Seconds:
        """The middle of theirs."""
        return Seconds(*map(statistics.median, zip(*self.theirs, strict=True)))

    def __str__(self) -> str:
        ours, theirs = self.our_median, self.their_median
        return (
            f"Cohort {ours.wall:.2f} s (processor {ours.cpu:.2f}), other {theirs.wall:.2f} s "
            f"(processor {theirs.cpu:.2f}), ratio {self.ratio}, of processor seconds {self.cpu_ratio}"
        )
