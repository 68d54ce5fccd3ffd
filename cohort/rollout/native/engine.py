"""One step of continuous batching: admit what waits, prefill it, decode one token of every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.protocols import Weights
from cohort.rollout.native.attention import DecodePlan, Piece, PrefillPlan
from cohort.rollout.native.kv_cache import SlotStore
from cohort.rollout.native.model import HeldModel
from cohort.rollout.native.scheduler import Row, Scheduler, Shared
from cohort.rollout.sampling import Settings, sample, uniforms
from cohort.rollout.weights import receive

PREFILL_TOKENS = 4096
"""Tokens of one prefill pass; bounds its activations."""


@dataclass
class Counters:
    """What the engine has done since it was made.

    Attributes:
        prefilled: tokens prefilled, each prompt counted once per cohort.
        decoded: tokens that went through decode passes.
        steps: decode passes.
    """

    prefilled: int = 0
    decoded: int = 0
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """The running rows as tensors, kept from step to step while the rows stay the same."""

    rows: tuple[Row, ...]
    plan: DecodePlan
    settings: Settings
    streams: Tensor  # (R,) on the CPU


class Engine:
    """Runs rows on slots of a preallocated cache. Synchronous; knows nothing of coroutines.

    Args:
        model: what is sampled from.
        slots: rows that run at a time.
    """

    def __init__(self, model: HeldModel, slots: int) -> None:
        self.model = model
        self.version = 0
        self.counters = Counters()
        self.scheduler = Scheduler(slots)
        self._prompts: SlotStore[Shared] = SlotStore(model.geometry, slots)
        self._tails: SlotStore[Row] = SlotStore(model.geometry, slots)
        self._known: dict[tuple[int, ...], Shared] = {}
        self._batch: _Batch | None = None

    def step(self) -> list[Row]:
        """Draws at least one token for every running row; the rows that are over now, in order."""
        fresh = self.scheduler.admit()
        done: list[Row] = []
        if fresh:
            done += self._draw(fresh, self._prefill(fresh), self._settings(fresh))
        if not self.scheduler.waiting:  # a row that waits may want a prompt that nobody reads right now
            self._drop_unread()
        if self.scheduler.live:
            done += self._decode()
        return done

    def drop(self, row: Row) -> None:
        """Stops ``row`` and frees its slot; other rows do not notice."""
        self._release(row)
        self.scheduler.remove(row)

    def load(self, weights: Weights, version: int) -> None:
        """Takes new weights. Rows that run start again behind what they have drawn so far.

        Raises:
            WeightMismatch: naming the first tensor that does not match what was sent.
        """
        receive(self.model.base, weights, copied=self.model.copied)
        self.version = version
        self._forget()
        self.scheduler.return_all()

    def clear(self) -> list[Row]:
        """Drops all rows and caches; the rows that were there."""
        rows = self.scheduler.clear()
        self._forget()
        return rows

    def _forget(self) -> None:
        """Drops every key and value; they were made with weights of the past."""
        for row in self._tails.owners:
            row.shared = None
        self._tails.clear()
        self._prompts.clear()
        self._known.clear()
        self._batch = None

    def _release(self, row: Row) -> None:
        if row.shared is not None:
            self._tails.free(row)
            row.shared.readers -= 1
            row.shared = None
        self._batch = None

    def _prefill(self, rows: Sequence[Row]) -> Tensor:
        """Computes what the rows do not share with a known prompt; logits of each row's next token  # (R, V)."""
        prompts = self._find_prompts(rows)
        for piece, logits in self._run([_prompt_piece(shared, self._prompts) for shared in prompts]):
            self._prompts.owners[piece.slot].logits = logits
        tails: list[Piece] = []
        for row in rows:
            assert row.shared is not None
            self._tails.take(row)
            start = len(row.shared.ids)
            ids = (*row.request.ids[start:], *row.tokens)
            if ids:
                tails.append(Piece(ids=ids, start=start, store=self._tails, slot=row.slot, prompt=row.shared.slot))
        after = {piece.slot: logits for piece, logits in self._run(tails)}
        self._batch = None
        return torch.stack([after.get(row.slot, _logits(row)) for row in rows])

    def _find_prompts(self, rows: Sequence[Row]) -> list[Shared]:
        """Gives each row the longest known prompt that it starts with, or its own; the new ones."""
        new: list[Shared] = []
        for row in rows:
            ids = row.request.ids
            shared = self._known.get(ids)
            if shared is None:
                heads = [s for s in self._known.values() if len(s.ids) < len(ids) and ids[: len(s.ids)] == s.ids]
                shared = max(heads, key=lambda s: len(s.ids), default=None)
            if shared is None:
                shared = self._known[ids] = Shared(ids=ids)
                new.append(shared)
            shared.readers += 1
            row.shared = shared
        new.sort(key=lambda s: len(s.ids))  # neighbours of like length make attention spans without padding
        self._drop_unread()
        for shared in new:
            self._prompts.take(shared)
        return new

    def _drop_unread(self) -> None:
        for shared in [s for s in self._prompts.owners if not s.readers]:
            self._prompts.free(shared)
            del self._known[shared.ids]
            self._batch = None

    def _run(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Tensor]]:
        """Each piece with the logits after its last token  # (V,)."""
        for chunk in _chunks(pieces):
            device = self.model.geometry.device
            ids = torch.tensor([token for p in chunk for token in p.ids], device=device)
            positions = torch.cat([torch.arange(p.start, p.start + len(p.ids), device=device) for p in chunk])
            ends = torch.tensor([len(p.ids) for p in chunk]).cumsum(0) - 1
            logits = self.model.forward(ids, positions, PrefillPlan(chunk, self._prompts), keep=ends.tolist())
            self.counters.prefilled += len(ids)
            yield from zip(chunk, logits, strict=True)

    def _decode(self) -> list[Row]:
        """One pass over all running rows; the rows that are over now."""
        longest = max(self._tails.lengths) + 1
        if longest > self._tails.capacity:
            self._tails.reserve(longest)
            self._batch = None
        batch = self._batch or self._make_batch()
        device = self.model.geometry.device
        ids = torch.tensor([row.tokens[-1] for row in batch.rows], device=device)
        positions = torch.tensor([row.length - 1 for row in batch.rows], device=device)
        batch.plan.advance()
        logits = self.model.forward(ids, positions, batch.plan)
        self.counters.decoded += len(batch.rows)
        self.counters.steps += 1
        return self._draw(batch.rows, logits, batch.settings, batch.streams)

    def _make_batch(self) -> _Batch:
        rows = tuple(self.scheduler.live)
        prompts = [row.shared.slot for row in rows if row.shared is not None]
        self._batch = _Batch(
            rows=rows,
            plan=DecodePlan(self._prompts, self._tails, prompts, [row.slot for row in rows]),
            settings=self._settings(rows),
            streams=torch.tensor([row.stream for row in rows]),
        )
        return self._batch

    def _settings(self, rows: Sequence[Row]) -> Settings:
        return Settings.of([row.request.sampling for row in rows], self.model.geometry.device)

    def _draw(
        self, rows: Sequence[Row], logits: Tensor, settings: Settings, streams: Tensor | None = None
    ) -> list[Row]:
        """Draws the next token of each row; the rows that are over now."""
        if streams is None:
            streams = torch.tensor([row.stream for row in rows])
        positions = torch.tensor([row.length for row in rows])
        tokens, log_probs = sample(logits, settings, uniforms(streams, positions))
        done = []
        for row, token, log_prob in zip(rows, tokens.tolist(), log_probs.tolist(), strict=True):
            row.tokens.append(token)
            row.log_probs.append(log_prob)
            row.versions.append(self.version)
            row.finish_reason = row.ending.push(token)
            if row.finish_reason is not None:
                done.append(row)
        for row in done:
            self.drop(row)
        return done


def _prompt_piece(shared: Shared, store: SlotStore[Shared]) -> Piece:
    return Piece(ids=shared.ids, start=0, store=store, slot=shared.slot, prompt=None)


def _logits(row: Row) -> Tensor:
    assert row.shared is not None
    assert row.shared.logits is not None
    return row.shared.logits


def _chunks(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Runs of pieces of at most ``PREFILL_TOKENS`` tokens, or one longer piece."""
    chunk: list[Piece] = []
    size = 0
    for piece in pieces:
        if chunk and size + len(piece.ids) > PREFILL_TOKENS:
            yield chunk
            chunk, size = [], 0
        chunk.append(piece)
        size += len(piece.ids)
    if chunk:
        yield chunk
