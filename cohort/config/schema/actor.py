"""``actor_rollout_ref.actor.*``: the loss, the optimiser and the shape of an update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cohort.config.schema.limits import Count, NonNegative, Positive, Range, Seed, Share, same_as

Beta = Annotated[float, Range(low=0, high=0.999999)]

KLKind = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+"
]
"""KL estimators; a + keeps the value and takes the gradient of k2."""

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]

DType = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Optim:
    """AdamW and the learning-rate schedule. The schedule advances once per training step."""

    lr: Positive = 1e-6
    """Peak learning rate."""
    lr_warmup_steps: Annotated[int, Range(low=-1)] = -1
    """Training steps of linear warm-up; -1 takes lr_warmup_steps_ratio instead."""
    lr_warmup_steps_ratio: Share = 0.0
    """Warm-up as a share of all training steps, where lr_warmup_steps is -1."""
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """What follows the warm-up: constant stays at lr, cosine falls to lr * min_lr_ratio."""
    min_lr_ratio: Share = 0.0
    """Where the cosine ends, as a share of lr."""
    num_cycles: Positive = 0.5
    """Cosine periods over the run; 0.5 falls once."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's decay of the first and second moment."""
    eps: Positive = 1e-8
    """AdamW's epsilon."""
    clip_grad: Positive = 1.0
    """Largest gradient norm; a longer gradient is scaled down to it."""


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """Which policy loss."""

    loss_mode: str = "vanilla"
    """vanilla (PPO's clipped loss with asymmetric and dual clip), gspo, gspo_token, geo_mean, cispo, gpg, reinforce,
    dro, sapo, dppo_tv, dppo_kl, clip_cov, kl_cov, or a name that one of algorithm.plugins registers."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of the loss, ours or yours; one registered verl's way finds them in its config."""
    delta: Annotated[float, Range(low=1, above=True)] | None = None
    """Largest ratio of a token with a negative advantage in vanilla (INTELLECT-2), beside or in place of
    clip_ratio_c."""
    clip_cov_ratio: Share = 0.0002
    """Share of the minibatch's tokens that clip_cov takes out of the gradient."""
    clip_cov_lb: float = 1.0
    """Covariance above which clip_cov may take a token."""
    clip_cov_ub: float = 5.0
    """Covariance below which it may."""
    kl_cov_ratio: Share = 0.0002
    """Share of the minibatch's tokens, those of highest covariance, on which kl_cov puts its penalty."""
    ppo_kl_coef: NonNegative = 0.1
    """Weight of that penalty; the paper has 1."""
    dro_beta: Positive | None = None
    """Weight of the square in dro; null is the paper's 1."""


@dataclass(frozen=True, kw_only=True)
class Actor:
    """How the policy is updated."""

    ppo_mini_batch_size: Count = 256
    """Prompts per optimiser step (each with all its answers); at most data.train_batch_size."""
    ppo_epochs: Count = 1
    """Passes over a step's rollouts."""
    shuffle: bool = False
    """Shuffle the groups of a step before they are cut into minibatches."""
    data_loader_seed: Seed = same_as("trainer.seed", 1)
    """Names the shuffles of actor.shuffle."""
    ppo_max_token_len_per_gpu: Count = 16384
    """Token budget of one training pass; a longer answer gets a pass of its own. Memory only, no number changes."""
    ppo_micro_batch_size_per_gpu: Count | None = None
    """Most answers in one training pass, beside the token budget; null sets no cap. Memory only."""
    use_dynamic_bsz: bool = False
    """Cut passes by the token budget alone, whatever the micro batch size says. Memory only."""
    share_prompt: bool = True
    """Compute a prompt once for all answers of its group, forward and backward. Same gradient, less work."""
    dtype: DType = "auto"
    """Compute type; master weights are float32. auto: bfloat16 if the device is fast at it and the model not tiny."""
    clip_ratio: Share = 0.2
    """How far a token's probability ratio may leave 1 before its gradient stops, on both sides."""
    clip_ratio_low: Share = same_as("actor_rollout_ref.actor.clip_ratio", 0.2)
    """The same below 1 alone."""
    clip_ratio_high: NonNegative = same_as("actor_rollout_ref.actor.clip_ratio", 0.2)
    """The same above 1 alone; more than the low side is DAPO's clip-higher."""
    clip_ratio_c: Annotated[float, Range(low=1, above=True)] | None = 3.0
    """Dual clip of vanilla: with a negative advantage the loss of a token is at most this many times it. In dppo_tv and
    dppo_kl the largest weight of a token. null sets no limit."""
    tau_pos: Positive = 1.0
    """How fast the tokens of good answers fade in sapo."""
    tau_neg: Positive = 1.05
    """The same for bad answers."""
    top_entropy_quantile: Annotated[float, Range(low=0, high=1, above=True)] = 1.0
    """Share of the minibatch's tokens, those of highest entropy, whose policy loss counts; 1 is all of them."""
    policy_loss: PolicyLoss = field(default_factory=PolicyLoss)
    """Which policy loss."""
    loss_agg_mode: Aggregation | None = None
    """How token losses become one number; null takes that of the loss's paper (token-mean, or seq-mean-token-mean for
    gspo, gspo_token, geo_mean and sapo). Always over the whole minibatch, never over a micro-batch."""
    loss_scale_factor: Positive = same_as("data.max_response_length", 512.0)
    """The constant that seq-mean-token-sum-norm (Dr. GRPO) divides by."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    calculate_entropy: bool = True
    """Compute and log the entropy of the policy although entropy_coeff is 0."""
    use_kl_loss: bool = False
    """Add the KL to the reference model to the loss."""
    kl_loss_coef: NonNegative = 0.001
    """Weight of that KL."""
    kl_loss_type: KLKind = "low_var_kl"
    """Estimator of that KL. low_var_kl (k3) is never negative; a + keeps the value and takes the gradient of k2."""
    optim: Optim = field(default_factory=Optim)
    """The optimiser."""
