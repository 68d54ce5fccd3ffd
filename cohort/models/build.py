"""Models from Hugging Face folders: load, adapt, place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from cohort.errors import UserError
from cohort.models.forward import causal_lm
from cohort.models.precision import resolve_precision

__all__ = ["add_lora", "load_model", "named", "override", "pick_device", "resolve_precision"]


def pick_device(requested: str = "auto") -> torch.device:
    """The device of a run: ``auto`` takes the first CUDA device, else the CPU.

    Raises:
        UserError: for an unknown name, or a device this machine does not have.
    """
    if requested == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise UserError(f"device {requested!r} is not one of auto, cpu, cuda, cuda:N, mps") from error
    available = {
        "cpu": lambda: True,
        "cuda": lambda: (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available,
    }
    if device.type not in available:
        raise UserError(f"device {requested!r} is not one of auto, cpu, cuda, cuda:N, mps")
    if not available[device.type]():
        raise UserError(f"this machine has no device {requested!r}; use auto or cpu")
    return device


def load_model(
    path: str | Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    override_config: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """A causal LM in eval mode, so that dropout is off for good.

    Args:
        path: a local folder, or a name on the hub.
        device: where it goes.
        dtype: type of its weights; float32 for a model that is trained.
        trust_remote_code: run model code that comes with the folder.
        override_config: fields of the model's config to change.

    Raises:
        UserError: one line, if there is no such model, it is no causal LM, or its folder lacks weights.
    """
    name = named(path)
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        override(config, override_config or {}, name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=dtype, trust_remote_code=trust_remote_code, output_loading_info=True
        )
        model, report = loaded
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot load a causal language model from {name}: {reason[:300]}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise UserError(f"{name} lacks {len(missing)} weights of {type(model).__name__}, the first is {missing[0]}")
    return model.to(device).eval()  # pyright: ignore[reportArgumentType]


def named(path: str | Path) -> str:
    """The folder or hub name that ``from_pretrained`` takes.

    Raises:
        UserError: if it can only be a folder, and there is none.
    """
    name = str(path)
    if not Path(name).is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise UserError(f"no model folder at {name}; give a Hugging Face folder or the name of a model on the hub")
    return name


def override(config: PretrainedConfig, changes: Mapping[str, Any], name: str) -> None:
    """Replaces fields of a model's config.

    Raises:
        UserError: for one that the config does not have.
    """
    known = config.to_dict()
    for key, value in changes.items():
        if key not in known:
            raise UserError(f"override_config.{key} is not a field of {type(config).__name__} ({name})")
        setattr(config, key, value)


def add_lora(
    model: PreTrainedModel,
    *,
    rank: int,
    alpha: float,
    target_modules: str | Sequence[str] = "all-linear",
    exclude_modules: str | Sequence[str] | None = None,
    dropout: float = 0.0,
    head: str | None = None,
) -> nn.Module:
    """Freezes ``model`` and adds trainable low-rank adapters (Hu et al. 2021, 2106.09685) with peft.

    Args:
        model: the base model; changed in place.
        rank: r.
        alpha: the adapters' output is scaled by alpha / r.
        target_modules: names of the layers that get one; ``all-linear`` is every linear layer but the head.
        exclude_modules: names to leave out.
        dropout: must be 0: with dropout the log-probs of two passes differ and no ratio means anything.
        head: name of a head that starts anew, as a value head does: it gets no adapter and is trained whole.

    Returns:
        peft's wrapper, in eval mode.

    Raises:
        UserError: for dropout, targets that do not exist, or adapters on tied embeddings.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    if dropout:
        raise UserError(f"lora dropout={dropout} makes log-probs random, and ratios with them; set it to 0")
    exclude = exclude_modules if isinstance(exclude_modules, str | None) else list(exclude_modules)
    if head is not None:
        exclude = f"({exclude})|{head}" if isinstance(exclude, str) else [*(exclude or ()), head]
    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM if head is None else None,
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType]
        target_modules=target_modules if isinstance(target_modules, str) else list(target_modules),
        exclude_modules=exclude,
        lora_dropout=0.0,
    )
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as error:
        raise UserError(
            f"cannot add LoRA with target_modules={target_modules}: {str(error).splitlines()[0]}"
        ) from error
    lm = causal_lm(adapted)
    if head is not None:
        lm.get_submodule(head).requires_grad_(True)
    ends = (lm.get_input_embeddings(), lm.get_output_embeddings())
    if (
        head is None
        and lm.config.get_text_config().tie_word_embeddings
        and any("lora" in type(end).__module__ for end in ends)
    ):
        raise UserError(
            "LoRA on an embedding that is tied to the head cannot be merged; leave both out of target_modules"
        )
    return adapted.eval()


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that learn, by name in ``model``."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def dropout_is_off(model: nn.Module) -> bool:
    """Whether two passes over the same tokens give the same numbers."""
    return not any(module.training for module in model.modules())
