"""``model.generate`` behind the ``Sampler`` protocol: slow, for any decoder, and the embedded engine's oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from cohort.errors import UserError
from cohort.protocols import Completion, Request, Weights
from cohort.rollout.ending import Decodes, Ending, check_request
from cohort.rollout.event_loop import quiet, retrieved
from cohort.rollout.holding import base_model, cast_copy, longest_input
from cohort.rollout.sampling import Settings, sample, streams, uniforms
from cohort.rollout.weights import receive
from cohort.types import FinishReason


@dataclass(eq=False, kw_only=True)
class _Row:
    """One request of a batch and what was drawn for it."""

    request: Request
    ending: Ending
    future: asyncio.Future[Completion]
    number: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def order(self) -> tuple[int, ...]:
        key = self.request.key
        return (key.seed, key.step, key.prompt, key.sample, len(self.request.ids), self.number)


class HFSampler:
    """Samples with ``model.generate``, whole left-padded batches at a time. ``protocols.Sampler``.

    Requests that are open when nothing else is ready run as one batch, in the order (step, prompt, sample,
    turn); the batch blocks until its longest row is finished. The draws are the embedded engine's, of
    logits that ``generate`` hands over in float32. Nothing of the model folder's ``generation_config``
    has an effect.

    Args:
        model: a Hugging Face decoder, or a ``PeftModel`` around one; held unless ``dtype`` differs from its own.
        eos_ids: every id that ends a turn.
        tokenizer: needed for stop strings.
        slots: rows of one batch at most.
        dtype: type of one cast copy to sample from; None samples from ``model``.
        own_copy: sample from a copy of ``model`` even in its own type: the trained weights live elsewhere.
        max_model_len: longest prompt with its completion; None is the model's own limit.

    Raises:
        UserError: for an encoder-decoder, by class name.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        eos_ids: Iterable[int],
        tokenizer: Decodes | None = None,
        slots: int = 128,
        dtype: torch.dtype | None = None,
        own_copy: bool = False,
        max_model_len: int | None = None,
    ) -> None:
        own = base_model(model)
        if own.config.is_encoder_decoder:
            raise UserError(f"{type(own).__name__} is an encoder-decoder: only decoders can be sampled from")
        if slots < 1:
            raise UserError(f"rollout slots={slots} must be at least 1")
        self._copied = own_copy or (dtype is not None and dtype != own.dtype)
        self._module = cast_copy(model, dtype or own.dtype) if self._copied else model
        self._base = base_model(self._module)
        self._max_model_len = longest_input(self._base, max_model_len)
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(eos_ids)
        self._slots = slots
        self._version = 0
        self._waiting: list[_Row] = []
        self._numbers = count()
        self._driver: asyncio.Task[None] | None = None

    async def complete(self, request: Request) -> Completion:
        """Samples until an EOS id, a stop string, ``max_tokens`` or the model's longest input.

        Raises:
            UserError: for settings that mean nothing, and for media and adapters.
        """
        check_request(request, "hf")
        loop = asyncio.get_running_loop()
        room = self._max_model_len - len(request.ids)
        row = _Row(
            request=request,
            ending=Ending(request.sampling, self._eos_ids, self._tokenizer, room),
            future=loop.create_future(),
            number=next(self._numbers),
        )
        if row.ending.full:
            return Completion(ids=(), log_probs=(), policy_versions=(), finish_reason=FinishReason.LENGTH)
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            self._waiting.clear()
            self._driver = loop.create_task(self._drive())
            self._driver.add_done_callback(retrieved)
        self._waiting.append(row)
        try:
            return await row.future
        finally:
            if row in self._waiting:
                self._waiting.remove(row)

    def load(self, weights: Weights, version: int) -> None:
        """Takes new weights and proves what is held.

        Raises:
            WeightMismatch: naming the first tensor that does not match what was sent.
        """
        receive(self._base, weights, copied=self._copied)
        self._version = version

    async def _drive(self) -> None:
        """Runs batches until no request is open."""
        await quiet()
        while self._waiting:
            self._waiting.sort(key=lambda row: row.order)
            rows, self._waiting = self._waiting[: self._slots], self._waiting[self._slots :]
            try:
                self._generate(rows)
            except BaseException as failure:
                for row in rows:
                    if isinstance(failure, Exception) and not row.future.done():
                        row.future.set_exception(failure)
                    row.future.cancel()
                if not isinstance(failure, Exception):
                    raise
            for row in rows:
                if not row.future.done():
                    row.future.set_result(self._completion(row))
            await quiet()

    @torch.no_grad()
    def _generate(self, rows: Sequence[_Row]) -> None:
        device = self._base.device
        width = max(len(row.request.ids) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, width - len(row.request.ids) :] = torch.tensor(row.request.ids)
        lengths = torch.tensor([len(row.request.ids) for row in rows])
        mask = torch.arange(width) >= (width - lengths)[:, None]
        draws = _Draws(rows, width - lengths, device)
        most = max(min(row.request.sampling.max_tokens, self._max_model_len - len(row.request.ids)) for row in rows)
        with _plain_settings(self._module, self._base):
            cast(Any, self._base).generate(
                ids.to(device),
                attention_mask=mask.to(device=device, dtype=torch.int64),
                generation_config=GenerationConfig(max_new_tokens=most, do_sample=False, pad_token_id=0),
                logits_processor=LogitsProcessorList([draws]),
                stopping_criteria=StoppingCriteriaList([_AllOver(rows)]),
            )

    def _completion(self, row: _Row) -> Completion:
        assert row.finish_reason is not None
        return Completion(
            ids=tuple(row.tokens),
            log_probs=tuple(row.log_probs),
            policy_versions=(self._version,) * len(row.tokens),
            finish_reason=row.finish_reason,
        )


class _Draws(LogitsProcessor):
    """Draws each row's token with our numbers, notes it, and leaves ``generate`` no other choice."""

    def __init__(self, rows: Sequence[_Row], padding: Tensor, device: torch.device) -> None:
        self._rows = rows
        self._padding = padding
        self._settings = Settings.of([row.request.sampling for row in rows], device)
        self._streams = streams([row.request.key for row in rows])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        positions = input_ids.shape[1] - self._padding
        tokens, log_probs = sample(scores, self._settings, uniforms(self._streams, positions))
        for row, token, log_prob in zip(self._rows, tokens.tolist(), log_probs.tolist(), strict=True):
            if row.finish_reason is None:
                row.tokens.append(token)
                row.log_probs.append(log_prob)
                row.finish_reason = row.ending.push(token)
        return torch.full_like(scores, float("-inf")).scatter(1, tokens[:, None], 0.0)


class _AllOver(StoppingCriteria):
    """Ends the batch when every row is over; ``generate`` itself never ends one."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self._rows = rows

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        over = all(row.finish_reason is not None for row in self._rows)
        return torch.full((len(self._rows),), over, device=input_ids.device)


@contextmanager
def _plain_settings(module: nn.Module, base: PreTrainedModel) -> Iterator[None]:
    """No dropout, and a blank ``generation_config``: ``generate`` fills what we leave open from the model's."""
    folder, training = base.generation_config, module.training
    base.generation_config = GenerationConfig()
    module.eval()
    try:
        yield
    finally:
        base.generation_config = folder
        module.train(training)
