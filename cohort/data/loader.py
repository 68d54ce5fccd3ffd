"""The order of prompts: a pure function of seed and position, so there is nothing to save and resume."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from cohort.data.order import permutation
from cohort.errors import UserError
from cohort.types import Prompt


class PromptLoader:
    """Serves prompts epoch after epoch. Implements ``protocols.PromptSource``.

    Position p is prompt ``p % len`` of epoch ``p // len``. Each epoch has its own permutation. No prompt
    is dropped: a batch that reaches the end of an epoch goes on with the next one's, so it may hold a
    prompt twice, as two groups.

    Args:
        prompts: one epoch's prompts.
        seed: names the permutations.
        shuffle: False keeps the order of the file in every epoch.

    Raises:
        UserError: if there are no prompts.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int = 0, shuffle: bool = True) -> None:
        if not prompts:
            raise UserError("the data has no prompts to train on")
        self.prompts = prompts
        self.seed = seed
        self.shuffle = shuffle
        self._order = lru_cache(maxsize=2)(self._epoch_order)

    def __len__(self) -> int:
        return len(self.prompts)

    def batch(self, position: int, size: int) -> list[Prompt]:
        """The ``size`` prompts from ``position`` on (prompts drawn since the run began)."""
        return [self.prompts[self.index(p)] for p in range(position, position + size)]

    def index(self, position: int) -> int:
        """Index into ``prompts`` of the prompt at ``position``."""
        epoch, offset = divmod(position, len(self.prompts))
        return int(self._order(epoch)[offset]) if self.shuffle else offset

    def _epoch_order(self, epoch: int) -> np.ndarray:
        return permutation(len(self.prompts), seed=self.seed, epoch=epoch)
