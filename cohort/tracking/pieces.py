"""The text of each token, so that a stored answer can be shown token by token without its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

LOST = "�"
"""What a tokenizer writes for bytes that are no character yet."""


class TokenTexts:
    """Token ids to the text of each. What a token says is worked out once.

    A character that several tokens share belongs to the first of them; the others are empty.

    Args:
        decode: ids to text, special tokens included.
        anchor: ids of some ordinary text. A token is decoded behind them, because many tokenizers drop the space
            that a text begins with.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], anchor: Sequence[int]) -> None:
        self._decode = decode
        self._anchor = list(anchor)
        self._start = decode(self._anchor) if self._anchor else ""
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """The text of each of ``ids``."""
        pieces: list[str] = []
        first = 0
        while first < len(ids):
            text, last = self._one(ids[first]), first + 1
            if LOST in text:
                while last < len(ids) and LOST in self._one(ids[last]):
                    last += 1
                pieces += self._characters(ids[first:last])
            else:
                pieces.append(text)
            first = last
        return pieces

    def _one(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._behind([token])
        return self._known[token]

    def _behind(self, ids: Sequence[int]) -> str:
        whole = self._decode([*self._anchor, *ids])
        return whole[len(self._start) :] if whole.startswith(self._start) else self._decode(ids)

    def _characters(self, ids: Sequence[int]) -> list[str]:
        """Texts of tokens that hold parts of characters: as few of them together as make a character, at most four."""
        pieces: list[str] = []
        while len(pieces) < len(ids):
            rest = ids[len(pieces) :]
            sizes = range(1, min(4, len(rest)) + 1)
            size = next((n for n in sizes if LOST not in self._behind(rest[:n])), 1)
            pieces += [self._behind(rest[:size]), *[""] * (size - 1)]
        return pieces
