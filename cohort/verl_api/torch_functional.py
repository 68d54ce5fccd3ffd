"""The masked reductions of ``verl.utils.torch_functional``, which user code calls as ``verl_F``.

Over what is passed in: inside a loss that is a micro-batch. They do for numbers to log; a loss should use ``agg_loss``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.algorithms import masking


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Sum over the mask; what stands outside does not matter, NaN included."""
    return masking.masked_sum(values, _like(mask, values), axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Mean over the mask. verl adds 1e-8 to the divisor; here an empty mask gives exactly 0."""
    return masking.masked_mean(values, _like(mask, values), axis)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance over the mask. verl raises where one value or none is left; here that is 0."""
    mask = _like(mask, values)
    variance = masking.masked_var(values, mask)
    count = mask.sum()
    return variance if unbiased else variance * (count - 1).clamp(min=0) / count.clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Values with mean 0 and variance 1 over the mask; what stands outside is transformed alike."""
    return masking.whiten(values, _like(mask, values), shift_mean=shift_mean)


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return torch.as_tensor(mask).to(values.dtype)
