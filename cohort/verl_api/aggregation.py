"""``agg_loss`` and the counts of the whole minibatch that make it exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.algorithms.masking import aggregate, counts

Count = int | float | Tensor


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """What verl calls ``global_batch_info``: the divisors of a whole minibatch, over all replicas.

    Attributes:
        tokens: tokens that train.
        rows: answers with such a token. (verl's number counts every answer.)
        horizon: the constant of ``seq-mean-token-sum-norm``.
    """

    tokens: Count
    rows: Count
    horizon: float | None = None

    def info(self) -> dict[str, Count | float | None]:
        """The keyword arguments of ``agg_loss``. Gradients are summed over replicas here, so ``dp_size`` is 1."""
        return {
            "dp_size": 1,
            "batch_num_tokens": self.tokens,
            "global_batch_size": self.rows,
            "loss_scale_factor": self.horizon,
        }


_WHOLE: ContextVar[GlobalBatch | None] = ContextVar("the minibatch that a policy loss is part of", default=None)


@contextmanager
def part_of(whole: GlobalBatch) -> Iterator[None]:
    """Inside, ``agg_loss`` divides by the counts of ``whole`` where it is given none."""
    token = _WHOLE.set(whole)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: Count | None = None,
    global_batch_size: Count | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Token losses as one number.

    Without counts it takes those of the minibatch that is being trained on, and outside of training those of
    ``loss_mask``. Different from verl: rows without a token are in no divisor, an empty mask gives 0 and not NaN, and
    in training ``seq-mean-token-sum-norm`` divides by ``actor.loss_scale_factor`` and not by the padded width of a
    micro-batch. Different from verl 0.5: there ``seq-mean-token-sum-norm`` is not divided by the rows.

    Args:
        loss_mat: token losses                        # (B, T)
        loss_mask: 1 or True where they count          # (B, T)
        loss_agg_mode: token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean or seq-mean-token-sum-norm.
        dp_size: replicas over which gradients will be averaged.
        batch_num_tokens: tokens of the whole minibatch.
        global_batch_size: answers of the whole minibatch.
        loss_scale_factor: constant of ``seq-mean-token-sum-norm``; None is T.

    Raises:
        ValueError: for an unknown mode, or several replicas and no counts.
    """
    mask = loss_mask.to(loss_mat.dtype)
    whole = _WHOLE.get()
    if whole is not None:
        batch_num_tokens = whole.tokens if batch_num_tokens is None else batch_num_tokens
        global_batch_size = whole.rows if global_batch_size is None else global_batch_size
        loss_scale_factor = whole.horizon if loss_scale_factor is None else loss_scale_factor
    if dp_size > 1 and (batch_num_tokens if loss_agg_mode == "token-mean" else global_batch_size) is None:
        raise ValueError("agg_loss: with dp_size > 1 it needs batch_num_tokens and global_batch_size")
    tokens, rows = counts(mask).unbind()
    tokens = tokens if batch_num_tokens is None else torch.as_tensor(batch_num_tokens).to(mask)
    rows = rows if global_batch_size is None else torch.as_tensor(global_batch_size).to(mask)
    horizon = mask.shape[-1] if loss_scale_factor is None else loss_scale_factor
    return aggregate(loss_mat, mask, loss_agg_mode, torch.stack([tokens, rows]), horizon=horizon) * dp_size
