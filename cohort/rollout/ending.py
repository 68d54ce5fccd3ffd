"""What a request may ask for, and when its completion is over: EOS ids, stop strings, token limits.

The same for every engine of ours.
"""

from __future__ import annotations

from typing import Any, Protocol

from cohort.errors import UserError
from cohort.protocols import Request, Sampling
from cohort.rollout.sampling import check_sampling
from cohort.types import FinishReason


class Decodes(Protocol):
    """The part of a tokenizer that stop strings need."""

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """The text of these ids."""
        ...


def check_request(request: Request, engine: str) -> None:
    """Refuses what the engines in this process cannot do.

    Raises:
        UserError: for settings that mean nothing, prompts without tokens, media, and adapters by name.
    """
    check_sampling(request.sampling)
    if request.media is not None or request.adapter is not None:
        what = "media" if request.media is not None else f"adapter {request.adapter!r}"
        raise UserError(f"rollout.name={engine} samples text from the policy itself and cannot take {what}")
    if not request.ids:
        raise UserError("a prompt of no tokens cannot be completed: give at least one id")


class Ending:
    """Watches one completion grow and says when it is over.

    Args:
        sampling: limits and stop strings.
        eos_ids: every id that ends a turn; the id itself belongs to the completion.
        tokenizer: needed where there are stop strings.
        room: tokens that fit behind the prompt before the model's longest input is reached.

    Raises:
        UserError: if there are stop strings but no tokenizer.
    """

    def __init__(self, sampling: Sampling, eos_ids: frozenset[int], tokenizer: Decodes | None, room: int) -> None:
        self._eos_ids = frozenset() if sampling.ignore_eos else eos_ids
        self._left = min(sampling.max_tokens, room)
        self._text: _Text | None = None
        if sampling.stop:
            if tokenizer is None:
                raise UserError(f"stop strings {sampling.stop!r} need a tokenizer: hand one to the sampler")
            self._text = _Text(tokenizer, sampling.stop)

    @property
    def full(self) -> bool:
        """Whether not even one token may be drawn."""
        return self._left <= 0

    def push(self, token: int) -> FinishReason | None:
        """Takes the next token; why the completion ends with it, or None."""
        self._left -= 1
        if token in self._eos_ids:
            return FinishReason.STOP
        if self._text is not None and self._text.push(token):
            return FinishReason.STOP
        return FinishReason.LENGTH if self._left <= 0 else None


class _Text:
    """Decodes a completion piece by piece and looks for stop strings, also across token borders.

    A token may hold part of a character only, and some tokenizers drop a leading space at the start of
    what they decode. Each piece is therefore decoded together with the piece before it, and only what
    that adds is new text (the method of Hugging Face's text-generation-inference).
    """

    def __init__(self, tokenizer: Decodes, stop: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._keep = max(len(s) for s in stop) - 1
        self._ids: list[int] = []  # the piece before, then the piece that is still incomplete
        self._before = 0  # ids in the piece before
        self._window = ""  # the last characters of the text so far

    def push(self, token: int) -> bool:
        """Whether the text now contains a stop string."""
        self._ids.append(token)
        known = self._decode(self._ids[: self._before])
        text = self._decode(self._ids)
        window = self._window + text[len(known) :]
        if any(s in window for s in self._stop):
            return True
        if len(text) > len(known) and not text.endswith("�"):
            self._window = window[max(len(window) - self._keep, 0) :]
            self._ids = self._ids[self._before :]
            self._before = len(self._ids)
        return False

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""
