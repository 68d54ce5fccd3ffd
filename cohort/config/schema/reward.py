"""``reward.*``, ``custom_reward_function.*`` and ``reward_model.*``: what an answer is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cohort.config.schema.actor import DType
from cohort.config.schema.limits import Count, NonNegative, Positive, Range, Share, same_as


@dataclass(frozen=True, kw_only=True)
class CustomRewardFunction:
    """One reward function from a file of yours."""

    path: str | None = None
    """Python file with the function; null takes reward.functions, or the built-in that data_source names."""
    name: str = "compute_score"
    """Name of the function in that file."""
    reward_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments for it."""


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """One part of a sum of rewards."""

    name: str
    """A built-in reward (gsm8k, math, format, arithmetic, ...), or the function's name in path."""
    path: str | None = None
    """Python file with the function; null means a built-in."""
    weight: float = 1.0
    """Its weight in the sum."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments for it."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """How rewards are run."""

    functions: tuple[RewardFunction, ...] = ()
    """Several rewards with weights, for example [{name: gsm8k}, {name: format, weight: 0.1}]."""
    num_workers: Annotated[int, Range(low=0, high=1024)] = 2
    """Processes that run plain functions; 0 runs them inline, so that a debugger stops in them."""
    timeout: Positive = 30.0
    """Seconds that one answer may take to grade; then the worker is replaced and the answer is unscorable."""
    max_unscorable_rate: Share = 0.1
    """Largest share of a step's answers that may be unscorable; above it the run stops with the reward's traceback."""


@dataclass(frozen=True, kw_only=True)
class RewardModelSource:
    """Where the model that grades comes from."""

    path: str | None = None
    """Folder or hub name. A judge may be null: the policy itself, with the weights it has at that step."""
    tokenizer_path: str | None = None
    """Folder or hub name of its tokenizer; null takes the model's own."""
    custom_chat_template: str | None = None
    """A Jinja chat template instead of its tokenizer's."""
    trust_remote_code: bool = same_as("data.trust_remote_code", False)
    """Run Python code that comes with its folder."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """How a generative judge is asked, and how a number is read out of what it writes."""

    template: str | None = None
    """The text it is asked, or a file with it; {question}, {answer}, {ground_truth}, {worst}, {best} and columns of the data are filled in; null asks for a number."""  # noqa: E501
    pattern: str = r"Score:\s*(-?\d+(?:\.\d+)?)"
    """Regular expression whose first group is the number; the last match in its text counts."""
    worst: float = 0.0
    """The number that means 0. A number outside worst to best is none."""
    best: float = 10.0
    """The number that means 1."""
    n: Count = 1
    """Judgements per answer; their mean is the value."""
    temperature: NonNegative = 1.0
    """Divides its logits; 0 is greedy."""
    max_tokens: Count = 256
    """Most tokens it may write."""
    apply_chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Variables for its chat template, for example {enable_thinking: false}."""


@dataclass(frozen=True, kw_only=True)
class RewardModel:
    """A model that grades, alone or beside reward functions."""

    enable: bool = False
    """Grade answers with a model: alone, or added to the functions of custom_reward_function or reward.functions."""
    kind: Literal["classifier", "judge"] = "classifier"
    """classifier: a sequence classifier's logit; judge: a language model that writes a number."""
    model: RewardModelSource = field(default_factory=RewardModelSource)
    """Which model."""
    weight: float = 1.0
    """Its weight in the sum."""
    scale: float = 1.0
    """Factor of what it says, before the weight; its logged value is scaled."""
    shift: float = 0.0
    """Summand after scale."""
    label: str | None = None
    """Name or number of the classifier's label that is the score; null where it has one."""
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    """What the logit goes through; softmax is over all labels."""
    max_length: Count | None = None
    """Most tokens of a conversation (of a judge's prompt) that it reads; null is the model's limit."""
    truncation: Literal["right", "left", "unscorable"] = "right"
    """Of a longer conversation the end or the beginning is cut, or it has no score; counted. A judge's is never cut."""
    dtype: DType = "auto"
    """Type it computes in; auto decides by device and size, as for the policy."""
    forward_max_token_len_per_gpu: Count = same_as("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 16384)
    """Token budget of one classifier pass, padding included. Memory only."""
    micro_batch_size_per_gpu: Count | None = None
    """Most answers in such a pass; null sets no cap. Memory only."""
    use_dynamic_bsz: bool = same_as("actor_rollout_ref.actor.use_dynamic_bsz", False)
    """Cut such passes by the token budget alone. Memory only."""
    judge: Judge = field(default_factory=Judge)
    """How a judge is asked."""
