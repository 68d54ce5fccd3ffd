"""Statistics of a whole batch without gradient, micro-batch by micro-batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cohort.models.forward import token_stats
from cohort.models.layout import Layout
from cohort.models.micro import Budget, cut
from cohort.protocols import TokenStats
from cohort.types import Batch


class Collector:
    """Puts the statistics of micro-batches back into the order of their batch, on its device.

    Args:
        batch: the batch that was cut.
    """

    def __init__(self, batch: Batch) -> None:
        self.device = batch.mask.device
        self.parts: list[tuple[Tensor, TokenStats]] = []
        self.shape = batch.mask.shape

    def add(self, rows: Tensor, stats: TokenStats) -> None:
        """The statistics of ``rows``; gradients are cut."""
        values = {name: None if x is None else x.detach().to(self.device) for name, x in vars(stats).items()}
        self.parts.append((rows.to(self.device), TokenStats(**values)))  # pyright: ignore[reportArgumentType]

    def stats(self) -> TokenStats:
        """The statistics of all rows; what no part had is None."""
        if not self.parts:
            return TokenStats(log_probs=torch.zeros(self.shape, device=self.device))
        order = torch.cat([rows for rows, _ in self.parts])

        def joined(name: str) -> Tensor | None:
            columns = [vars(stats)[name] for _, stats in self.parts]
            if columns[0] is None:
                return None
            values = torch.cat(columns)
            return torch.empty_like(values).index_copy(0, order, values)

        log_probs = joined("log_probs")
        assert log_probs is not None
        return TokenStats(
            log_probs=log_probs,
            entropy=joined("entropy"),
            sum_pi_squared=joined("sum_pi_squared"),
            hidden=joined("hidden"),
        )


@torch.no_grad()
def score(
    model: nn.Module,
    batch: Batch,
    *,
    temperature: float,
    layout: Layout,
    budget: Budget,
    entropy: bool = False,
    sum_pi_squared: bool = False,
    hidden: bool = False,
) -> TokenStats:
    """``token_stats`` of every row within ``budget``, without gradient, on the batch's device."""
    collected = Collector(batch)
    for rows in cut(batch, budget=budget, layout=layout):
        stats = token_stats(
            model,
            batch.select(rows.to(batch.ids.device)),
            temperature=temperature,
            layout=layout,
            entropy=entropy,
            sum_pi_squared=sum_pi_squared,
            hidden=hidden,
        )
        collected.add(rows, stats)
    return collected.stats()
