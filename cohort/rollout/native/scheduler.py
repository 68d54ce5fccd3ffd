"""Which completions run: rows wait in a fixed order and leave the moment they end."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from torch import Tensor

from cohort.protocols import Completion, Request
from cohort.rollout.ending import Ending
from cohort.types import FinishReason

Order = tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Shared:
    """A prompt whose keys and values are computed once for all rows that start with it.

    Attributes:
        ids: its tokens.
        slot: in the store of prompts.
        readers: rows that use it.
        logits: after its last token, for the rows that start right behind it  # (V,)
    """

    ids: tuple[int, ...]
    slot: int = -1
    readers: int = 0
    logits: Tensor | None = None


@dataclass(eq=False, kw_only=True)
class Row:
    """One completion in the making.

    Attributes:
        request: what was asked for.
        ending: says when it is over.
        stream: the hash of its seed key.
        number: counts requests; decides between rows of the same key and length.
        tokens: what was drawn so far.
        log_probs: of each token.
        versions: of the weights that drew each token.
        slot: in the store of tails, -1 while it waits.
        shared: the prompt it reads, None while it waits.
        finish_reason: why it is over, None while it is not.
    """

    request: Request
    ending: Ending
    stream: int
    number: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    slot: int = -1
    shared: Shared | None = None
    finish_reason: FinishReason | None = None

    @property
    def order(self) -> Order:
        """Rows are admitted and batched in this order: step, prompt, sample, turn. Never by arrival."""
        key = self.request.key
        return (key.seed, key.step, key.prompt, key.sample, len(self.request.ids), self.number)

    @property
    def length(self) -> int:
        """Tokens of prompt and completion so far."""
        return len(self.request.ids) + len(self.tokens)

    def completion(self) -> Completion:
        """What was sampled, once it is over."""
        assert self.finish_reason is not None
        return Completion(
            ids=tuple(self.tokens),
            log_probs=tuple(self.log_probs),
            policy_versions=tuple(self.versions),
            finish_reason=self.finish_reason,
        )


class Scheduler:
    """The rows that wait and the rows that run, both in order.

    Args:
        slots: rows that run at a time.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.waiting: list[Row] = []
        self.live: list[Row] = []

    @property
    def busy(self) -> bool:
        """Whether any row is not finished."""
        return bool(self.waiting or self.live)

    def add(self, row: Row) -> None:
        """Lets ``row`` wait for a slot."""
        insort(self.waiting, row, key=lambda r: r.order)

    def admit(self) -> list[Row]:
        """Moves the first waiting rows to the free slots; the rows that moved, in order."""
        free = self.slots - len(self.live)
        fresh, self.waiting = self.waiting[:free], self.waiting[free:]
        for row in fresh:
            insort(self.live, row, key=lambda r: r.order)
        return fresh

    def remove(self, row: Row) -> None:
        """Forgets ``row``, wherever it is."""
        (self.live if row in self.live else self.waiting).remove(row)

    def return_all(self) -> None:
        """Lets every running row wait again."""
        rows, self.live = self.live, []
        for row in rows:
            self.add(row)

    def clear(self) -> list[Row]:
        """Forgets all rows; the rows that were there."""
        rows, self.waiting, self.live = [*self.live, *self.waiting], [], []
        return rows
