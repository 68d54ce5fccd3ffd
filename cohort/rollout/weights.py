"""Taking new weights, and proving that they are the ones that are held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cohort.protocols import WeightMismatch, Weights

ADAPTED = ".base_layer."
"""What ``peft`` puts into the name of a layer that has an adapter."""


@torch.no_grad()
def receive(base: PreTrainedModel, weights: Weights, *, copied: bool) -> None:
    """Takes ``weights`` and proves what is held.

    A model that *is* the training module has nothing to take: every tensor must be its own storage, or
    equal to what the adapter makes of it. A copy is filled; then each of its tensors is read again, and
    its hash must be that of what was sent.

    Args:
        base: the Hugging Face model that is sampled from.
        weights: what is sent.
        copied: whether ``base`` is a copy, rather than (inside) the training module.

    Raises:
        WeightMismatch: naming the first tensor that is missing, unknown, misshapen or different.
    """
    own = {name: (value, needed) for name, value, needed in held_weights(base)}
    sent: set[int] = set()
    hashes: dict[str, Tensor] = {}
    for name, tensor in weights:
        if name not in own or own[name][0].shape != tensor.shape:
            held_as = f"is {tuple(own[name][0].shape)} there" if name in own else "does not exist there"
            raise WeightMismatch(f"{name} {tuple(tensor.shape)} was sent to the sampler but {held_as}")
        mine, value = own[name][0], tensor.detach()
        if copied:
            value = value.to(device=mine.device, dtype=mine.dtype)
            hashes[name] = fingerprint(value)
            store(mine, value)
        elif not _same_storage(mine, value) and not torch.equal(mine, value.to(mine.device, mine.dtype)):
            raise WeightMismatch(f"{name}: the sampler holds the training module, but other values were sent")
        sent.add(mine.data_ptr())
    for name, (mine, needed) in own.items():
        if needed and mine.data_ptr() not in sent:
            raise WeightMismatch(f"{name} was not sent to the sampler")
    for name, expected in hashes.items():
        if not torch.equal(fingerprint(own[name][0]), expected):
            raise WeightMismatch(f"{name}: the sampler's copy differs from what was sent")


def held_weights(base: PreTrainedModel) -> Iterator[tuple[str, Tensor, bool]]:
    """What the model computes with under Hugging Face names, adapters merged in, and whether it must be sent."""
    for name, tensor in base.state_dict(keep_vars=True).items():
        if ".lora_" in name:
            continue
        value = tensor.detach()
        if ADAPTED in name:
            owner, kind = name.split(ADAPTED)
            name = f"{owner}.{kind}"
            if kind == "weight":
                layer: Any = base.get_submodule(owner)
                value = value + layer.get_delta_weight("default").to(value.dtype)
        yield name, value, isinstance(tensor, nn.Parameter)


def store(mine: Tensor, value: Tensor) -> None:
    """Writes one tensor of the copy."""
    mine.copy_(value)


def fingerprint(tensor: Tensor) -> Tensor:
    """A hash of the tensor's bits."""
    return torch.hash_tensor(tensor.contiguous())


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.stride() == b.stride()
