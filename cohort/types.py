"""The data that flows through a training step.

    Prompt -> Rollout (ragged, one per trajectory) -> Group (the samples of one prompt)
           -> collate() -> Batch (padded) -> Experience (what an update reads)

Letters used for shapes everywhere: **B** rollouts, **P** prompts, **n** samples per prompt,
**T** response tokens (padded to the longest response in the batch), **L** prompt + response
tokens, **V** vocabulary, **D** model width.

Per-token tensors are response-aligned: ``x[b, t]`` belongs to response token ``t`` of row ``b``.
A response starts right after the prompt and holds everything that follows, whoever wrote it.
Masks are float; 1 means "written by the model".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from typing import Any

import torch
from torch import Tensor

Message = Mapping[str, Any]
"""One chat message: ``{"role": ..., "content": ...}``."""


class Author(IntEnum):
    """Who wrote a token. The loss, KL, entropy, returns and lengths all derive their mask from it."""

    PROMPT = 0
    MODEL = 1
    ENVIRONMENT = 2
    TEMPLATE = 3


class FinishReason(StrEnum):
    """Why a response ended: an EOS id or stop string, the token limit, or an abort."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A question with its answer key: one row of the data set, already rendered to token ids.

    Attributes:
        row: position of the row in its file set; with the sample number it names a rollout.
        ids: the exact token ids that are sent to the sampler.
        text: ``ids`` decoded with special tokens, for people.
        messages: the chat messages; empty where the prompt was plain text.
        data_source: where the row comes from; validation metrics are grouped by it.
        ground_truth: the answer key handed to the reward, or None.
        columns: every column of the data row by name, open on purpose: rewards ask for them.
        media: processor tensors of a multi-modal prompt, or None.
    """

    row: int
    ids: tuple[int, ...]
    text: str
    messages: tuple[Message, ...] = ()
    data_source: str = "unknown"
    ground_truth: object = None
    columns: Mapping[str, object] = field(default_factory=dict)
    media: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """A grading result.

    Attributes:
        value: the score, or None when the answer could not be graded. Unscorable is not 0.
        parts: named components and diagnostics, logged and stored beside the value.
        reason: why ``value`` is None (a traceback, "timeout after 10 s", ...); empty otherwise.
        seconds: wall time the reward took, for finding the slow one.
    """

    value: float | None
    parts: Mapping[str, float | str] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0

    @property
    def correctness(self) -> float | None:
        """How right the answer is: ``acc`` if the reward gives it as a number, else the value. 1 is right, 0 wrong."""
        acc = self.parts.get("acc", self.value)
        return self.value if self.value is None or isinstance(acc, str) or acc != acc else acc


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A run of tokens by one author; immutable once written.

    Attributes:
        ids: token ids.
        author: who wrote them.
        log_probs: the sampler's log-probability of each id; empty unless ``author`` is MODEL.
        policy_versions: version of the weights that sampled each id; empty unless MODEL.
        media: processor tensors that came with an environment message, or None.
    """

    ids: tuple[int, ...]
    author: Author
    log_probs: tuple[float, ...] = ()
    policy_versions: tuple[int, ...] = ()
    media: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        expected = len(self.ids) if self.author is Author.MODEL else 0
        if len(self.log_probs) != expected or len(self.policy_versions) != expected:
            raise ValueError(
                f"a {self.author.name} segment of {len(self.ids)} ids needs {expected} log_probs and policy_versions, "
                f"got {len(self.log_probs)} and {len(self.policy_versions)}"
            )


@dataclass(frozen=True, kw_only=True, order=True)
class SeedKey:
    """Names a stream of draws. Token t's draw is a function of (key, t) alone, in any process."""

    seed: int
    step: int
    prompt: int
    sample: int


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One trajectory: the prompt and everything that was written after it. It only grows.

    Text is never re-tokenised: the ids that were sampled are the ids that are trained on.

    Attributes:
        prompt: the question.
        sample: number of this sample within its group, from 0.
        segments: what was written after the prompt, in order.
        finish_reason: why the trajectory ended; None while it is growing.
        text: the response decoded without special tokens, as the reward sees it.
        turns: messages in the conversation, the model's and the environment's (single turn: 2).
        score: the grading result; None until graded.
        key: names its draws; None where nobody said.
    """

    prompt: Prompt
    sample: int
    segments: tuple[Segment, ...] = ()
    finish_reason: FinishReason | None = None
    text: str = ""
    turns: int = 2
    score: Score | None = None
    key: SeedKey | None = None

    @property
    def response_ids(self) -> tuple[int, ...]:
        """Every id after the prompt."""
        return tuple(token for segment in self.segments for token in segment.ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and response ids."""
        return self.prompt.ids + self.response_ids

    @property
    def authors(self) -> tuple[Author, ...]:
        """Author of each response token."""
        return tuple(segment.author for segment in self.segments for _ in segment.ids)

    @property
    def log_probs(self) -> tuple[float, ...]:
        """The sampler's log-probability of each response token, 0 where the model did not write it."""
        return tuple(x for s in self.segments for x in (s.log_probs or (0.0,) * len(s.ids)))

    @property
    def policy_versions(self) -> tuple[int, ...]:
        """Policy version of each response token, -1 where the model did not write it."""
        return tuple(x for s in self.segments for x in (s.policy_versions or (-1,) * len(s.ids)))

    def extended(self, segment: Segment) -> Rollout:
        """This rollout with one more segment."""
        return replace(self, segments=(*self.segments, segment))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The samples of one prompt: the unit inside which everything group-relative happens.

    Attributes:
        prompt: the question.
        rollouts: its samples.
        baseline: the greedy answer, where an estimator compares with it (ReMax); scored, never trained on.
    """

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    baseline: Rollout | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rollouts as padded tensors. Rows are right-padded and contiguous: prompt, response, padding.

    Attributes:
        ids: token ids, 0 where padded                               # (B, L)
        prompt_lengths: tokens before the response                   # (B,)
        response_lengths: response tokens                            # (B,)
        mask: 1.0 where the model wrote the token                    # (B, T)
        group: which prompt of the batch a row answers, from 0       # (B,)
        rollout_log_probs: the sampler's log-probs, 0 off the mask   # (B, T)
        policy_versions: weights that sampled each token, -1 off it  # (B, T)
        truncated: 1.0 where the token limit ended the response      # (B,)
        media: processor tensors of multi-modal models, by name.
    """

    ids: Tensor
    prompt_lengths: Tensor
    response_lengths: Tensor
    mask: Tensor
    group: Tensor
    rollout_log_probs: Tensor
    policy_versions: Tensor
    truncated: Tensor
    media: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """B."""
        return self.ids.shape[0]

    @property
    def width(self) -> int:
        """T."""
        return self.mask.shape[1]

    @property
    def response_ids(self) -> Tensor:
        """Response token ids, 0 where padded  # (B, T)."""
        index = self.prompt_lengths[:, None] + torch.arange(self.width, device=self.ids.device)
        inside = index < (self.prompt_lengths + self.response_lengths)[:, None]
        picked = self.ids.gather(1, index.clamp(max=self.ids.shape[1] - 1))
        return torch.where(inside, picked, torch.zeros_like(picked))

    def select(self, rows: Tensor) -> Batch:
        """The batch of these rows, in this order. Widths are kept."""
        return _select(self, rows)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on ``device``."""
        return _map(self, lambda tensor: tensor.to(device))


@dataclass(frozen=True, kw_only=True)
class Experience:
    """What an update reads: a batch with everything the loss needs, row-aligned.

    Attributes:
        batch: the tokens.
        advantages: A_t                                                       # (B, T)
        old_log_probs: log pi_old; None where one update consumes the rollout: the
            detached current log-probs stand in and the ratio is exactly 1     # (B, T)
        ref_log_probs: log pi_ref, None without a KL term                      # (B, T)
        values: V(s_t) at collection time, None without a critic               # (B, T)
        returns: regression target of the critic, None without one             # (B, T)
        keep: 1.0 where a token of the model trains, 0.0 where a rule rejected it
            (mismatch with the sampler, overlong filter); None keeps all       # (B, T)
        weights: factor of each token's policy loss (importance weights against the
            sampler, the top-entropy mask); None is 1 everywhere               # (B, T)
        extras: row-aligned tensors of plug-ins, sliced with the rest.
    """

    batch: Batch
    advantages: Tensor
    old_log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    keep: Tensor | None = None
    weights: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def mask(self) -> Tensor:
        """1.0 where a token of the model trains  # (B, T)."""
        return self.batch.mask if self.keep is None else self.batch.mask * self.keep

    def select(self, rows: Tensor) -> Experience:
        """The experience of these rows, in this order."""
        return _select(self, rows)

    def to(self, device: torch.device | str) -> Experience:
        """The experience on ``device``."""
        return _map(self, lambda tensor: tensor.to(device))

    def slices(self, prompts: int, *, epochs: int = 1, seed: int | None = None) -> Iterator[Tensor]:
        """Rows of whole groups, one slice per optimiser step, ``epochs`` times over.

        Args:
            prompts: groups per slice; the last slice of an epoch takes what is left.
            epochs: passes over the data.
            seed: shuffles the groups, differently in each epoch; None keeps their order.
        """
        groups = self.batch.group.unique()
        for epoch in range(epochs):
            order = groups
            if seed is not None:
                generator = torch.Generator().manual_seed(seed + epoch)
                order = groups[torch.randperm(len(groups), generator=generator).to(groups.device)]
            for chosen in order.split(prompts):
                yield (self.batch.group[:, None] == chosen).any(1).nonzero()[:, 0]

    def minibatches(self, prompts: int, *, epochs: int = 1, seed: int | None = None) -> Iterator[Experience]:
        """The experience of each of ``slices``."""
        for rows in self.slices(prompts, epochs=epochs, seed=seed):
            yield self.select(rows)


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Answers of an expert that an update learns from beside its rollouts (CHORD, arXiv 2508.11408).

    Attributes:
        batch: prompts with demonstrated answers; the mask holds the tokens to learn.
        weight: mu, above 0 and at most 1: theirs in the loss, where the rollouts' is 1 - mu. None stands for 0.
        phi: weigh each token by p (1 - p).
    """

    batch: Batch
    weight: float
    phi: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise ValueError(f"demonstrations weigh more than 0 and at most 1, got {self.weight}")

    def select(self, rows: Tensor) -> Demonstrations:
        """The demonstrations of these rows, in this order."""
        return replace(self, batch=self.batch.select(rows))


def collate(groups: Sequence[Group]) -> Batch:
    """Pads the rollouts of ``groups`` into one batch, group after group.

    Raises:
        ValueError: if there is no rollout to collate.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if not rollouts:
        raise ValueError("collate() got no rollouts")
    prompt_lengths = torch.tensor([len(r.prompt.ids) for r in rollouts])
    responses = [r.response_ids for r in rollouts]
    response_lengths = torch.tensor([len(r) for r in responses])
    T = max(int(response_lengths.max()), 1)
    return Batch(
        ids=_pad([r.ids for r in rollouts], int((prompt_lengths + response_lengths).max()), 0, torch.int64),
        prompt_lengths=prompt_lengths,
        response_lengths=response_lengths,
        mask=_pad([[float(a is Author.MODEL) for a in r.authors] for r in rollouts], T, 0.0, torch.float32),
        group=torch.tensor([i for i, group in enumerate(groups) for _ in group.rollouts]),
        rollout_log_probs=_pad([r.log_probs for r in rollouts], T, 0.0, torch.float32),
        policy_versions=_pad([r.policy_versions for r in rollouts], T, -1, torch.int64),
        truncated=torch.tensor([float(r.finish_reason is FinishReason.LENGTH) for r in rollouts]),
        media=_collate_media(rollouts),
    )


def _pad(rows: Sequence[Sequence[float]], width: int, value: float, dtype: torch.dtype) -> Tensor:
    out = torch.full((len(rows), width), value, dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return out


def _collate_media(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    if all(r.prompt.media is None for r in rollouts):
        return {}
    names = next(r.prompt.media for r in rollouts if r.prompt.media is not None)
    return {name: torch.stack([(r.prompt.media or {})[name] for r in rollouts]) for name in names}


def _map(record: Any, function: Any) -> Any:
    """``record`` with ``function`` applied to every tensor, nested records and mappings included."""
    changes: dict[str, Any] = {}
    for item in fields(record):
        value = changes[item.name] = record.__dict__[item.name]
        if isinstance(value, Tensor):
            changes[item.name] = function(value)
        elif isinstance(value, Mapping):
            changes[item.name] = {name: function(tensor) for name, tensor in value.items()}
        elif isinstance(value, Batch):
            changes[item.name] = _map(value, function)
    return replace(record, **changes)


def _select(record: Any, rows: Tensor) -> Any:
    return _map(record, lambda tensor: tensor[rows])
