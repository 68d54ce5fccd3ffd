"""Choices that only the whole minibatch can make, made before it is split into micro-batches or over replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.protocols import Policy, TokenStats
from cohort.trainer.evidence import OLD_STATISTICS
from cohort.types import Experience

PRIME = 1_000_003
"""Keeps seed, step and update apart in the number that names the chance."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Runs before each update.

    Where the choice depends on the current policy it takes one pass without gradient; the first update of a step has
    that pass behind it already.

    Attributes:
        select: a policy loss's ``select`` with its options bound; its result reaches the loss as ``selected``.
        token_mask: ``fn(entropy, mask) -> (b, T)``, 1 where a token's policy loss counts (top-entropy tokens).
        seed: names the chance that ``select`` may use.
    """

    select: Callable[..., Tensor] | None = None
    token_mask: Callable[[Tensor, Tensor], Tensor] | None = None
    seed: int = 0

    @property
    def needs(self) -> frozenset[str]:
        """What the pass before the first update must give."""
        wanted = {"old_log_probs"} | ({"entropy"} if self.token_mask else set())
        return OLD_STATISTICS & wanted

    def __call__(
        self, minibatch: Experience, actor: Policy, *, known: TokenStats | None, step: int, update: int
    ) -> Experience:
        """``minibatch`` with the choices in its ``weights`` and ``extras``.

        Args:
            minibatch: the rows of one optimiser step.
            actor: gives the current log-probs where they are not known.
            known: its statistics of these rows under the present weights, None where they have changed since.
            step: training steps finished; with ``update`` it names the chance.
            update: optimiser steps of this training step so far.
        """
        stats = known or actor.log_probs(minibatch.batch, entropy=self.token_mask is not None)
        if self.token_mask:
            assert stats.entropy is not None
            chosen = self.token_mask(stats.entropy, minibatch.mask)
            minibatch = replace(minibatch, weights=chosen if minibatch.weights is None else chosen * minibatch.weights)
        if self.select:
            old = stats.log_probs if minibatch.old_log_probs is None else minibatch.old_log_probs
            generator = torch.Generator().manual_seed(((self.seed * PRIME + step) * PRIME + update) % 2**63)
            uniforms = torch.rand(minibatch.mask.shape, generator=generator)
            selected = self.select(stats.log_probs, old, minibatch.advantages, minibatch.mask, uniforms)
            minibatch = replace(minibatch, extras={**minibatch.extras, "selected": selected})
        return minibatch
