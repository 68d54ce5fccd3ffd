"""Which tokens a forward pass runs, in what order, and where each log-prob is read.

The next-token shift of the whole project is in ``Arrangement.source``: the log-prob of response token t is
read at the position before it. A row is run up to the last token that has to be predicted, no further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from cohort.models.attention import Bucket, Context, Ragged, Segments, moved
from cohort.types import Batch

SHORTEST_CLASS = 16
"""Segments up to this many tokens are one length class; above, a class ends at each power of two."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a micro-batch is laid out in memory. No field changes a number.

    Attributes:
        packed: tokens stand side by side without padding.
        share_prompt: a prompt is computed once for all its answers in the micro-batch.
        checkpointing: activations inside a decoder layer are recomputed in the backward pass.
    """

    packed: bool = True
    share_prompt: bool = True
    checkpointing: bool = False


DEFAULT_LAYOUT = Layout()


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """A micro-batch as the model reads it, and where its results are read. M tokens are scored.

    Attributes:
        ids: token ids; one row (1, N) of segments, or padded rows                          # (R, W)
        positions: place of each token in its own sequence; None for padded rows            # (R, W)
        segments: what attends to what; None for padded rows, which are plainly causal.
        source: flat position whose hidden state predicts each scored token                 # (M,)
        own: flat position of each scored token itself; beyond a row's end if it was not run  # (M,)
        targets: id of each scored token                                                    # (M,)
        cells: where each scored token stands in a flattened (B, T)                         # (M,)
    """

    ids: Tensor
    positions: Tensor | None
    segments: Segments | None
    source: Tensor
    own: Tensor
    targets: Tensor
    cells: Tensor

    def to(self, device: torch.device) -> Arrangement:
        """The arrangement on ``device``."""
        tensors = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        segments = moved(self.segments, device) if self.segments else None
        return replace(self, segments=segments, **tensors)


def prompt_keys(batch: Batch) -> list[int]:
    """A number per row; rows with the same prompt ids share it, whatever group they are in."""
    ids = batch.ids.cpu().numpy()
    known: dict[bytes, int] = {}
    keys = [ids[row, :length].tobytes() for row, length in enumerate(batch.prompt_lengths.tolist())]
    return [known.setdefault(key, len(known)) for key in keys]


def answer_tokens(batch: Batch, *, last: bool = False) -> list[int]:
    """Tokens behind the prompt that a pass has to run per row; -1 where no token is scored.

    Args:
        batch: the rows.
        last: also run the last scored token itself, whose hidden state predicts nothing.
    """
    steps = torch.arange(batch.width, device=batch.mask.device)
    final = torch.where(batch.mask > 0, steps, -1).amax(1)  # (B,)
    return torch.where(final >= 0, final + int(last), -1).tolist()


class _Segment(NamedTuple):
    """Tokens ``begin`` to ``end`` of a batch row, behind the prompt that segment ``owner`` holds."""

    row: int
    begin: int
    end: int
    owner: int | None = None
    prompt: int = 0  # length of the owner

    @property
    def tokens(self) -> int:
        return self.end - self.begin

    @property
    def length_class(self) -> tuple[int, int]:
        return self.prompt, max(self.tokens - 1, SHORTEST_CLASS - 1).bit_length()


def arrange(batch: Batch, layout: Layout, *, last: bool = False) -> Arrangement:
    """Lays the scored part of ``batch`` (on the CPU) out for one forward pass.

    Args:
        batch: the micro-batch, with at least one token to score.
        layout: how.
        last: also run each row's last scored token, for its hidden state.

    Raises:
        ValueError: if a prompt is empty, because nothing then predicts the first token.
    """
    prompt_lengths, answers = batch.prompt_lengths.tolist(), answer_tokens(batch, last=last)
    if min(prompt_lengths, default=1) < 1:
        raise ValueError("a prompt without tokens has no position that predicts the first response token")
    keys = prompt_keys(batch) if layout.share_prompt else list(range(batch.rows))
    by_prompt: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        if answers[row] >= 0:
            by_prompt.setdefault(key, []).append(row)

    shared = [rows for rows in by_prompt.values() if len(rows) > 1]
    alone = [row for rows in by_prompt.values() if len(rows) == 1 for row in rows]
    prompts = _in_buckets(_Segment(rows[0], 0, prompt_lengths[rows[0]]) for rows in shared)
    sequences = _in_buckets(_Segment(row, 0, prompt_lengths[row] + answers[row]) for row in alone)
    owner_of = {keys[s.row]: i for i, s in enumerate(prompts)}
    behind = _in_buckets(
        _Segment(row, p := prompt_lengths[row], p + answers[row], owner_of[keys[row]], p)
        for rows in shared
        for row in rows
        if answers[row]
    )
    kinds = (prompts, sequences, behind)
    widths = [[max(s.tokens for s in kind) if not layout.packed else s.tokens for s in kind] for kind in kinds]
    segments, stored = [s for kind in kinds for s in kind], [w for kind in widths for w in kind]
    starts = torch.tensor([0, *stored]).cumsum(0)[:-1].tolist()
    ids, positions = _flat_row(batch, segments, stored)

    source, own = _readings(batch, segments, starts, {row: owner_of[keys[row]] for rows in shared for row in rows})
    flat = layout.packed or bool(shared)
    scored = batch.mask > 0
    return Arrangement(
        ids=ids[None] if flat else ids.view(len(sequences), -1),
        positions=positions[None] if flat else None,
        segments=_segments(segments, stored, starts, len(prompts)) if flat else None,
        source=source,
        own=own,
        targets=batch.response_ids[scored],
        cells=scored.flatten().nonzero()[:, 0],
    )


def _in_buckets(segments: Iterable[_Segment]) -> list[_Segment]:
    """Segments with bucket mates next to each other; otherwise in the order they came."""
    return sorted(segments, key=lambda s: s.length_class)


def _flat_row(batch: Batch, segments: Sequence[_Segment], stored: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Ids and positions of all segments side by side, each padded to its stored width  # (N,), (N,)."""
    ids, positions = torch.zeros(2, sum(stored), dtype=torch.long)
    start = 0
    for segment, width in zip(segments, stored, strict=True):
        ids[start : start + segment.tokens] = batch.ids[segment.row, segment.begin : segment.end]
        positions[start : start + segment.tokens] = torch.arange(segment.begin, segment.end)
        start += width
    return ids, positions


def _readings(
    batch: Batch, segments: Sequence[_Segment], starts: Sequence[int], owner: dict[int, int]
) -> tuple[Tensor, Tensor]:
    """Flat positions that predict, and that hold, each scored token  # (M,), (M,)."""
    before = [0] * batch.rows  # where the last prompt token stands
    first = [0] * batch.rows  # where the first response token stands
    for row, index in owner.items():
        before[row] = starts[index] + segments[index].tokens - 1
    for segment, start in zip(segments, starts, strict=True):
        if segment.owner is not None:
            first[segment.row] = start
        elif segment.row not in owner:
            first[segment.row] = start + int(batch.prompt_lengths[segment.row])
            before[segment.row] = first[segment.row] - 1
    row, step = (batch.mask > 0).nonzero(as_tuple=True)
    own = torch.tensor(first)[row] + step
    return torch.where(step > 0, own - 1, torch.tensor(before)[row]), own


def _segments(segments: Sequence[_Segment], stored: Sequence[int], starts: Sequence[int], prompts: int) -> Segments:
    """The attention structure of a flat row whose first ``prompts`` segments are prompts."""
    buckets = []
    for _, members in groupby(range(len(segments)), lambda i: segments[i].length_class):
        mates = list(members)
        lengths = [stored[i] for i in mates]
        width = max(lengths)
        buckets.append(
            Bucket(
                rows=len(mates),
                width=width,
                tokens=sum(lengths),
                ragged=_ragged(lengths, width) if min(lengths) < width else None,
                context=_context([segments[i] for i in mates], starts, width),
            )
        )
    return Segments(buckets=tuple(buckets), prompt_tokens=sum(stored[:prompts]))


def _ragged(lengths: Sequence[int], width: int) -> Ragged:
    inside = torch.arange(width) < torch.tensor(lengths)[:, None]  # (rows, width)
    inverse = inside.flatten().nonzero()[:, 0]
    place = torch.zeros(inside.numel(), dtype=torch.long)
    place[inverse] = torch.arange(len(inverse))
    return Ragged(place=place, padding=~inside.view(-1, 1, 1), inverse=inverse)


def _context(answers: Sequence[_Segment], starts: Sequence[int], width: int) -> Context | None:
    """The prompts of a bucket of answers; None for segments that stand alone."""
    owners = [answer.owner for answer in answers if answer.owner is not None]
    if not owners:
        return None
    length, distinct = answers[0].prompt, sorted(set(owners))
    return Context(
        tokens=torch.cat([torch.arange(starts[owner], starts[owner] + length) for owner in distinct]),
        owner=torch.tensor([distinct.index(owner) for owner in owners]),
        length=length,
        mask=torch.ones(width, length + width, dtype=torch.bool).tril(length),
    )
