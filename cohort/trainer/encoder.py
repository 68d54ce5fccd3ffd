"""Pooled hidden states of answers: from the policy's own forward pass, or from a frozen model beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from cohort.data.tokenizer import encode
from cohort.protocols import Policy, Reference
from cohort.types import Batch, Group, Prompt, Rollout, Segment, collate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PolicyEncoder:
    """The policy as it stands: states move while it learns, and so does a reward that is made of them.

    Args:
        actor: the policy.
    """

    def __init__(self, actor: Policy) -> None:
        self.actor = actor

    def __call__(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Mean last hidden state over each answer's own tokens  # (N, D)."""
        return _hidden(self.actor.log_probs(batch_of(rollouts), hidden=True).hidden)


class FrozenEncoder:
    """A model that does not move, loaded when it is first asked.

    Args:
        load: gives the model.
        max_length: longest prompt and answer in tokens; the prompt is cut from the left, an answer never.
        tokenizers: the policy's and the encoder's where they differ: then the texts are encoded anew. None where
            they are the same: then the sampled ids are read as they are.
    """

    def __init__(
        self,
        load: Callable[[], Reference],
        *,
        max_length: int,
        tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None = None,
    ) -> None:
        self.load = load
        self.max_length = max_length
        self.tokenizers = tokenizers

    @cached_property
    def model(self) -> Reference:
        """The model."""
        return self.load()

    def __call__(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Mean last hidden state over each answer's own tokens  # (N, D)."""
        shown = [self._cut(self._encoded(rollout)) for rollout in rollouts]
        return _hidden(self.model.log_probs(batch_of(shown), hidden=True).hidden)

    def _encoded(self, rollout: Rollout) -> Rollout:
        if self.tokenizers is None:
            return rollout
        policy, own = self.tokenizers
        prompt = replace(rollout.prompt, ids=encode(own, [rollout.prompt.text])[0])
        return replace(rollout, prompt=prompt, segments=tuple(_again(s, policy, own) for s in rollout.segments))

    def _cut(self, rollout: Rollout) -> Rollout:
        room = max(self.max_length - len(rollout.response_ids), 1)
        prompt: Prompt = rollout.prompt
        return replace(rollout, prompt=replace(prompt, ids=prompt.ids[-room:]))


def _again(segment: Segment, policy: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase) -> Segment:
    """A segment in the encoder's tokens; those that mean nothing to it, the end of a turn for one, are left out."""
    text = policy.decode(list(segment.ids), skip_special_tokens=True)
    ids = continued(own, str(text))
    numbers = (0.0,) * len(ids) if segment.log_probs else ()
    return replace(segment, ids=ids, log_probs=numbers, policy_versions=(-1,) * len(numbers))


def batch_of(rollouts: Sequence[Rollout]) -> Batch:
    """Rollouts as a batch; neighbours with one prompt may share its computation."""
    groups: list[Group] = []
    for rollout in rollouts:
        if groups and groups[-1].prompt.ids == rollout.prompt.ids:
            groups[-1] = replace(groups[-1], rollouts=(*groups[-1].rollouts, rollout))
        else:
            groups.append(Group(prompt=rollout.prompt, rollouts=(rollout,)))
    return collate(groups)


def _hidden(states: Tensor | None) -> Tensor:
    assert states is not None, "the forward pass was asked for hidden states"
    return states


def gold_ids(
    prompt: Prompt, *, tokenizer: PreTrainedTokenizerBase, key: str | None, end: int | None
) -> list[tuple[int, ...]]:
    """The gold answers to a prompt as a sampled answer would have them, the end of the turn included.

    Args:
        prompt: the question.
        tokenizer: the policy's.
        key: data column with the gold answer; None is the answer key.
        end: the id that ends a turn; None where there is none.
    """
    value = prompt.ground_truth if key is None else prompt.columns.get(key)
    if isinstance(value, dict) and "target" in value:
        value = value["target"]
    texts = value if isinstance(value, list | tuple) else [] if value is None else [value]
    found = [continued(tokenizer, str(text)) for text in texts]
    return [(*ids, end) if end is not None else ids for ids in found if ids]


def continued(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """The ids of a text that goes on after a prompt: nothing is put before it."""
    return tuple(tokenizer([text], add_special_tokens=False)["input_ids"][0])  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
