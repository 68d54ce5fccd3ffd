"""Reductions over the tokens that the model wrote, and the one function that divides a loss."""

import torch
from jaxtyping import Float
from torch import Tensor

Number = int | float

AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)


def zero_outside(x: Float[Tensor, "*shape"], mask: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``x`` where the mask is set, exactly 0 elsewhere, with exactly 0 gradient there.

    Multiplying by the mask would not do: 0 * NaN is NaN. Apply it to the *inputs* of a formula,
    because the derivative of ``exp`` at NaN is NaN whatever it is multiplied by later.

    Shapes: all alike.
    """
    return torch.where(mask > 0, x, torch.zeros_like(x))


def masked_sum(
    x: Float[Tensor, "*shape"], mask: Float[Tensor, "*shape"], axis: int | None = None
) -> Float[Tensor, "..."]:
    """Sum of ``x * mask`` over ``axis``, or over everything.

    Shapes: x and mask alike; the result has ``axis`` removed, or no axis at all.
    """
    kept = zero_outside(x, mask) * mask
    return kept.sum() if axis is None else kept.sum(axis)


def masked_mean(
    x: Float[Tensor, "*shape"], mask: Float[Tensor, "*shape"], axis: int | None = None
) -> Float[Tensor, "..."]:
    """Mean of ``x`` over the mask along ``axis``, or over everything; 0 where the mask is empty.

    Shapes: x and mask alike; the result has ``axis`` removed, or no axis at all.
    """
    weight = mask.sum() if axis is None else mask.sum(axis)
    return masked_sum(x, mask, axis) / _divisor(weight)


def masked_var(
    x: Float[Tensor, "*shape"], mask: Float[Tensor, "*shape"], axis: int | None = None
) -> Float[Tensor, "..."]:
    """Unbiased variance (divisor n - 1) of ``x`` over the mask; 0 where fewer than two values are left.

    Shapes: x and mask alike; the result has ``axis`` removed, or no axis at all.
    """
    mean = masked_mean(x, mask, axis)
    centred = zero_outside(x, mask) - (mean if axis is None else mean.unsqueeze(axis))
    weight = mask.sum() if axis is None else mask.sum(axis)
    return masked_sum(centred**2, mask, axis) / (weight - 1).clamp(min=1)


def whiten(
    x: Float[Tensor, "*shape"], mask: Float[Tensor, "*shape"], *, shift_mean: bool = True
) -> Float[Tensor, "*shape"]:
    """``(x - mean) / sqrt(var + 1e-8)`` with mean and unbiased variance over the mask.

    Positions outside the mask go through the same formula; ``zero_outside`` removes them.
    Fewer than two values whiten to 0: they say nothing about a spread.

    Args:
        x: the values.
        mask: which of them make up the mean and the variance.
        shift_mean: False keeps the mean: only the spread is normalised.

    Shapes: all alike.
    Paper: Engstrom et al. 2020, Implementation Matters in Deep Policy Gradients (2005.12729), section 2.
    """
    # Measured from the least value, equal values give exactly 0: their rounded mean, times 1e4, would not.
    least = torch.where(mask > 0, x.detach(), torch.inf).amin()
    above = x - torch.where(mask.any(), least, torch.zeros_like(least))
    mean = masked_mean(above, mask)
    white = (above - mean) * torch.rsqrt(masked_var(above, mask) + 1e-8)
    return white if shift_mean else white + masked_mean(x, mask)


def counts(mask: Float[Tensor, "B T"]) -> Float[Tensor, "2"]:
    """``(tokens, rows with a token)`` of a mask: what ``aggregate`` divides by.

    Counts of parts (micro-batches, ranks) add up to the counts of the whole.

    Shapes: mask (B, T) -> (2,).
    """
    return torch.stack([mask.sum(), (mask > 0).any(dim=1).to(mask.dtype).sum()])


def aggregate(
    per_token: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    mode: str,
    counts: Float[Tensor, "2"],
    *,
    horizon: Number | None = None,
) -> Float[Tensor, ""]:
    """The part of a minibatch's loss that these rows make up.

    With N tokens and G rows in the whole update minibatch, S_i the sum over row i's mask and n_i
    its tokens:

        token-mean               sum_i S_i / N
        token-sum                sum_i S_i
        seq-mean-token-sum       sum_i S_i / G
        seq-mean-token-mean      sum_i (S_i / n_i) / G
        seq-mean-token-sum-norm  sum_i S_i / (G * horizon)

    N and G come in through ``counts``, so the results of any split into micro-batches, on any
    number of ranks, add up to the result of the whole: no one divides by a number of
    micro-batches afterwards. Rows without a token are in neither numerator nor denominator, in
    every mode. An empty minibatch gives 0.

    Args:
        per_token: the values.
        mask: 1 where the model wrote the token.
        mode: one of ``AGGREGATIONS``.
        counts: ``counts()`` of the whole update minibatch, summed over all ranks.
        horizon: the constant of ``seq-mean-token-sum-norm``, in tokens: the longest response
            allowed. It is not taken from T, because the padded width changes from batch to batch.

    Shapes: per_token and mask (B, T), counts (2,) -> ().
    Paper: token-mean is Yu et al. 2025, DAPO (2503.14476), section 3.3; seq-mean-token-mean is Shao et al. 2024,
        DeepSeekMath (2402.03300), equation 3; seq-mean-token-sum-norm is Liu et al. 2025, Dr. GRPO (2503.20783),
        section 3.2; token-sum and seq-mean-token-sum come from verl, without a paper.
    Wrong choice when: seq-mean-token-mean and lengths differ widely, as it favours short right answers and long
        wrong ones; token-mean and a few very long answers should not outweigh the rest; token-sum and the batch
        size or the lengths change during training, as the size of the update follows them; seq-mean-token-sum and
        answers grow during training, as their gradients grow alike; seq-mean-token-sum-norm and a learning rate is
        carried over from another mode, as gradients are smaller by mean length over horizon.

    Raises:
        ValueError: for an unknown mode, or ``seq-mean-token-sum-norm`` without a positive horizon.
    """
    tokens, rows = _divisor(counts).unbind()
    if mode == "token-mean":
        return masked_sum(per_token, mask) / tokens
    if mode == "token-sum":
        return masked_sum(per_token, mask)
    if mode == "seq-mean-token-sum":
        return masked_sum(per_token, mask) / rows
    if mode == "seq-mean-token-mean":
        return masked_mean(per_token, mask, axis=1).sum() / rows
    if mode == "seq-mean-token-sum-norm":
        if horizon is None or horizon <= 0:
            raise ValueError(f"{mode} divides by a constant number of tokens: it needs horizon > 0, got {horizon}")
        return masked_sum(per_token, mask) / (rows * horizon)
    raise ValueError(f"aggregation {mode!r} is not one of {', '.join(AGGREGATIONS)}")


def _divisor(count: Tensor) -> Tensor:
    """``count`` with 1 in place of 0: what it divides is an empty sum, and stays 0."""
    return torch.where(count > 0, count, torch.ones_like(count))
