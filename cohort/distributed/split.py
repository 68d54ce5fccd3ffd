"""Which replica computes which rows of a minibatch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.types import Batch


def split_rows(batch: Batch, replicas: int) -> list[Tensor]:
    """Deals the rows of ``batch`` to ``replicas``, whole groups where there are enough of them.

    A group that stays whole shares its prompt's computation. The heaviest goes first, to the
    replica with the fewest tokens, so the loads come out even; the deal is deterministic.

    Returns:
        One tensor of row indices per replica, ascending; empty where there are too few rows.
    """
    lengths = (batch.prompt_lengths + batch.response_lengths).tolist()
    groups = batch.group.tolist()
    units: dict[int, list[int]] = {}
    by_group = len(set(groups)) >= replicas
    for row, group in enumerate(groups):
        units.setdefault(group if by_group else row, []).append(row)
    hands: list[list[int]] = [[] for _ in range(replicas)]
    loads = [0] * replicas
    for rows in sorted(units.values(), key=lambda rows: (-sum(lengths[r] for r in rows), rows[0])):
        lightest = min(range(replicas), key=lambda i: (loads[i], i))
        hands[lightest] += rows
        loads[lightest] += sum(lengths[r] for r in rows)
    return [torch.tensor(sorted(rows), dtype=torch.long) for rows in hands]


def gather_rows(parts: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """Puts the results of the replicas back into the order of the whole batch."""
    order = torch.cat(list(rows))
    joined = torch.cat(list(parts))
    out = torch.empty_like(joined)
    out[order] = joined
    return out
