"""Compute in bfloat16, learn in float32.

The parameters are float32 masters. Inside ``with compute():`` every module sees casts of them, so the forward pass
has the numbers of a model that was loaded in bfloat16, which is what the sampler holds; outside, the masters are in
their place again. A cast is differentiable: gradients of all micro-batches are added up in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from cohort.errors import UserError

FAST_BF16_PARAMETERS = 1_000_000
"""On a CPU with bfloat16 units, models from this size gain from them; smaller ones lose to conversions."""

Model = TypeVar("Model", bound=nn.Module)

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float64": torch.float64,
}


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # "bf16" is the ARM name. A CPU with bfloat16 storage instructions alone is not listed by any of them.
        able = torch.cpu.get_capabilities()
        return any(able.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return False


def resolve_precision(device: torch.device, parameters: int, requested: str = "auto") -> torch.dtype:
    """The compute type of a model: a fixed rule, decided once per run.

    Args:
        device: where it runs.
        parameters: how many it has.
        requested: ``auto``, or a type by name, which overrides the rule.

    Returns:
        bfloat16 on CUDA devices that have it, and on CPUs that have it for models of a million parameters or more;
        float32 otherwise.

    Raises:
        UserError: for an unknown name.
    """
    if requested != "auto":
        if requested not in DTYPES:
            raise UserError(f"precision {requested!r} is not one of auto, {', '.join(DTYPES)}")
        return DTYPES[requested]
    large = device.type == "cuda" or parameters >= FAST_BF16_PARAMETERS
    return torch.bfloat16 if large and has_fast_bfloat16(device) else torch.float32


def cast_parameters(model: Model, dtype: torch.dtype) -> Model:
    """Turns the parameters of a frozen copy into ``dtype``, in place; tied ones stay tied.

    Buffers are left alone, unlike by ``model.to(dtype)``: rotary frequencies in bfloat16 would turn positions wrong.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model


class Compute:
    """Lends a model casts of its parameters.

    Frozen parameters (the base model under LoRA) are cast once and kept; trainable ones are cast at each entry, so
    leave and enter again after they have changed. A backward pass that recomputes activations runs inside as well.

    Args:
        model: whose parameters are lent.
        dtype: the compute type; the model's own type means that nothing is done.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        self.frozen = {
            id(p): p.detach().to(dtype) for p in model.parameters() if self._differs(p) and not p.requires_grad
        }

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Casts in, masters out."""
        casts = dict(self.frozen)
        lent: list[tuple[nn.Module, str, nn.Parameter]] = []
        try:
            for module in self.model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and self._differs(parameter):
                        if id(parameter) not in casts:
                            casts[id(parameter)] = parameter.to(self.dtype)  # tied parameters share one cast
                        lent.append((module, name, parameter))
            for module, name, parameter in lent:
                module._parameters[name] = casts[id(parameter)]  # pyright: ignore[reportArgumentType]
            yield
        finally:
            for module, name, parameter in lent:
                module._parameters[name] = parameter

    def _differs(self, parameter: Tensor) -> bool:
        return parameter.is_floating_point() and parameter.dtype != self.dtype
