"""What a field may say beyond its type: a range, and "the same as that other key"."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any


@dataclasses.dataclass(frozen=True)
class Range:
    """Legal numbers, from ``low`` to ``high``, both included unless ``above`` leaves ``low`` out."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether ``value`` is legal."""
        return (value > self.low if self.above else value >= self.low) and value <= self.high

    def nearest(self, value: float) -> float:
        """The legal number nearest to an illegal one where both ends are legal."""
        return self.high if value > self.high else self.low

    def words(self) -> str:
        """Reads after "a number"."""
        low = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        if self.high >= 2**53:
            return low if self.above else f"{low} up"
        return f"{low} up to {self.high:g}" if self.above else f"{low} to {self.high:g}"


Count = Annotated[int, Range(low=1)]
"""How many of something that must be there."""

Whole = Annotated[int, Range(low=0)]
"""How many of something that may be missing."""

Seed = Annotated[int, Range(low=0, high=2**63 - 1)]
"""Names a stream of random numbers."""

Every = Annotated[int, Range(low=-1)]
"""Every so many steps; 0 and -1 mean never."""

Cap = Annotated[int, Range(low=-1)]
"""At most so many; -1 means no cap."""

Positive = Annotated[float, Range(low=0, above=True)]
"""A number above 0."""

NonNegative = Annotated[float, Range(low=0)]
"""A number from 0 up."""

Share = Annotated[float, Range(low=0, high=1)]
"""A number from 0 to 1."""


def same_as(key: str, otherwise: Any) -> Any:
    """A field that takes the value of the dotted ``key`` where it is not given (or null).

    Args:
        key: the dotted key that is copied.
        otherwise: the value of a dataclass that is made by hand.
    """
    return dataclasses.field(default=otherwise, metadata={"same_as": key})
