"""From hidden states to per-token statistics, a chunk of tokens at a time.

The (tokens, V) matrix of a whole micro-batch never exists: a chunk's logits are reduced at once, and are computed
again in the backward pass. The head is called as a module, so a bias or a LoRA adapter on it is part of the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_LOGITS = 1 << 21
"""Logits held at once on a CPU: the reductions read them from its last-level cache. Measured, see ``chunk_tokens``."""
CHUNK_LOGITS_ACCELERATOR = 1 << 27
CHUNK_TOKENS = (128, 4096)
"""Fewest and most tokens of a chunk: each chunk reads the head's weights once and adds to their gradient once."""


class HeadStats(NamedTuple):
    """Statistics of the next-token distribution at M positions; what was not asked for is None.

    Attributes:
        log_probs: log-probability of the target  # (M,)
        entropy: H = -sum_v pi(v) log pi(v)        # (M,)
        sum_pi_squared: sum_v pi(v)^2              # (M,)
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    sum_pi_squared: Tensor | None = None


def chunk_tokens(vocabulary: int, device: torch.device) -> int:
    """Tokens per chunk."""
    logits = CHUNK_LOGITS if device.type == "cpu" else CHUNK_LOGITS_ACCELERATOR
    fewest, most = CHUNK_TOKENS
    return min(max(logits // vocabulary, fewest), most)


def head_stats(
    head: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    *,
    vocabulary: int,
    temperature: float,
    entropy: bool = False,
    sum_pi_squared: bool = False,
) -> HeadStats:
    """Statistics of softmax(head(hidden) / temperature).

    Args:
        head: hidden states to logits.
        hidden: (M, D), M at least 1.
        targets: (M,).
        vocabulary: V, to size the chunks.
        temperature: divides the logits, as the sampler does.
        entropy: also the entropy.
        sum_pi_squared: also the collision probability.

    Returns:
        float32 statistics (float64 for a float64 model), differentiable in the head and the hidden states.
    """
    size = chunk_tokens(vocabulary, hidden.device)
    chunks = [
        _chunk(head, states, labels, temperature, entropy, sum_pi_squared)
        for states, labels in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    log_probs, entropies, squares = (torch.cat(column) for column in zip(*chunks, strict=True))
    return HeadStats(log_probs, entropies if entropy else None, squares if sum_pi_squared else None)


def _chunk(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float, entropy: bool, squares: bool
) -> tuple[Tensor, Tensor, Tensor]:
    first: list[_Sums] = []

    def compute(hidden: Tensor) -> Any:
        logits = head(hidden)
        if not first:  # the second run, in the backward pass, needs the logits alone
            first.append(_reduce(logits.detach(), temperature, entropy, squares))
        return _Statistics.apply(logits, targets, temperature, first[0])

    if not torch.is_grad_enabled():
        return compute(hidden)
    return checkpoint(compute, hidden, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore[reportReturnType]


class _Sums(NamedTuple):
    """Sums over V of x = logits / temperature and p = softmax(x), each (m,)."""

    peak: Tensor  # max x
    log_sum: Tensor  # log sum exp(x - peak)
    entropy: Tensor
    squares: Tensor


def _reduce(logits: Tensor, temperature: float, entropy: bool, squares: bool) -> _Sums:
    x = _scaled(logits, temperature)
    peak = x.amax(-1)
    x = x - peak[:, None]
    weights = x.exp()
    total = weights.sum(-1)
    log_sum, zeros = total.log(), torch.zeros_like(total)
    S = weights.square().sum(-1) / total.square() if squares else zeros
    H = log_sum - weights.mul_(x).sum(-1) / total if entropy else zeros
    return _Sums(peak, log_sum, H, S)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if temperature == 1.0 else wide / temperature


class _Statistics(torch.autograd.Function):
    """Logits (m, V) to three columns (m,). The backward pass keeps the logits and no other (m, V) tensor.

    With l = log p and y the target:
        d l_y / dz = (onehot(y) - p) / temperature
        d H   / dz = -p (l + H) / temperature
        d S   / dz = 2 p (p - S) / temperature,  S = sum_v p_v^2
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float, sums: _Sums) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, targets)
        ctx.temperature, ctx.sums = temperature, sums
        chosen = _scaled(logits.gather(-1, targets[:, None])[:, 0], temperature)
        # in this order: where the target is nearly certain, the small difference keeps its digits
        return chosen - sums.peak - sums.log_sum, sums.entropy.clone(), sums.squares.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, targets = ctx.saved_tensors
        to_log_prob, to_entropy, to_squares = (
            None if gradient is None else gradient[:, None] / ctx.temperature for gradient in gradients
        )
        peak, log_sum, H, S = ctx.sums
        logs = _scaled(logits, ctx.temperature) - (peak + log_sum)[:, None]
        p = logs.exp()
        slope = torch.zeros_like(logs[:, :1]) if to_log_prob is None else -to_log_prob
        if to_squares is not None:
            slope = slope - 2 * to_squares * S[:, None]
        gradient = p * slope if to_squares is not None or to_entropy is not None else p.mul_(slope)
        if to_entropy is not None:
            gradient.addcmul_(p, logs.add_(H[:, None]).mul_(to_entropy), value=-1)
        if to_squares is not None:
            gradient.addcmul_(p.square(), to_squares, value=2)
        if to_log_prob is not None:
            gradient.scatter_add_(-1, targets[:, None], to_log_prob)
        return gradient.to(logits.dtype), None, None, None
