"""A model's weights under Hugging Face names, adapters merged, for samplers and for folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cohort.models.forward import causal_lm
from cohort.models.quiet import no_progress_bars

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BASE = ".base_layer."


@torch.no_grad()
def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight under its Hugging Face name, tied ones once per name, LoRA added in.

    Tensors are the model's own where nothing had to be added: copy before the next update changes them.
    """
    lm = causal_lm(model)
    if model is lm:
        yield from lm.state_dict().items()
        return
    for name, tensor in lm.state_dict().items():
        if ".lora_" in name:
            continue
        if BASE in name:
            owner, kind = name.split(BASE)
            name = f"{owner}.{kind}"
            if kind == "weight":
                adapted: Any = lm.get_submodule(owner)
                tensor = tensor + adapted.get_delta_weight("default").to(tensor.dtype)
        yield name, tensor


def save_folder(model: nn.Module, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """A folder that ``from_pretrained`` of the model's own kind loads, with the tokenizer.

    Under LoRA the weights are merged, and the adapter alone is in ``adapter/``.
    """
    lm: PreTrainedModel = causal_lm(model)
    with no_progress_bars():
        lm.save_pretrained(folder, state_dict=dict(merged_weights(model)))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if model is not lm:
        adapters: Any = model
        adapters.save_pretrained(folder / "adapter")
