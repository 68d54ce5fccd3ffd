"""Metric values that know how to merge, so that nothing is ever reduced by the look of its name.

metrics = {"actor/pg_loss": Sum(0.2), "response_length/max": Max(31)}
merge(metrics, other)          # across micro-batches, minibatches and ranks
read(metrics)                  # {"actor/pg_loss": 0.2, ...}: plain floats for a tracker
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mean:
    """A weighted mean, kept as a total and a weight."""

    total: float
    weight: float = 1.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """The mean of ``values``; NaN when there are none."""
        items = list(values)
        return cls(math.fsum(items), float(len(items)))

    def merge(self, other: Mean) -> Mean:
        """Both sets of observations together."""
        return Mean(self.total + other.total, self.weight + other.weight)

    def read(self) -> float:
        """The mean, NaN where nothing was observed."""
        return self.total / self.weight if self.weight else math.nan


@dataclass(frozen=True)
class Sum:
    """A total; parts add up."""

    total: float

    def merge(self, other: Sum) -> Sum:
        """The sum of both."""
        return Sum(self.total + other.total)

    def read(self) -> float:
        """The total."""
        return self.total


@dataclass(frozen=True)
class Max:
    """The largest observation."""

    value: float

    def merge(self, other: Max) -> Max:
        """The larger of the two; NaN wins, so that it is seen."""
        return Max(math.nan if math.isnan(self.value) or math.isnan(other.value) else max(self.value, other.value))

    def read(self) -> float:
        """The maximum."""
        return self.value


@dataclass(frozen=True)
class Min:
    """The smallest observation."""

    value: float

    def merge(self, other: Min) -> Min:
        """The smaller of the two; NaN wins, so that it is seen."""
        return Min(math.nan if math.isnan(self.value) or math.isnan(other.value) else min(self.value, other.value))

    def read(self) -> float:
        """The minimum."""
        return self.value


@dataclass(frozen=True)
class Last:
    """A state, such as a learning rate: the newest observation stands."""

    value: float

    def merge(self, other: Last) -> Last:
        """The newer of the two."""
        return other

    def read(self) -> float:
        """The newest value."""
        return self.value


Metric = Mean | Sum | Max | Min | Last
Metrics = dict[str, Metric]


def merge(into: Metrics, other: Mapping[str, Metric]) -> Metrics:
    """Merges ``other`` into ``into``, name by name, and returns ``into``.

    Raises:
        TypeError: if a name stands for two kinds of metric.
    """
    for name, metric in other.items():
        present = into.get(name)
        if present is None:
            into[name] = metric
        elif type(present) is type(metric):
            into[name] = present.merge(metric)  # pyright: ignore[reportArgumentType]
        else:
            raise TypeError(f"metric {name!r} is a {type(present).__name__} and a {type(metric).__name__}")
    return into


def read(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Plain numbers for a tracker."""
    return {name: metric.read() for name, metric in metrics.items()}


def summary(prefix: str, values: Iterable[float]) -> Metrics:
    """``prefix/mean``, ``/max`` and ``/min`` of the values; empty when there are none."""
    items = list(values)
    if not items:
        return {}
    return {f"{prefix}/mean": Mean.of(items), f"{prefix}/max": Max(max(items)), f"{prefix}/min": Min(min(items))}
