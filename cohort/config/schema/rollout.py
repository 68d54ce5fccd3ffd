"""``actor_rollout_ref.rollout.*``: how answers are drawn, and ``actor_rollout_ref.ref.*``: how the reference is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from cohort.config.schema.actor import DType
from cohort.config.schema.limits import Count, NonNegative, Range, Seed, Share, same_as

TopK = Annotated[int, Range(low=-1)]
TopP = Annotated[float, Range(low=0, high=1, above=True)]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How validation answers are drawn. Nothing is inherited from training but the stop strings."""

    temperature: NonNegative = 0.0
    """Divides the logits; 0 is greedy."""
    top_k: TopK = -1
    """Draw from the k likeliest tokens; -1 keeps all."""
    top_p: TopP = 1.0
    """Draw from the likeliest tokens up to this probability mass; 1 keeps all."""
    min_p: Share = 0.0
    """Drop tokens less likely than this share of the likeliest; 0 drops none."""
    n: Count = 1
    """Answers per validation prompt."""
    also_greedy: bool = False
    """Validate with greedy answers too, and report both."""
    stop: tuple[str, ...] = same_as("actor_rollout_ref.rollout.stop", ())
    """Strings that end an answer."""


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """How training answers are drawn."""

    name: Literal["native", "hf"] = "native"
    """native is Cohort's own engine (continuous batching); hf is model.generate, slow, for any model class."""
    n: Count = 1
    """Answers per prompt: the group that GRPO compares."""
    temperature: NonNegative = 1.0
    """Divides the logits, in sampling and in training alike."""
    top_k: TopK = -1
    """Must stay -1 in training; set val_kwargs.top_k for validation."""
    top_p: TopP = 1.0
    """Must stay 1 in training; set val_kwargs.top_p for validation."""
    min_p: Share = 0.0
    """Must stay 0 in training; set val_kwargs.min_p for validation."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer, beside every end token that the model declares. They stay in the text."""
    ignore_eos: bool = False
    """Write to data.max_response_length whatever is drawn; for benchmarks."""
    seed: Seed = same_as("trainer.seed", 1)
    """Names the draws. A draw is a function of (seed, step, prompt, sample, position) alone."""
    dtype: DType = "auto"
    """Type the sampler computes in; auto is the actor's, so that both sides agree."""
    max_num_seqs: Count = 256
    """Most answers decoded at once; the others wait for a free slot. Memory and speed only."""
    log_prob_max_token_len_per_gpu: Count = same_as("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 16384)
    """Token budget of one pass that recomputes the policy's log-probs. Memory only."""
    log_prob_micro_batch_size_per_gpu: Count | None = None
    """Most answers in such a pass; null sets no cap. Memory only."""
    log_prob_use_dynamic_bsz: bool = same_as("actor_rollout_ref.actor.use_dynamic_bsz", False)
    """Cut such passes by the token budget alone. Memory only."""
    val_kwargs: Validation = field(default_factory=Validation)
    """How validation answers are drawn."""


@dataclass(frozen=True, kw_only=True)
class Ref:
    """How the frozen reference model is run; it exists where a KL term needs it."""

    log_prob_max_token_len_per_gpu: Count = same_as("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 16384)
    """Token budget of one reference pass. Memory only."""
    log_prob_micro_batch_size_per_gpu: Count | None = None
    """Most answers in one reference pass; null sets no cap. Memory only."""
    log_prob_use_dynamic_bsz: bool = same_as("actor_rollout_ref.actor.use_dynamic_bsz", False)
    """Cut reference passes by the token budget alone. Memory only."""
