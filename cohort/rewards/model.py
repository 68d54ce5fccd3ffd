"""A reward model: a frozen sequence classifier reads question and answer and its logit is the score.

The conversation is rendered by the reward model's own tokenizer and chat template. It is tokenised anew on purpose,
also where both tokenizers are the same: what the classifier saw in its training is its own template, not the policy's
ids. Nothing is trained on these ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from cohort.errors import UserError
from cohort.models.classifier import Classifier
from cohort.rewards.base import Graded
from cohort.rewards.conversation import conversation, question
from cohort.types import Rollout

Truncation = Literal["right", "left", "unscorable"]
Activation = Literal["none", "sigmoid", "softmax"]


class RendersConversations(Protocol):
    """The part of a Hugging Face tokenizer that is needed."""

    chat_template: Any
    model_max_length: int

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """The text of a conversation."""
        ...

    def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """Ids of texts, or of pairs of texts."""
        ...


class ClassifierReward:
    """Grades answers by one logit of a sequence classifier: ``scale * activation(logit) + shift``.

    Answers are graded together (see ``MixedReward``): all of a step at once, in the order (prompt, sample), so the
    micro-batches are the same in every run of the same step, whatever arrived first.

    Args:
        classifier: the model.
        tokenizer: its own; without a chat template the question and the answer are encoded as a pair.
        label: name or number of the logit; None takes the only one.
        activation: what the logit goes through; ``softmax`` over all labels.
        scale: factor.
        shift: summand.
        max_length: most tokens that are read; None is the model's limit.
        truncation: what happens to a longer conversation: its end is cut (``right``, verl's way), its beginning, or it
            is not scored. Whatever was cut is counted in the part ``truncated``.
        say: where the one remark about cut answers goes.

    Raises:
        UserError: a label that the model does not have, a choice of labels without a name, a ``max_length`` beyond the
            model's own.
    """

    together = True

    def __init__(
        self,
        classifier: Classifier,
        tokenizer: RendersConversations,
        *,
        label: str | None = None,
        activation: Activation = "none",
        scale: float = 1.0,
        shift: float = 0.0,
        max_length: int | None = None,
        truncation: Truncation = "right",
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.classifier = classifier
        self.tokenizer = tokenizer
        self.column = _column(classifier.labels, label)
        self.activation = activation
        self.scale = scale
        self.shift = shift
        self.max_length = _longest(classifier, tokenizer, max_length)
        self.truncation: Truncation = truncation
        self._say: Callable[[str], None] | None = say

    async def grade(self, rollouts: Sequence[Rollout]) -> list[Graded]:
        """One outcome per rollout, in order. ``rollout.text`` is the answer.

        Raises:
            UserError: where a pass does not fit into the device's memory.
        """
        encoded = [self.encode(rollout) for rollout in rollouts]
        rows = [ids for ids in encoded if not isinstance(ids, str)]
        kept = [self._cut(ids) for ids in rows]
        try:
            values = iter(self._values(self.classifier.logits([row for row in kept if row])).tolist())
        except torch.OutOfMemoryError as error:
            raise UserError(
                "the reward model's pass does not fit into memory; lower reward_model.forward_max_token_len_per_gpu"
            ) from error
        cut = sum(self._too_long(ids) for ids in rows)
        if cut and self._say:
            self._say(
                f"reward model: {cut} of {len(rollouts)} conversations are longer than {self.max_length} tokens; "
                f"reward_model.truncation={self.truncation}; counted in reward/reward_model/truncated/mean"
            )
            self._say = None
        fitting = iter(kept)
        return [
            Graded(None, reason=ids) if isinstance(ids, str) else self._graded(ids, next(fitting), values)
            for ids in encoded
        ]

    def encode(self, rollout: Rollout) -> list[int] | str:
        """Ids of the whole conversation, or why there are none."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            ids = self.tokenizer(question(rollout.prompt), rollout.text)["input_ids"]
            return list(ids) or "the conversation has no token"
        messages = conversation(rollout.prompt, rollout.text)
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        except TemplateError as error:
            return f"the reward model's chat template refuses the conversation ({error})"
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) or "the conversation has no token"

    def _too_long(self, ids: Sequence[int]) -> bool:
        return self.max_length is not None and len(ids) > self.max_length

    def _cut(self, ids: list[int]) -> list[int]:
        """What is read of ``ids``; nothing where it is too long to be scored."""
        if self.max_length is None or not self._too_long(ids):
            return ids
        if self.truncation == "unscorable":
            return []
        return ids[: self.max_length] if self.truncation == "right" else ids[-self.max_length :]

    def _values(self, logits: Tensor) -> Tensor:
        """Scores  # (R, labels) -> (R,)."""
        if self.activation == "softmax":
            value = logits.softmax(1)[:, self.column]
        else:
            value = logits[:, self.column]
            value = value.sigmoid() if self.activation == "sigmoid" else value
        return self.scale * value + self.shift

    def _graded(self, ids: list[int], kept: list[int], values: Any) -> Graded:
        parts: dict[str, float | str] = {"truncated": float(self._too_long(ids))}
        if not kept:
            reason = f"the conversation has {len(ids)} tokens, reward_model.max_length={self.max_length}"
            return Graded(None, parts, reason)
        value = next(values)
        if not math.isfinite(value):
            return Graded(None, parts, f"the reward model gave {value}")
        return Graded(value, parts)


def _column(labels: Sequence[str], label: str | None) -> int:
    if label is None:
        if len(labels) == 1:
            return 0
        raise UserError(
            f"the reward model has {len(labels)} labels ({', '.join(labels[:8])}); name the one whose logit is the "
            "score with reward_model.label"
        )
    if label in labels:
        return labels.index(label)
    if label.isdecimal() and int(label) < len(labels):
        return int(label)
    raise UserError(f"reward_model.label={label}: the reward model has {', '.join(labels[:8])}")


def _longest(classifier: Classifier, tokenizer: RendersConversations, wanted: int | None) -> int | None:
    """Tokens that are read: ``wanted``, else what model and tokenizer declare."""
    declared = [n for n in (classifier.longest_input, tokenizer.model_max_length) if n is not None and n < 1 << 30]
    own = min(declared, default=None)
    if wanted is not None and own is not None and wanted > own:
        raise UserError(f"reward_model.max_length={wanted}: the reward model reads at most {own} tokens")
    return wanted if wanted is not None else own
