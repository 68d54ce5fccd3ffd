"""Attention over the slot stores, as an attention function that Transformers models call.

A forward pass of the engine is one packed row ``(1, N)`` of tokens of many completions. The model's own
code runs unchanged; where it would attend it calls ``attend_slots`` with this pass's *plan*, which says
where each token's keys and values go and what it may look at.

Decoding splits the softmax in two: over the prompt, where all samples of a prompt are one block of
queries against one copy of its keys, and over what each row wrote itself. The halves are merged by
their log-sum-exp, which is exact (Milakov and Gimelshein 2018, arXiv 1805.02867; for shared prefixes
Juravsky et al. 2024, Hydragen, arXiv 2402.05099). A prompt's keys are read once per step, not n times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cohort.errors import UserError
from cohort.rollout.native.kv_cache import SlotStore

NAME = "cohort_slots"
"""The attention implementation under which Transformers finds ``attend_slots``."""

MIN_SPAN = 2048
"""Key positions of padding that are cheaper than one more attention call."""


class Plan(Protocol):
    """What one forward pass attends to."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Stores the new keys and values and attends.

        Args:
            layer: index of the attention layer.
            q: # (N, H, Dk)
            k: # (N, Hkv, Dk)
            v: # (N, Hkv, Dv)
            scale: factor on the scores.

        Returns:
            # (N, H, Dv)
        """
        ...


def attend_slots(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cohort_plan: Plan,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function of the engine; shapes as Transformers hands them, (1, heads, N, D).

    Raises:
        UserError: if the model asks for anything but plain causal attention.
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise UserError(
                f"rollout.name=native has no attention with {name} ({type(module).__name__}); use rollout.name=hf"
            )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    layer: Any = module.layer_idx
    return cohort_plan.attend(layer, q, k, v, scale)[None], None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend_slots)


def softmax_part(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attention over a part of the keys, with what merging needs.

    Args:
        q: # (B, Hkv, Q, Dk)
        k: # (B, Hkv, S, Dk)
        v: # (B, Hkv, S, Dv)
        mask: added to the scores, or None    # (B, 1, 1, S)
        scale: factor on the scores.

    Returns:
        output (B, Hkv, Q, Dv) and log-sum-exp of the scores (B, Hkv, Q).
    """
    if q.device.type == "cpu" and k.shape[-1] == v.shape[-1]:
        # The kernel behind scaled_dot_product_attention, which does not hand out the log-sum-exp.
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return kernel(q, k, v, attn_mask=mask, scale=scale)
    scores = torch.matmul(q * scale, k.transpose(2, 3))
    scores = scores if scores.dtype is torch.float64 else scores.float()
    if mask is not None:
        scores = scores + mask
    total = scores.logsumexp(-1)
    return torch.matmul((scores - total[..., None]).exp().to(v.dtype), v), total


def split_spans(lengths: Sequence[int], weights: Sequence[int]) -> list[tuple[int, int]]:
    """Cuts consecutive slots into spans, so that little is padding within each.

    A span costs its size times its longest slot times its largest weight. It grows while at most half
    of that, and ``MIN_SPAN``, is wasted.

    Args:
        lengths: tokens in each slot.
        weights: rows that read each slot.

    Returns:
        spans [start, stop) that cover all slots.
    """
    spans, start, longest, widest, useful = [], 0, 0, 0, 0
    for i, (length, weight) in enumerate(zip(lengths, weights, strict=True)):
        longest, widest, useful = max(longest, length), max(widest, weight), useful + length * weight
        if (i + 1 - start) * longest * widest > 2 * useful + MIN_SPAN:
            spans.append((start, i))
            start, longest, widest, useful = i, length, weight, length * weight
    return [*spans, (start, len(lengths))]


def _padding_mask(lengths: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """0 inside each length and -inf behind it  # (B, 1, 1, longest); None where all are equal."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    outside = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device)[:, None]
    mask = torch.zeros(outside.shape, dtype=dtype, device=device)
    return mask.masked_fill_(outside, float("-inf"))[:, None, None]


@dataclass(frozen=True)
class _Span:
    """Slots [start, stop) up to ``length`` tokens, read by one attention call."""

    start: int
    stop: int
    length: int
    mask: Tensor | None


@dataclass(frozen=True)
class _PromptSpan(_Span):
    rows: Tensor | None  # (slots * widest,) which row's query stands where, padded with row 0; None: all in order
    widest: int


class DecodePlan:
    """One token of each row: row ``i`` reads the prompt in slot ``prompts[i]`` and its own tail.

    Args:
        prompt_store: keys and values of the prompts.
        tail_store: keys and values of what the rows wrote.
        prompts: slot of each row's prompt.
        tails: slot of each row's tail; every used slot of the store exactly once.
    """

    def __init__(
        self, prompt_store: SlotStore[Any], tail_store: SlotStore[Any], prompts: Sequence[int], tails: Sequence[int]
    ) -> None:
        self._prompts, self._tails = prompt_store, tail_store
        device, capacity = tail_store.geometry.device, tail_store.capacity
        rows = sorted(range(len(tails)), key=tails.__getitem__)  # row of each tail slot
        self._order = None if rows == list(range(len(rows))) else torch.tensor(rows, device=device)
        self._back = None if self._order is None else torch.tensor(tails, device=device)
        # Where each row's new token goes, in a store seen as a flat list of (slot, head, position).
        heads = tail_store.geometry.kv_heads
        first = torch.tensor(tails, device=device)[:, None] * heads + torch.arange(heads, device=device)
        self._base = first * capacity  # (R, Hkv)
        self._slots = torch.tensor(tails, device=device)
        self._plan_prompts(prompts, rows)

    def _plan_prompts(self, prompts: Sequence[int], rows: Sequence[int]) -> None:
        store, device = self._prompts, self._prompts.geometry.device
        readers: list[list[int]] = [[] for _ in range(len(store))]
        for row, slot in enumerate(prompts):
            readers[slot].append(row)
        spans: list[_PromptSpan] = []
        place: dict[int, int] = {}  # where each row's output stands in the outputs of all spans
        offset, everyone = 0, list(range(len(rows)))
        for start, stop in split_spans(store.lengths, [len(r) for r in readers]):
            widest = max(len(r) for r in readers[start:stop])
            if widest == 0:
                continue
            queries = [0] * ((stop - start) * widest)
            for i, group in enumerate(readers[start:stop]):
                for j, row in enumerate(group):
                    queries[i * widest + j] = row
                    place[row] = offset + i * widest + j
            lengths = store.lengths[start:stop]
            mask = _padding_mask(lengths, store.geometry.dtype, device)
            index = None if queries == everyone else torch.tensor(queries, device=device)
            spans.append(_PromptSpan(start, stop, max(lengths), mask, index, widest))
            offset += len(queries)
        self._prompt_spans = spans
        order = [place[row] for row in rows]
        self._place = None if order == everyone and offset == len(rows) else torch.tensor(order, device=device)

    def advance(self) -> None:
        """Moves to the next token: each tail is one longer, its last position about to be written."""
        store = self._tails
        even = self._order is None and min(store.lengths) == max(store.lengths)
        self._column = store.lengths[0] if even else None  # where all rows write, if it is one place
        if self._column is None:
            positions = torch.tensor(store.lengths, device=self._slots.device)[self._slots]
            self._write = (self._base + positions[:, None]).view(-1)
        store.lengths[:] = [length + 1 for length in store.lengths]
        geometry, self._spans = store.geometry, []
        for start, stop in split_spans(store.lengths, [1] * len(store)):
            lengths = store.lengths[start:stop]
            mask = _padding_mask(lengths, geometry.dtype, geometry.device)
            self._spans.append(_Span(start, stop, max(lengths), mask))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See ``Plan.attend``."""
        heads, groups = k.shape[1], q.shape[1] // k.shape[1]
        keys, values = self._tails.keys[layer], self._tails.values[layer]
        if self._column is None:
            keys.view(-1, k.shape[2]).index_copy_(0, self._write, k.reshape(-1, k.shape[2]))
            values.view(-1, v.shape[2]).index_copy_(0, self._write, v.reshape(-1, v.shape[2]))
        else:  # the same, without an index
            keys[: len(k), :, self._column] = k
            values[: len(v), :, self._column] = v
        q = q.reshape(len(q), heads, groups, q.shape[2])
        ordered = q if self._order is None else q.index_select(0, self._order)
        tails = [
            softmax_part(
                ordered[s.start : s.stop],
                keys[s.start : s.stop, :, : s.length],
                values[s.start : s.stop, :, : s.length],
                s.mask,
                scale,
            )
            for s in self._spans
        ]
        own, own_total = _joined([x for x, _ in tails]), _joined([x for _, x in tails])
        shared, shared_total = self._attend_prompts(layer, q, scale)
        # softmax over both parts = the parts' softmaxes weighted by their share of the total mass
        share = torch.sigmoid(shared_total - own_total)[..., None].to(own.dtype)
        merged = torch.lerp(own, shared, share)
        if self._back is not None:
            merged = merged.index_select(0, self._back)
        return merged.flatten(1, 2)

    def _attend_prompts(self, layer: int, q: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp over the prompts, in the order of the tail slots."""
        heads, groups, width = q.shape[1:]
        outputs, totals = [], []
        for s in self._prompt_spans:
            block = q if s.rows is None else q.index_select(0, s.rows)
            block = block.view(-1, s.widest, heads, groups, width)
            block = block.transpose(1, 2).reshape(-1, heads, s.widest * groups, width)
            keys = self._prompts.keys[layer, s.start : s.stop, :, : s.length]
            values = self._prompts.values[layer, s.start : s.stop, :, : s.length]
            output, total = softmax_part(block, keys, values, s.mask, scale)
            output = output.reshape(-1, heads, s.widest, groups, values.shape[-1]).transpose(1, 2)
            total = total.reshape(-1, heads, s.widest, groups).transpose(1, 2)
            outputs.append(output.reshape(-1, heads, groups, values.shape[-1]))
            totals.append(total.reshape(-1, heads, groups))
        output, total = _joined(outputs), _joined(totals)
        if self._place is None:
            return output, total
        return output.index_select(0, self._place), total.index_select(0, self._place)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A run of tokens to prefill into one slot, behind what it already shares with a prompt.

    Attributes:
        ids: the tokens.
        start: position of the first one in its completion.
        store: where keys and values go.
        slot: which slot of it; the run starts at the slot's first position.
        prompt: slot of the prompt store that comes before the run; None where the run is a prompt.
    """

    ids: tuple[int, ...]
    start: int
    store: SlotStore[Any]
    slot: int
    prompt: int | None


class PrefillPlan:
    """Whole runs of tokens, packed one after the other; each attends to its own past alone.

    Args:
        pieces: the runs, in the order in which their tokens are packed.
        prompt_store: keys and values of the prompts.
    """

    def __init__(self, pieces: Sequence[Piece], prompt_store: SlotStore[Any]) -> None:
        self._pieces, self._prompts = pieces, prompt_store
        for piece in pieces:
            piece.store.reserve(len(piece.ids))
            piece.store.lengths[piece.slot] = len(piece.ids)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See ``Plan.attend``."""
        out = q.new_empty(len(q), q.shape[1], v.shape[2])
        start = 0
        for piece in self._pieces:
            stop = start + len(piece.ids)
            keys, values = k[start:stop].transpose(0, 1), v[start:stop].transpose(0, 1)  # (Hkv, n, D)
            piece.store.keys[layer, piece.slot, :, : stop - start] = keys
            piece.store.values[layer, piece.slot, :, : stop - start] = values
            queries = q[start:stop].transpose(0, 1)[None]
            out[start:stop] = self._attend_piece(layer, piece, queries, keys, values, scale)[0].transpose(0, 1)
            start = stop
        return out

    def _attend_piece(self, layer: int, piece: Piece, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        mask = None
        if piece.prompt is not None:
            before = self._prompts.lengths[piece.prompt]
            k = torch.cat((self._prompts.keys[layer, piece.prompt, :, :before], k), 1)
            v = torch.cat((self._prompts.values[layer, piece.prompt, :, :before], v), 1)
            shape = (q.shape[2], k.shape[1])
            mask = torch.ones(shape, dtype=torch.bool, device=q.device).tril(before)
        causal = mask is None
        return F.scaled_dot_product_attention(
            q, k[None], v[None], attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[0]
        )
