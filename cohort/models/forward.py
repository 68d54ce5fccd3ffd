"""The forward pass of the policy: a batch in, per-token statistics out.

``token_stats`` is the only way to a log-prob. It asks for a layout, runs the decoder over the least number of
tokens, and sends only the positions that the model has to predict through the head. ``decode`` and ``spread`` are
what it shares with the value model (``value.py``), which reads the same positions. Activation checkpointing is
owned here: a decoder layer is wrapped by ``torch.utils.checkpoint`` for the length of a call, and no key-value
cache ever exists in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from cohort.errors import UserError
from cohort.models import attention
from cohort.models.head import HeadStats, head_stats
from cohort.models.layout import Arrangement, Layout, arrange
from cohort.protocols import TokenStats
from cohort.types import Batch

__all__ = ["Layout", "causal_lm", "decode", "spread", "token_stats"]


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model itself, without the wrapper that peft puts around it."""
    if isinstance(model, PreTrainedModel):
        return model
    wrapper: Any = model
    return wrapper.get_base_model()


def token_stats(
    model: nn.Module,
    batch: Batch,
    *,
    temperature: float,
    layout: Layout,
    entropy: bool = False,
    sum_pi_squared: bool = False,
    hidden: bool = False,
) -> TokenStats:
    """Statistics of every response token that the model wrote; 0 where ``mask`` is 0.

    Differentiable if gradients are on. The result does not depend on ``layout`` beyond rounding.

    Args:
        model: a causal LM, or peft's wrapper around one, in eval mode (dropout off).
        batch: the micro-batch; only the width of the result depends on its padding.
        temperature: divides the logits, as at sampling.
        layout: see ``Layout``.
        entropy: also the entropy of each next-token distribution.
        sum_pi_squared: also its collision probability.
        hidden: also the mean last hidden state (after the final norm) of each row's masked tokens, without gradient.

    Returns:
        Float32 statistics (float64 for a float64 model) on the model's device.
    """
    if batch.media:
        raise UserError("the batch has media, and the forward pass takes text alone; use a text model and text prompts")
    lm = causal_lm(model)
    B, T = batch.mask.shape
    if not (batch.mask > 0).any():
        zeros = torch.zeros(B, T, device=lm.device)
        pooled = torch.zeros(B, lm.config.get_text_config().hidden_size, device=lm.device)
        return TokenStats(
            log_probs=zeros,
            entropy=zeros if entropy else None,
            sum_pi_squared=zeros if sum_pi_squared else None,
            hidden=pooled if hidden else None,
        )
    plan = arrange(batch.to("cpu"), layout, last=hidden).to(lm.device)
    states = decode(lm, plan, checkpointing=layout.checkpointing)  # (N, D)
    head = lm.get_output_embeddings()
    assert head is not None, f"{type(lm).__name__} has no head"
    columns = head_stats(
        head,
        states.index_select(0, plan.source),
        plan.targets,
        vocabulary=lm.config.get_text_config().vocab_size,
        temperature=temperature,
        entropy=entropy,
        sum_pi_squared=sum_pi_squared,
    )
    return _padded(columns, plan, (B, T), pooled=_pool(states.detach(), plan, (B, T)) if hidden else None)


def _padded(columns: HeadStats, plan: Arrangement, shape: tuple[int, int], *, pooled: Tensor | None) -> TokenStats:
    """Statistics of M tokens spread over (B, T)."""
    return TokenStats(
        log_probs=spread(columns.log_probs, plan, shape),
        entropy=None if columns.entropy is None else spread(columns.entropy, plan, shape),
        sum_pi_squared=None if columns.sum_pi_squared is None else spread(columns.sum_pi_squared, plan, shape),
        hidden=pooled,
    )


def spread(column: Tensor, plan: Arrangement, shape: tuple[int, int]) -> Tensor:
    """Numbers of the M scored tokens in their cells, 0 elsewhere  # (B, T)."""
    return column.new_zeros(shape[0] * shape[1]).index_copy(0, plan.cells, column).view(shape)


def _pool(states: Tensor, plan: Arrangement, shape: tuple[int, int]) -> Tensor:
    """Mean hidden state of each row's scored tokens, 0 for a row without one  # (B, D)."""
    wide = torch.promote_types(states.dtype, torch.float32)
    rows = plan.cells // shape[1]
    total = states.new_zeros(shape[0], states.shape[1], dtype=wide)
    total.index_add_(0, rows, states.index_select(0, plan.own).to(wide))
    return total / rows.bincount(minlength=shape[0]).clamp(min=1)[:, None]


def decode(lm: PreTrainedModel, plan: Arrangement, *, checkpointing: bool) -> Tensor:
    """Last hidden states after the final norm, flattened over rows  # (N, D).

    Args:
        lm: a decoder with a head of any kind, in eval mode.
        plan: what it runs, on its device.
        checkpointing: see ``Layout``.
    """
    inputs: dict[str, Any] = {"input_ids": plan.ids, "use_cache": False}
    implementation = lm.config._attn_implementation
    if plan.segments is not None:
        implementation = attention.NAME
        inputs |= {"position_ids": plan.positions, "segments": plan.segments}
    with _attention(lm, implementation), _checkpointed(lm, implementation) if checkpointing else nullcontext():
        return lm.base_model(**inputs)[0].flatten(0, 1)


@contextmanager
def _attention(lm: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """Attention goes through ``implementation`` inside; the model is as it was afterwards."""
    before = lm.config._attn_implementation
    lm.config._attn_implementation = implementation
    try:
        yield
    finally:
        lm.config._attn_implementation = before


@contextmanager
def _checkpointed(lm: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """Decoder layers keep their input alone and run again in the backward pass."""
    layers = decoder_layers(lm)

    def run(forward: Any, *args: Any, **kwargs: Any) -> Any:
        with _attention(lm, implementation):  # the second run happens long after decode has returned
            return forward(*args, **kwargs)

    def run_checkpointed(forward: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(partial(run, forward), *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    for layer in layers:
        layer.forward = partial(run_checkpointed, layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def decoder_layers(lm: PreTrainedModel) -> list[nn.Module]:
    """The layers that activation checkpointing wraps.

    Raises:
        UserError: if the architecture does not mark them.
    """
    layers = [module for module in lm.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"{type(lm).__name__} does not mark its decoder layers; set enable_gradient_checkpointing=False under "
            "actor_rollout_ref.model (critic.model for the critic)"
        )
    return list(layers)
