"""What a sampler holds: the training module itself, or one cast copy of the Hugging Face model in it."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

UNLIMITED = 1 << 30
"""The longest input of a model without position embeddings."""


def base_model(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model inside ``model``: itself, or what a ``PeftModel`` wraps."""
    return cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)


def longest_input(base: PreTrainedModel, wanted: int | None) -> int:
    """Tokens of prompt and completion that the model takes: ``wanted``, or its own limit where that is less."""
    config = base.config.get_text_config()
    own = int(config.max_position_embeddings) if hasattr(config, "max_position_embeddings") else UNLIMITED
    return min(wanted or own, own)


def cast_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the Hugging Face model in another type: adapters left out, buffers as they are.

    Parameters are cast while they are copied, so the copy never exists in the wide type. Buffers keep
    their type: rotary frequencies in bfloat16 would be wrong at long positions.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        narrow = parameter.detach().to(dtype) if parameter.is_floating_point() else parameter.detach().clone()
        memo[id(parameter)] = nn.Parameter(narrow, requires_grad=False)
    copied = copy.deepcopy(model, memo)
    if isinstance(copied, PeftModel):
        copied = cast(nn.Module, copied.unload())
    base_model(copied).config.dtype = dtype
    return copied.eval().requires_grad_(False)
