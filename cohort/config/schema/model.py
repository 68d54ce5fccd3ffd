"""``actor_rollout_ref.model.*``: which model, how it is kept in memory, and what of it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from cohort.config.schema.limits import Positive, Range, same_as


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model that is trained, and that the reference is a frozen copy of."""

    path: str
    """Folder or hub name of a Hugging Face model; starter is the small model that Cohort builds on first use."""
    tokenizer_path: str | None = None
    """Folder or hub name of the tokenizer; null takes the model's own."""
    trust_remote_code: bool = same_as("data.trust_remote_code", False)
    """Run Python code that comes with the model's or the tokenizer's folder."""
    override_config: Mapping[str, object] = field(default_factory=dict)
    """Entries of the model's own config.json to replace, for example {attention_dropout: 0.0}."""
    custom_chat_template: str | None = None
    """A Jinja chat template instead of the tokenizer's."""
    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, more time, same numbers."""
    use_remove_padding: bool = True
    """Pack rows without padding in training passes: less work, same numbers."""
    lora_rank: Annotated[int, Range(low=0)] = 0
    """Rank of the LoRA adapter; 0 trains all weights."""
    lora_alpha: Positive = 16
    """LoRA scale: the adapter's output is multiplied by lora_alpha / lora_rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter: all-linear, a regular expression, or a list of name endings."""
    exclude_modules: str | tuple[str, ...] | None = None
    """Modules that get none although target_modules names them."""
