"""``data.*``: which prompts, how many, how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cohort.config.schema.limits import Cap, Count, Seed, same_as
from cohort.config.schema.samples import Curriculum, PromptOrder

TASKS = ("arithmetic", "gsm8k")
"""Built-in tasks; ``reasoning-gym/NAME`` adds those of the reasoning-gym package."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training and validation prompts."""

    train_files: tuple[str, ...] = ()
    """Parquet or JSONL files with training rows; one path or a list."""
    val_files: tuple[str, ...] = ()
    """Parquet or JSONL files with validation rows; one path or a list."""
    task: str | None = None
    """A built-in task instead of files: arithmetic, gsm8k, or reasoning-gym/NAME."""
    task_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Settings of the task, by name."""
    train_size: Count = 4096
    """Training problems that data.task makes."""
    val_size: Count = 256
    """Validation problems that data.task makes; none of them is a training problem."""
    train_max_samples: Cap = -1
    """Keep so many training rows, picked before the length filter: at random if data.shuffle, else the first."""
    val_max_samples: Cap = -1
    """Keep so many validation rows, picked before the length filter."""
    prompt_key: str = "prompt"
    """Column with the prompt: chat messages or plain text."""
    max_prompt_length: Count = 512
    """Longest prompt in tokens, measured on the exact ids that are sent, chat template included."""
    max_response_length: Count = 512
    """Most tokens that the model may write per answer."""
    train_batch_size: Count = 1024
    """Prompts per training step."""
    gen_batch_size: Count | None = None
    """Prompts per batch of algorithm.filter_groups; null draws as many as are likely to be missing."""
    val_batch_size: Count | None = None
    """Prompts that validation samples together; null takes all of them at once. Memory only."""
    shuffle: bool = True
    """Draw prompts in a new random order each epoch; the order is a function of seed and step alone."""
    seed: Seed = same_as("trainer.seed", 1)
    """Names the order of prompts and the pick of data.train_max_samples."""
    sampler: PromptOrder = field(default_factory=PromptOrder)
    """An order of prompts of your own."""
    curriculum: Curriculum = field(default_factory=Curriculum)
    """An order of prompts that follows their difficulty."""
    filter_overlong_prompts: bool = False
    """Leave out rows whose prompt is longer than data.max_prompt_length, and print how many."""
    truncation: Literal["error", "left", "right", "middle"] = "error"
    """What happens to a longer prompt: error stops; left keeps its last tokens, right its first, middle both ends."""
    apply_chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Passed to the chat template, for example {enable_thinking: false}."""
    trust_remote_code: bool = False
    """Run Python code from a hub or folder; model.trust_remote_code follows it."""
