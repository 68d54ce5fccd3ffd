"""Serves prompts. Which prompt stands where is the business of an ``Order``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cohort.data.order import permutation
from cohort.errors import UserError
from cohort.types import Group, Prompt


@runtime_checkable
class Order(Protocol):
    """Says which prompt comes when. Where it can, as a pure function of the position: then there is nothing to save."""

    def index(self, position: int) -> int:
        """Which prompt, counted from 0, is the one at ``position`` (prompts drawn since the run began)."""
        ...


@runtime_checkable
class ObservingOrder(Order, Protocol):
    """An order that follows what the run has seen. It must not change between two calls of ``observe``."""

    def observe(self, groups: Sequence[Group], position: int) -> None:
        """The groups of a finished step, with scores; the next step starts at ``position``."""
        ...

    def state(self) -> dict[str, Any]:
        """What a resumed run must know, as JSON can hold it."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``."""
        ...


class Epochs:
    """Every prompt once per epoch. Position p is prompt ``p % count`` of epoch ``p // count``.

    Args:
        count: prompts in an epoch.
        seed: names the permutations, one for each epoch.
        shuffle: False keeps the order of the file in every epoch.
    """

    def __init__(self, count: int, *, seed: int = 0, shuffle: bool = True) -> None:
        self.count = count
        self.seed = seed
        self.shuffle = shuffle
        self._order = lru_cache(maxsize=2)(self._epoch_order)

    def index(self, position: int) -> int:
        """Which prompt stands at ``position``."""
        epoch, offset = divmod(position, self.count)
        return int(self._order(epoch)[offset]) if self.shuffle else offset

    def _epoch_order(self, epoch: int) -> np.ndarray:
        return permutation(self.count, seed=self.seed, epoch=epoch)


class PromptLoader:
    """Serves prompts epoch after epoch. Implements ``protocols.ObservingSource``.

    No prompt is dropped: a batch that reaches the end of an epoch goes on with the next one's, so it may hold a
    prompt twice, as two groups.

    Args:
        prompts: one epoch's prompts.
        seed: names the permutations.
        shuffle: False keeps the order of the file in every epoch.
        order: another order than that of ``Epochs``; ``seed`` and ``shuffle`` are not read then.

    Raises:
        UserError: if there are no prompts.
    """

    def __init__(
        self, prompts: Sequence[Prompt], *, seed: int = 0, shuffle: bool = True, order: Order | None = None
    ) -> None:
        if not prompts:
            raise UserError("the data has no prompts to train on")
        self.prompts = prompts
        self.order: Order = order or Epochs(len(prompts), seed=seed, shuffle=shuffle)

    def __len__(self) -> int:
        return len(self.prompts)

    def batch(self, position: int, size: int) -> list[Prompt]:
        """The ``size`` prompts from ``position`` on (prompts drawn since the run began)."""
        return [self.prompts[self.index(p)] for p in range(position, position + size)]

    def index(self, position: int) -> int:
        """Index into ``prompts`` of the prompt at ``position``.

        Raises:
            UserError: if the order points outside the prompts.
        """
        index = self.order.index(position)
        if not isinstance(index, int) or not 0 <= index < len(self.prompts):
            raise UserError(
                f"{type(self.order).__name__}.index({position}) is {index!r:.40}; with {len(self.prompts)} "
                f"prompts it must be a whole number from 0 to {len(self.prompts) - 1}"
            )
        return index

    def observe(self, groups: Sequence[Group], position: int) -> None:
        """Tells the order what a step has seen, if it wants to know."""
        if isinstance(self.order, ObservingOrder):
            self.order.observe(groups, position)

    def state(self) -> dict[str, Any]:
        """What the order follows; empty where it is a function of seed and position alone."""
        return self.order.state() if isinstance(self.order, ObservingOrder) else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``."""
        if isinstance(self.order, ObservingOrder):
            self.order.load_state(state)
