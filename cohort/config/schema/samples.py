"""Which samples train, and in which order: ``algorithm.filter_groups.*``, ``data.sampler.*``, ``data.curriculum.*``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cohort.config.schema.limits import Cap, Count, Range, Share

AboveZero = Annotated[float, Range(low=0, high=1, above=True)]


@dataclass(frozen=True, kw_only=True)
class FilterGroups:
    """DAPO's dynamic sampling (arXiv 2503.14476)."""

    enable: bool = False
    """Train on groups whose answers differ alone, and draw more prompts in place of the others."""
    metric: str | None = None
    """What must differ within a group: score (also null and seq_reward), or a part of the reward such as acc."""
    max_num_gen_batches: Cap = 0
    """Batches that a step may draw; 0 and -1 allow one pass over the data, and at least 10 batches."""
    on_exhausted: Literal["error", "train"] = "error"
    """At that limit: error ends the run and says what the groups are; train goes on with those that differ."""


@dataclass(frozen=True, kw_only=True)
class PromptOrder:
    """An order of prompts from a file of yours; docs/which_samples.md has the contract."""

    class_path: str | None = None
    """Python file with the class."""
    class_name: str | None = None
    """The class in data.sampler.class_path."""


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """An order of prompts that follows their difficulty."""

    order: Literal["easy_to_hard", "hard_to_easy", "mixed", "adaptive"] | None = None
    """A growing pool from one end, a fair mix at any time, or a preference for prompts answered right sometimes."""
    column: str | None = None
    """Data column with the difficulty, a number, larger is harder; extra_info.level is an entry of extra_info."""
    steps: Count | None = None
    """Steps of data.train_batch_size drawn prompts until all are drawn alike; null: one pass over the data."""
    stages: Count = 4
    """How often the pool grows in that time; with order=mixed how many classes of difficulty take turns."""
    floor: AboveZero = 0.05
    """With order=adaptive the least weight of a prompt, where one answered right half of the time has 1."""
    discount: Share = 0.5
    """With order=adaptive what earlier answers to a prompt still count when it is answered again."""
