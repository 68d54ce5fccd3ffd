"""Orders of prompts by difficulty: from one end to all of them, evenly mixed, or by the run's own pass rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cohort.data.loader import Epochs
from cohort.data.order import permutation, uniforms
from cohort.types import Group, Prompt

STAGE = 2**32
"""Keeps the permutations of a stage apart from those of the epochs, which count from 0."""


class Curriculum:
    """From the easiest prompts to all of them, as a function of seed and position. Implements ``loader.Order``.

    The first ``length`` positions are cut into ``stages`` equal stages. Stage k of K (from 1) draws from the easiest
    k / (K + 1) of the prompts, each of them once per pass over that pool. After the last stage every prompt is drawn
    alike, once per epoch. Equal difficulties stand in random order.

    Idea: Bengio et al. 2009, Curriculum learning (ICML), with the growing pool of Platanios et al. 2019,
    Competence-based curriculum learning (arXiv 1903.09848). Wrong choice when: the difficulty says little about this
    model; see ``Adaptive``.

    Args:
        difficulty: of each prompt; larger is harder.
        seed: names the permutations.
        length: positions until every prompt is drawn alike.
        stages: K, how often the pool grows.
        hardest_first: start with the hardest prompts instead.
    """

    def __init__(
        self,
        difficulty: Sequence[float],
        *,
        seed: int,
        length: int,
        stages: int = 4,
        hardest_first: bool = False,
    ) -> None:
        self.ranked = ranked(difficulty, seed)
        if hardest_first:
            self.ranked = self.ranked[::-1]
        self.seed = seed
        self.length = length
        self.stages = stages
        self.epochs = Epochs(len(difficulty), seed=seed)
        self._pass = lru_cache(maxsize=2)(self._pass_order)

    def index(self, position: int) -> int:
        """Which prompt stands at ``position``."""
        if position >= self.length:
            return self.epochs.index(position - self.length)
        stage = position * self.stages // self.length
        start = -(-stage * self.length // self.stages)
        turn, offset = divmod(position - start, self.pool(stage))
        return int(self._pass(stage, turn)[offset])

    def pool(self, stage: int) -> int:
        """Prompts that stage ``stage`` (from 0) draws from."""
        return -(-(stage + 1) * len(self.ranked) // (self.stages + 1))

    def _pass_order(self, stage: int, turn: int) -> np.ndarray:
        pool = self.ranked[: self.pool(stage)]
        return pool[permutation(len(pool), seed=self.seed, epoch=(stage + 1) * STAGE + turn)]


class Mixed:
    """Every prompt once per epoch, and any stretch of it a fair mix of difficulties. Implements ``loader.Order``.

    The prompts are cut into classes of like size by difficulty; each epoch shuffles the classes and lets them take
    turns.

    Args:
        difficulty: of each prompt.
        seed: names the permutations.
        classes: how many difficulty classes take turns.
    """

    def __init__(self, difficulty: Sequence[float], *, seed: int, classes: int = 4) -> None:
        self.count = len(difficulty)
        self.seed = seed
        self.classes = np.array_split(ranked(difficulty, seed), min(classes, self.count))
        self._order = lru_cache(maxsize=2)(self._epoch_order)

    def index(self, position: int) -> int:
        """Which prompt stands at ``position``."""
        epoch, offset = divmod(position, self.count)
        return int(self._order(epoch)[offset])

    def _epoch_order(self, epoch: int) -> np.ndarray:
        streams = range((epoch + 1) * STAGE, (epoch + 1) * STAGE + len(self.classes))
        shuffled = [c[permutation(len(c), seed=self.seed, epoch=s)] for c, s in zip(self.classes, streams, strict=True)]
        turns = np.concatenate([(np.arange(len(c)) + 0.5) / len(c) for c in shuffled])
        first = permutation(self.count, seed=self.seed, epoch=epoch)  # which class begins a turn
        return np.concatenate(shuffled)[np.lexsort((first, turns))]


class Adaptive:
    """Prefers prompts that the model answers right sometimes. Implements ``loader.ObservingOrder``.

    A prompt's weight is 4 p (1 - p), at least ``floor``, with p its pass rate in this run: (right + 1) / (seen + 2), so
    that a prompt that was never drawn has weight 1. Older answers count less by ``discount`` at each visit. Each step
    draws by weight, no prompt twice before all have been drawn. What the weights follow is saved with the checkpoint.

    Idea: Foster et al. 2025, Learning to reason at the frontier of learnability (arXiv 2502.12272). Wrong choice when:
    the data is so large that prompts are hardly ever drawn again, so that there is nothing to know.

    Args:
        prompts: the prompts, told apart by their data row.
        seed: names the draws.
        floor: least weight of a prompt, so that what was too hard or too easy comes back.
        discount: what earlier answers to a prompt still count when it is answered again.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, floor: float = 0.05, discount: float = 0.5) -> None:
        self.places = {prompt.row: place for place, prompt in enumerate(prompts)}
        self.count = len(prompts)
        self.seed = seed
        self.floor = floor
        self.discount = discount
        self.started = 0  # position at which the present weights came into force
        self.seen = np.zeros(self.count)
        self.right = np.zeros(self.count)
        self._orders: dict[int, np.ndarray] = {}

    def index(self, position: int) -> int:
        """Which prompt stands at ``position``, which must not lie before the last step."""
        turn, offset = divmod(position - self.started, self.count)
        if turn not in self._orders:
            self._orders[turn] = self._draw(turn)
        return int(self._orders[turn][offset])

    def weights(self) -> np.ndarray:
        """What each prompt is drawn by  # (P,)."""
        rate = (self.right + 1) / (self.seen + 2)
        return np.maximum(4 * rate * (1 - rate), self.floor)

    def observe(self, groups: Sequence[Group], position: int) -> None:
        """Counts how many answers of each group were right; partly right ones count in part."""
        for group in groups:
            scores = [rollout.score.correctness for rollout in group.rollouts if rollout.score]
            known = [min(max(score, 0.0), 1.0) for score in scores if score is not None]
            place = self.places[group.prompt.row]
            if known:
                self.seen[place] = self.discount * self.seen[place] + len(known)
                self.right[place] = self.discount * self.right[place] + sum(known)
        self.started = position
        self._orders.clear()

    def state(self) -> dict[str, Any]:
        """The counts of the prompts that were seen, and where the present weights came into force."""
        rows = {row: (self.seen[i], self.right[i]) for row, i in self.places.items() if self.seen[i]}
        return {"started": self.started, "rows": [[row, float(a), float(b)] for row, (a, b) in rows.items()]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``; rows that are not in the data any more are left out."""
        self.started = state["started"]
        self.seen[:], self.right[:] = 0, 0
        for row, seen, right in state["rows"]:
            if row in self.places:
                self.seen[self.places[row]], self.right[self.places[row]] = seen, right
        self._orders.clear()

    def _draw(self, turn: int) -> np.ndarray:
        """A weighted order without repeats: least -log(u) / w first (Efraimidis and Spirakis 2006)."""
        chance = uniforms(self.count, seed=self.seed, epoch=self.started * STAGE + turn)
        return np.argsort(-np.log(chance) / self.weights(), kind="stable")


def ranked(difficulty: Sequence[float], seed: int) -> np.ndarray:
    """The places of the prompts from the easiest to the hardest, equal ones in random order  # (P,)."""
    ties = permutation(len(difficulty), seed=seed, epoch=STAGE - 1)
    return np.lexsort((ties, np.asarray(difficulty, dtype=np.float64)))
