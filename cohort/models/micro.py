"""Micro-batches: how many rows go through the model at once. A private matter of memory that changes no number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.models.layout import Layout, answer_tokens, prompt_keys
from cohort.types import Batch


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one forward pass may hold.

    Attributes:
        max_tokens: tokens the model runs over, padding included where the layout pads; None is no limit.
            A single row that is longer goes alone.
        max_rows: rows; None is no limit. A group larger than this is split and its prompt computed again.
    """

    max_tokens: int | None = None
    max_rows: int | None = None


UNLIMITED = Budget()


@dataclass
class _Load:
    """Tokens of a micro-batch while it is being filled."""

    share_prompt: bool
    padded: bool
    rows: int = 0
    prompts: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    longest_prompt: int = 0
    longest_answer: int = 0

    def add(self, prompt: int, answer: int, *, new_prompt: bool) -> None:
        """One more row; its prompt costs nothing if it is here already."""
        if not self.share_prompt:
            prompt, answer = 0, prompt + answer
        self.rows += 1
        self.answer_tokens += answer
        self.longest_answer = max(self.longest_answer, answer)
        self.longest_prompt = max(self.longest_prompt, prompt)
        if new_prompt:
            self.prompts += 1
            self.prompt_tokens += prompt

    @property
    def tokens(self) -> int:
        """Tokens the model would run over."""
        if self.padded:
            return self.prompts * self.longest_prompt + self.rows * self.longest_answer
        return self.prompt_tokens + self.answer_tokens


def cut(batch: Batch, *, budget: Budget, layout: Layout) -> list[Tensor]:
    """Row indices of the micro-batches of a pass over ``batch``; see ``plan``."""
    return plan(
        batch,
        max_tokens=budget.max_tokens,
        max_rows=budget.max_rows,
        share_prompt=layout.share_prompt,
        padded=not layout.packed,
    )


def plan(
    batch: Batch,
    *,
    max_tokens: int | None = None,
    max_rows: int | None = None,
    share_prompt: bool = False,
    padded: bool = False,
) -> list[Tensor]:
    """Cuts ``batch`` into micro-batches, the longest rows first, so that the peak of memory comes first.

    Rows of one prompt stay neighbours, so that they can share it. Nothing has to divide anything.

    Args:
        batch: the rows.
        max_tokens: see ``Budget``.
        max_rows: see ``Budget``.
        share_prompt: a prompt counts once per micro-batch.
        padded: rows count as long as the longest one.

    Returns:
        Row indices of each micro-batch; together every row once. Empty for a batch without rows.

    Raises:
        ValueError: if a limit is below 1.
    """
    if min(max_tokens or 1, max_rows or 1) < 1 or 0 in (max_tokens, max_rows):
        raise ValueError(f"a micro-batch needs room: max_tokens={max_tokens}, max_rows={max_rows}")
    prompts, answers = batch.prompt_lengths.tolist(), answer_tokens(batch)
    keys = prompt_keys(batch) if share_prompt else list(range(batch.rows))
    lengths = [prompt + answer if answer >= 0 else 0 for prompt, answer in zip(prompts, answers, strict=True)]
    longest: dict[int, int] = {}
    for key, length in zip(keys, lengths, strict=True):
        longest[key] = max(longest.get(key, 0), length)
    order = sorted(range(batch.rows), key=lambda row: (-longest[keys[row]], keys[row], -lengths[row], row))

    micros: list[list[int]] = []
    load = _Load(share_prompt, padded)
    present: set[int] = set()
    for row in order:
        prompt, answer = (prompts[row], answers[row]) if answers[row] >= 0 else (0, 0)
        tried = _Load(**vars(load))
        tried.add(prompt, answer, new_prompt=keys[row] not in present)
        too_much = max_tokens is not None and tried.tokens > max_tokens
        if not micros or too_much or (max_rows is not None and tried.rows > max_rows):
            micros.append([])
            present = set()
            tried = _Load(share_prompt, padded)
            tried.add(prompt, answer, new_prompt=True)
        micros[-1].append(row)
        present.add(keys[row])
        load = tried
    return [torch.tensor(rows) for rows in micros]
