"""``critic.*``: the value model of PPO, its update and the shape of its passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from cohort.config.schema.actor import Aggregation, Optim
from cohort.config.schema.limits import Count, Positive, Range, same_as


@dataclass(frozen=True, kw_only=True)
class CriticModel:
    """The value model: a decoder with a head of one output."""

    path: str = same_as("actor_rollout_ref.model.path", "starter")
    """Folder or hub name of a causal LM, a one-label token classifier or a reward model."""
    trust_remote_code: bool = same_as("actor_rollout_ref.model.trust_remote_code", False)
    """Run Python code that comes with the folder."""
    override_config: Mapping[str, object] = field(default_factory=dict)
    """Entries of the model's own config.json to replace, for example {attention_dropout: 0.0}."""
    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, more time, same numbers."""
    use_remove_padding: bool = True
    """Pack rows without padding: less work, same numbers."""
    lora_rank: Annotated[int, Range(low=0)] = 0
    """Rank of the LoRA adapter, beside which the head is trained whole; 0 trains all weights."""
    lora_alpha: Positive = 16
    """LoRA scale: the adapter's output is multiplied by lora_alpha / lora_rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter: all-linear, a regular expression, or a list of name endings."""
    exclude_modules: str | tuple[str, ...] | None = None
    """Modules that get none although target_modules names them."""


@dataclass(frozen=True, kw_only=True)
class CriticOptim(Optim):
    """The critic's own optimiser."""

    lr: Positive = 1e-5
    """Peak learning rate."""


@dataclass(frozen=True, kw_only=True)
class Critic:
    """The value model of adv_estimator=gae. It learns on the minibatches of the actor."""

    enable: bool | None = None
    """Whether a critic runs; null has one exactly where algorithm.adv_estimator reads values."""
    model: CriticModel = field(default_factory=CriticModel)
    """Which model."""
    optim: CriticOptim = field(default_factory=CriticOptim)
    """The optimiser."""
    ppo_mini_batch_size: Count = same_as("actor_rollout_ref.actor.ppo_mini_batch_size", 256)
    """Prompts per optimiser step; the same as the actor's."""
    ppo_epochs: Count = same_as("actor_rollout_ref.actor.ppo_epochs", 1)
    """Passes over a step's rollouts; the same as the actor's."""
    shuffle: bool = same_as("actor_rollout_ref.actor.shuffle", False)
    """Shuffle the groups before they are cut into minibatches; the same as the actor's."""
    ppo_max_token_len_per_gpu: Count = 32768
    """Token budget of one training pass of the critic. Memory only, no number changes."""
    ppo_micro_batch_size_per_gpu: Count | None = None
    """Most answers in one training pass, beside the token budget; null sets no cap. Memory only."""
    use_dynamic_bsz: bool = same_as("actor_rollout_ref.actor.use_dynamic_bsz", False)
    """Cut passes by the token budget alone, whatever the micro batch sizes say. Memory only."""
    forward_max_token_len_per_gpu: Count = same_as("critic.ppo_max_token_len_per_gpu", 32768)
    """Token budget of one pass that computes values. Memory only."""
    forward_micro_batch_size_per_gpu: Count | None = None
    """Most answers in such a pass; null sets no cap. Memory only."""
    cliprange_value: Positive = 0.5
    """How far a value may move from that of collection time before its gradient stops."""
    loss_agg_mode: Aggregation | None = same_as("actor_rollout_ref.actor.loss_agg_mode", "token-mean")
    """How token losses become one number, over the whole minibatch; null is token-mean."""
    loss_scale_factor: Positive = same_as("actor_rollout_ref.actor.loss_scale_factor", 512.0)
    """The constant that seq-mean-token-sum-norm divides by."""
