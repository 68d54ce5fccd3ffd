"""``algorithm.ref_reward_blend.*`` and ``algorithm.repr_align.*``: reward shaping after the KL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from cohort.config.schema.limits import Count, NonNegative, Positive, Range, Share

Ramp = Literal["linear", "sigmoid", "cosine", "exp", "step"]


@dataclass(frozen=True, kw_only=True)
class RefRewardBlend:
    """Rewards mixed with how plausible the reference finds each token, by a weight that rises from 0."""

    enable: bool = False
    """Mix the reference into the reward."""
    max_weight: Share = 0.6
    """The reference's share of the reward after the warm-up."""
    warmup_ratio: Share = 0.7
    """Share of all training steps over which the weight rises."""
    warmup_steps: Count | None = None
    """Steps over which it rises; null takes warmup_ratio."""
    schedule: Ramp = "sigmoid"
    """Shape of the rise."""
    steps: Count = 3
    """Stairs of schedule=step."""
    sigmoid_k: Positive = 10.0
    """How steep schedule=sigmoid is."""
    sigmoid_center: Share = 0.5
    """Where it is steepest; above 0.5 it starts slowly."""
    exp_k: Positive = 5.0
    """How late schedule=exp rises."""
    norm_scope: Literal["sequence", "batch"] = "sequence"
    """Whose range of log-probs becomes 0 to 1: each answer's, or that of all answers."""
    distribute: Literal["token", "mean", "last"] = "token"
    """token adds to every token, which pays for length under grpo and its kin; mean divides by the length; last puts
    the mean on the last token."""
    degenerate_value: Share = 0.5
    """What an answer gets whose log-probs do not differ, one of a single token for instance."""
    eps: Positive = 1e-8
    """The least range of log-probs that counts as one."""


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Where hidden states come from."""

    path: str | None = None
    """null takes the policy's own forward pass (its states move while it learns); initial is a frozen copy of the
    policy's first weights; anything else is a Hugging Face folder or name of a causal LM."""
    max_length: Count = 4096
    """Longest prompt and answer, in tokens, that a frozen encoder reads; the prompt is cut from the left."""


@dataclass(frozen=True, kw_only=True)
class RefAlignment:
    """A bonus for answers whose meaning is near to the gold answer's, while the policy is undecided."""

    enable: bool = True
    """Off, this part of repr_align does nothing."""
    max_weight: NonNegative = 0.2
    """Weight of the similarity after the warm-up."""
    warmup_ratio: Share = 0.7
    """Share of all training steps over which the weight rises."""
    warmup_steps: Count | None = None
    """Steps over which it rises; null takes warmup_ratio."""
    schedule: Ramp = "sigmoid"
    """Shape of the rise."""
    steps: Count = 3
    """Stairs of schedule=step."""
    sigmoid_k: Positive = 10.0
    """How steep schedule=sigmoid is."""
    sigmoid_center: Share = 0.5
    """Where it is steepest; above 0.5 it starts slowly."""
    exp_k: Positive = 5.0
    """How late schedule=exp rises."""
    entropy_high_threshold: Annotated[float, Range(low=0)] = 1.0
    """The bonus is paid while the policy's mean entropy per token, in nats, is at least this."""
    allocation: Literal["uniform", "last", "linear_tail", "entropy"] = "uniform"
    """How an answer's bonus is spread over its tokens."""
    sim_transform: Literal["none", "relu", "shifted"] = "none"
    """relu: no negative bonus; shifted: (1 + similarity) / 2."""
    center: bool = False
    """Take the group's mean bonus off; a group baseline does that anyway."""
    gold_key: str | None = None
    """Data column with the gold answer as text, or a list of them; null takes the answer key that rewards see."""
    encoder: Encoder = field(default_factory=Encoder)
    """Where hidden states come from."""


@dataclass(frozen=True, kw_only=True)
class ReprAlign:
    """Representation alignment."""

    enable: bool = False
    """Pay a bonus for nearness."""
    ref_alignment: RefAlignment = field(default_factory=RefAlignment)
    """Against the gold answer."""
