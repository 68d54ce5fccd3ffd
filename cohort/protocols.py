"""Where siblings meet: the small interfaces between layers. Everything here is frozen on purpose.

A component depends on these Protocols, never on another component of its layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import Parameter

from cohort.metrics import Metrics
from cohort.types import Batch, Demonstrations, Experience, FinishReason, Group, Prompt, Rollout, Score, SeedKey

Weights = Iterable[tuple[str, Tensor]]
"""Parameters under their Hugging Face names, tied ones included once per name."""


# --- sampling ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Settings come from here alone, never from a model folder.

    Attributes:
        temperature: divides the logits; 0 means greedy.
        top_k: keep the k likeliest tokens; -1 keeps all.
        top_p: keep the likeliest tokens up to this probability mass; 1 keeps all.
        min_p: drop tokens less likely than this share of the likeliest; 0 drops none.
        max_tokens: the most tokens a completion may have.
        stop: strings that end a completion; their text stays part of it.
        ignore_eos: go on to max_tokens whatever is drawn.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion to sample.

    Attributes:
        ids: the full ids so far. Engines find shared prefixes themselves, so the siblings of a
            group, the turns of a conversation and a resumed rollout are one mechanism.
        sampling: how to draw.
        key: names the draws; the position of a draw is its absolute position in ``ids``.
        media: processor tensors, or None.
        adapter: name of the LoRA adapter to sample with, or None for the policy itself.
    """

    ids: tuple[int, ...]
    sampling: Sampling
    key: SeedKey
    media: Mapping[str, Tensor] | None = None
    adapter: str | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What was sampled. ``log_probs`` are of the distribution that was drawn from (after temperature)."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    finish_reason: FinishReason


class Sampler(Protocol):
    """Draws completions. A rollout is a coroutine; cancelling its task frees what it holds."""

    async def complete(self, request: Request) -> Completion:
        """Samples until an EOS id, a stop string or ``max_tokens``. The ending id is part of the result."""
        ...

    def load(self, weights: Weights, version: int) -> None:
        """Takes new weights, drops every cache made with the old ones, and proves what it holds.

        Raises:
            WeightMismatch: naming the first tensor that does not match what was sent.
        """
        ...


class WeightMismatch(RuntimeError):
    """A sampler does not hold the weights it was sent."""


class Environment(Protocol):
    """Turns a prompt into trajectories, calling the sampler as often as it likes."""

    async def rollout(self, prompt: Prompt, sample: int, sampler: Sampler, sampling: Sampling, key: SeedKey) -> Rollout:
        """One finished trajectory."""
        ...


class Reward(Protocol):
    """Grades finished trajectories. Failing to grade is data: ``Score(value=None, reason=...)``."""

    async def score(self, rollout: Rollout) -> Score:
        """Grades one trajectory; called as soon as it is finished, while others are still sampled."""
        ...

    def close(self) -> None:
        """Ends worker processes. May be called twice."""
        ...


@runtime_checkable
class GroupReward(Protocol):
    """A reward that has something left to say when all answers that are sampled together are there."""

    async def score_groups(self, groups: Sequence[Group]) -> list[Group]:
        """The same groups with their final scores; called once after every ``score``, in the order of the prompts.

        For what must not depend on which answer was finished first: a model in this process that grades in batches,
        answers that are compared with each other.
        """
        ...


# --- learning ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TokenStats:
    """Per-token statistics of a forward pass; what was not asked for is None.

    Attributes:
        log_probs: log pi(token | before), at the sampling temperature  # (B, T)
        entropy: entropy of the whole next-token distribution           # (B, T)
        sum_pi_squared: sum over V of pi(v)^2                           # (B, T)
        hidden: mean last hidden state over the masked tokens           # (B, D)
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    sum_pi_squared: Tensor | None = None
    hidden: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one optimiser step did.

    Attributes:
        metrics: losses, gradient norm, clip fractions; names are verl's.
        stats: log-probs (and entropy) of the minibatch's rows under the weights before the
            step, detached, in the order of its rows  # (b, T)
        warning: why the step was skipped, one line for the person; empty if it was not.
    """

    metrics: Metrics
    stats: TokenStats
    warning: str = ""


class Policy(Protocol):
    """The trainable model with its optimiser."""

    def log_probs(
        self, batch: Batch, *, entropy: bool = False, sum_pi_squared: bool = False, hidden: bool = False
    ) -> TokenStats:
        """Log-probs of every response token, and what is asked for beside them, without gradient; 0 off ``mask``."""
        ...

    def update(self, minibatch: Experience, *, demonstrations: Demonstrations | None = None) -> Update:
        """One optimiser step, on ``demonstrations`` too where there are any.

        A non-finite loss or gradient changes no weight and is counted.
        """
        ...

    def advance(self) -> None:
        """Moves the learning-rate schedule on by one training step."""
        ...

    def weights(self) -> Weights:
        """The weights a sampler needs, under their Hugging Face names, LoRA merged in."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything an exact resume needs: parameters, optimiser, schedule."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``."""
        ...

    def save(self, folder: Path) -> None:
        """Writes a Hugging Face folder that ``from_pretrained`` loads, tokenizer included."""
        ...


class Reference(Protocol):
    """The frozen model a KL term is taken against."""

    def log_probs(self, batch: Batch, *, hidden: bool = False) -> TokenStats:
        """Log-probs of every response token, and mean last hidden states if asked for; 0 where ``mask`` is 0."""
        ...


@dataclass(frozen=True, kw_only=True)
class ValueUpdate:
    """What one optimiser step of the critic did.

    Attributes:
        metrics: loss, gradient norm, clip fraction; names are verl's.
        warning: why the step was skipped, one line for the person; empty if it was not.
    """

    metrics: Metrics
    warning: str = ""


class Critic(Protocol):
    """The value model with its optimiser."""

    def values(self, batch: Batch) -> Tensor:
        """V of the state before each response token, without gradient; 0 where ``mask`` is 0  # (B, T)."""
        ...

    def update(self, minibatch: Experience) -> ValueUpdate:
        """One optimiser step on the value loss. A non-finite loss or gradient changes no weight and is counted."""
        ...

    def advance(self) -> None:
        """Moves the learning-rate schedule on by one training step."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything an exact resume needs: parameters, optimiser, schedule."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``."""
        ...

    def save(self, folder: Path) -> None:
        """Writes a Hugging Face folder that ``AutoModelForTokenClassification`` loads, tokenizer included."""
        ...


class Reduce(Protocol):
    """A component's whole view of data parallelism."""

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a small tensor over all replicas."""
        ...

    def gradients(self, parameters: Iterable[Parameter]) -> None:
        """Sums gradients over all replicas, in place."""
        ...


# --- watching ---------------------------------------------------------------------------------


class Tracker(Protocol):
    """A place where numbers and samples go."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The scalars of one step."""
        ...

    def close(self) -> None:
        """Flushes; may be called twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """Everything one training step did, for trackers that keep samples.

    Attributes:
        step: the training step, from 1.
        groups: the rollouts with scores.
        experience: the update's tensors; its rows are the rollouts of ``groups`` in order.
        rewards: per-token rewards after shaping                           # (B, T)
        log_probs: the trainer's own log-probs at the start of the update  # (B, T)
        entropy: entropy of each next-token distribution, None where no pass gave it  # (B, T)
        metrics: merged metrics of the step.
        warnings: what a person should know: updates that were skipped, and why.
        collected: every group that was sampled; rollouts that are not in ``groups`` did not train.
            Empty means that all of them did.
    """

    step: int
    groups: Sequence[Group]
    experience: Experience
    rewards: Tensor
    log_probs: Tensor
    entropy: Tensor | None = None
    metrics: Metrics = field(default_factory=dict)
    warnings: Sequence[str] = ()
    collected: Sequence[Group] = ()


@runtime_checkable
class SampleTracker(Protocol):
    """A tracker that also keeps every sample."""

    def samples(self, record: StepRecord) -> None:
        """Stores the samples of one step."""
        ...


class PromptSource(Protocol):
    """Prompts in an order that is a pure function of seed and position."""

    def batch(self, position: int, size: int) -> Sequence[Prompt]:
        """The ``size`` prompts that start at global ``position`` (prompts drawn since the run began)."""
        ...

    def __len__(self) -> int:
        """Prompts in one epoch."""
        ...


@runtime_checkable
class ObservingSource(PromptSource, Protocol):
    """A prompt source whose order may follow what the run has seen; that is saved with the checkpoint."""

    def observe(self, groups: Sequence[Group], position: int) -> None:
        """All groups that a step sampled, in the order of their prompts; the next one starts at ``position``."""
        ...

    def state(self) -> dict[str, Any]:
        """What the order follows, as JSON can hold it; empty if the order is a function of seed and position alone."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores ``state()``."""
        ...
