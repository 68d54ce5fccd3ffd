"""Attention over a flat row of tokens that knows which of them belong together.

A flat row holds many segments side by side: prompts, whole sequences and answers. A prompt or a whole
sequence attends to itself, causally. An answer attends to its prompt and to itself, causally; the
prompt's keys and values are computed once and read by every answer. Nothing else sees anything else.

Segments of similar length form a bucket, and a bucket is one ``scaled_dot_product_attention`` call on
``(rows, heads, width, head_dim)``. Linear layers never see the padding of a bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "cohort_segments"


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """How the tokens of segments that are not equally long map to a dense block and back.

    Attributes:
        place: token of the bucket behind each cell of the block, 0 where the cell is padding  # (rows * width,)
        padding: True where a cell holds no token                                              # (rows * width, 1, 1)
        inverse: cell of each token of the bucket                                              # (tokens,)
    """

    place: Tensor
    padding: Tensor
    inverse: Tensor


@dataclass(frozen=True, kw_only=True)
class Context:
    """The prompts that the answers of a bucket attend to; all are equally long.

    Attributes:
        tokens: where the prompts' tokens stand in the flat row  # (prompts * length,)
        owner: prompt of each row of the bucket                  # (rows,)
        length: tokens of a prompt.
        mask: True where a query may look at a key               # (width, length + width)
    """

    tokens: Tensor
    owner: Tensor
    length: int
    mask: Tensor


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Segments that attend in one call. Their tokens are neighbours in the flat row."""

    rows: int
    width: int
    tokens: int
    ragged: Ragged | None = None
    context: Context | None = None


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Every segment of a flat row, in its order.

    Attributes:
        buckets: neighbours that attend together.
        prompt_tokens: tokens at the start of the row that answers may attend to.
    """

    buckets: tuple[Bucket, ...]
    prompt_tokens: int = 0


def segment_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function of Transformers over one flat row.

    Args:
        module: the attention layer; not looked at.
        query: (1, H, N, D).
        key: (1, H_kv, N, D).
        value: (1, H_kv, N, D).
        attention_mask: not used, ``segments`` says it all.
        segments: what attends to what.
        scaling: factor on the scores.

    Returns:
        (1, N, H, D), and no attention weights.
    """
    q, k, v = (x.transpose(1, 2)[0] for x in (query, key, value))  # (N, heads, D)
    sizes = [bucket.tokens for bucket in segments.buckets]
    k_prompts, v_prompts = k[: segments.prompt_tokens], v[: segments.prompt_tokens]
    out = [
        _attend(bucket, q_part, k_part, v_part, k_prompts, v_prompts, scaling)
        for bucket, q_part, k_part, v_part in zip(
            segments.buckets, q.split(sizes), k.split(sizes), v.split(sizes), strict=True
        )
    ]
    return (torch.cat(out) if len(out) > 1 else out[0])[None], None


def _attend(
    bucket: Bucket, q: Tensor, k: Tensor, v: Tensor, k_prompts: Tensor, v_prompts: Tensor, scaling: float | None
) -> Tensor:
    """One bucket: its tokens (n, heads, D) in, their outputs (n, H, D) out."""
    q, k, v = (_to_block(x, bucket) for x in (q, k, v))  # (rows, width, heads, D)
    mask = None
    if bucket.context:
        k = _behind_prompt(k, k_prompts, bucket.context)
        v = _behind_prompt(v, v_prompts, bucket.context)
        mask = bucket.context.mask
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (rows, heads, width, D)
    grouped = q.shape[1] != k.shape[1]
    if grouped and mask is not None and q.device.type == "cuda":  # CUDA has no fused kernel for masks and grouped heads
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        grouped = False
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )
    out = out.transpose(1, 2).flatten(0, 1)  # (rows * width, H, D)
    return out if bucket.ragged is None else _Unpad.apply(out, bucket.ragged)  # pyright: ignore[reportReturnType]


def _to_block(x: Tensor, bucket: Bucket) -> Tensor:
    """(tokens, heads, D) to (rows, width, heads, D)."""
    block: Tensor = x if bucket.ragged is None else _Pad.apply(x, bucket.ragged)  # pyright: ignore[reportAssignmentType]
    return block.unflatten(0, (bucket.rows, bucket.width))


def _behind_prompt(answers: Tensor, prompts: Tensor, context: Context) -> Tensor:
    """Each answer behind its prompt: (rows, length + width, heads, D)."""
    own = prompts.index_select(0, context.tokens).unflatten(0, (-1, context.length))  # (prompts, length, heads, D)
    return torch.cat([own.index_select(0, context.owner), answers], dim=1)


class _Pad(torch.autograd.Function):
    """Tokens to block cells. A padded cell copies a token and never has a gradient: no valid query sees it."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, ragged: Ragged) -> Tensor:
        ctx.ragged = ragged
        return tokens.index_select(0, ragged.place)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].index_select(0, ctx.ragged.inverse), None


class _Unpad(torch.autograd.Function):
    """Block cells to tokens. Padded cells are dropped and get the gradient 0."""

    @staticmethod
    def forward(ctx: Any, cells: Tensor, ragged: Ragged) -> Tensor:
        ctx.ragged = ragged
        return cells.index_select(0, ragged.inverse)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].index_select(0, ctx.ragged.place).masked_fill_(ctx.ragged.padding, 0), None


def moved(segments: Segments, device: torch.device) -> Segments:
    """The segments with their index tensors on ``device``."""
    return replace(segments, buckets=tuple(_map(bucket, lambda x: x.to(device)) for bucket in segments.buckets))


def _map(record: Any, function: Callable[[Tensor], Tensor]) -> Any:
    changes = {
        name: function(x) if isinstance(x, Tensor) else _map(x, function)
        for name, x in vars(record).items()
        if isinstance(x, Tensor | Ragged | Context)
    }
    return replace(record, **changes)


ALL_ATTENTION_FUNCTIONS.register(NAME, segment_attention)
