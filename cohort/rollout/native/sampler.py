"""The embedded engine behind the ``Sampler`` protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count

import torch
from torch import nn

from cohort.errors import UserError
from cohort.protocols import Completion, Request, Weights
from cohort.rollout.ending import Decodes, Ending, check_request
from cohort.rollout.event_loop import quiet, retrieved
from cohort.rollout.native.engine import Counters, Engine
from cohort.rollout.native.model import HeldModel
from cohort.rollout.native.scheduler import Row
from cohort.rollout.sampling import streams
from cohort.types import FinishReason


class NativeSampler:
    """Samples from the training model itself, with continuous batching. ``protocols.Sampler``.

    While requests are open, one task of the caller's event loop decodes a step, lets every coroutine
    that is ready run, and decodes the next. It never waits for a tool or a reward; there is no thread.

    Requests are admitted and batched by (step, prompt, sample, turn), never by arrival, and draws depend
    on the request's seed key and position alone: which other requests run at the same time can act
    through float rounding only.

    Args:
        model: a Hugging Face decoder with full causal attention, or a ``PeftModel`` around one. It is
            held, not copied, unless ``dtype`` differs from its own.
        eos_ids: every id that ends a turn.
        tokenizer: needed for stop strings.
        slots: completions that run at a time; each has a place in the preallocated cache.
        dtype: type of one cast copy to sample from; None samples from ``model``.
        max_model_len: longest prompt with its completion; None is the model's own limit.
        own_copy: sample from a copy of ``model`` even in its own type: the trained weights live elsewhere.

    Raises:
        UserError: naming the model's class, if its attention is not plain full causal attention.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        eos_ids: Iterable[int],
        tokenizer: Decodes | None = None,
        slots: int = 128,
        dtype: torch.dtype | None = None,
        max_model_len: int | None = None,
        own_copy: bool = False,
    ) -> None:
        if slots < 1:
            raise UserError(f"rollout slots={slots} must be at least 1")
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(eos_ids)
        self._engine = Engine(HeldModel(model, dtype=dtype, max_model_len=max_model_len, own_copy=own_copy), slots)
        self._futures: dict[Row, asyncio.Future[Completion]] = {}
        self._numbers = count()
        self._driver: asyncio.Task[None] | None = None

    @property
    def counters(self) -> Counters:
        """Tokens prefilled and decoded, and decode passes, since the sampler was made."""
        return self._engine.counters

    @property
    def version(self) -> int:
        """Version of the weights that are held."""
        return self._engine.version

    async def complete(self, request: Request) -> Completion:
        """Samples until an EOS id, a stop string, ``max_tokens`` or the model's longest input.

        A prompt that leaves no room gives an empty completion that was ended by length.

        Raises:
            UserError: for settings that mean nothing, and for media and adapters, which come with other engines.
        """
        row = self._make_row(request)
        if row.ending.full:
            row.finish_reason = FinishReason.LENGTH
            return row.completion()
        loop = asyncio.get_running_loop()
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._fail(asyncio.CancelledError())  # rows of a loop that is gone
            self._driver = loop.create_task(self._drive())
            self._driver.add_done_callback(retrieved)
        future = self._futures[row] = loop.create_future()
        self._engine.scheduler.add(row)
        try:
            return await future
        finally:
            if self._futures.pop(row, None) is not None:  # cancelled: nobody waits for the row any more
                self._engine.drop(row)

    def load(self, weights: Weights, version: int) -> None:
        """Takes new weights and proves what is held; caches made with the old ones are dropped.

        Completions that are running go on with the new weights from the next token.

        Raises:
            WeightMismatch: naming the first tensor that does not match what was sent.
        """
        self._engine.load(weights, version)

    def _make_row(self, request: Request) -> Row:
        check_request(request, "native")
        room = self._engine.model.max_model_len - len(request.ids)
        return Row(
            request=request,
            ending=Ending(request.sampling, self._eos_ids, self._tokenizer, room),
            stream=int(streams([request.key])[0]),
            number=next(self._numbers),
        )

    async def _drive(self) -> None:
        """Decodes until no request is open."""
        try:
            await quiet()
            while self._engine.scheduler.busy:
                for row in self._engine.step():
                    future = self._futures.pop(row)
                    if not future.done():
                        future.set_result(row.completion())
                await quiet()
        except BaseException as failure:
            self._fail(failure)
            if not isinstance(failure, Exception):
                raise

    def _fail(self, failure: BaseException) -> None:
        """Hands ``failure`` to everyone who waits, and starts from nothing."""
        self._engine.clear()
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if future.get_loop().is_closed() or future.done():
                continue
            if isinstance(failure, Exception):
                future.set_exception(failure)
            else:
                future.cancel()
