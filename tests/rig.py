"""A whole trainer around a tiny model, in this process or over two Ray replicas."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from cohort.algorithms.group import grpo
from cohort.algorithms.ppo_loss import clipped
from cohort.algorithms.registry import Advantages
from cohort.models.critic import LocalCritic
from cohort.models.layout import Layout
from cohort.models.micro import Budget
from cohort.models.objective import Objective
from cohort.models.optim import OptimSettings
from cohort.models.policy import LocalPolicy
from cohort.models.reference import LocalReference
from cohort.protocols import Reduce, Sampling
from cohort.rollout.environment import SingleTurn
from cohort.rollout.native import NativeSampler
from cohort.trainer.advantage import Advantage
from cohort.trainer.trainer import Plan, Trainer
from cohort.types import Prompt, Rollout, Score
from tests.tiny import byte_tokenizer, tiny_model, tiny_value_model

EOS = 257


class FunctionReward:
    """A reward that calls ``function(rollout)`` inline."""

    def __init__(self, function: Callable[[Rollout], Score | float | None]) -> None:
        self.function = function

    async def score(self, rollout: Rollout) -> Score:
        value = self.function(rollout)
        return value if isinstance(value, Score) else Score(value=value)

    def close(self) -> None:
        pass


class Prompts:
    """The same few prompts in order, for ever."""

    def __init__(self, texts: Sequence[str]) -> None:
        tokenizer = byte_tokenizer()
        self.prompts = [Prompt(row=i, ids=tuple(tokenizer(t)["input_ids"]), text=t) for i, t in enumerate(texts)]

    def batch(self, position: int, size: int) -> list[Prompt]:
        return [self.prompts[i % len(self.prompts)] for i in range(position, position + size)]

    def __len__(self) -> int:
        return len(self.prompts)


def vowels(rollout: Rollout) -> float:
    """Share of small ids: something that differs between samples and can be learnt."""
    ids = rollout.response_ids
    return sum(token < 128 for token in ids) / max(len(ids), 1)


def build_parts(
    reduce: Reduce | None = None,
    *,
    optimizer: str = "AdamW",
    lr: float = 1e-3,
    kl_coef: float = 0.0,
    reference: bool = False,
    critic: bool = False,
    budget: Budget = Budget(max_tokens=200),
    dtype: torch.dtype = torch.float32,
    architecture: str = "qwen3",
):
    """Actor, reference and critic over tiny models; what a replica builds too."""
    from cohort.distributed.workers import Parts

    settings = OptimSettings(lr=lr, optimizer=optimizer, weight_decay=0.0)
    actor = LocalPolicy(
        tiny_model(architecture, dtype=dtype),
        objective=Objective(policy_loss=partial(clipped), kl_coef=kl_coef),
        optim=settings,
        layout=Layout(),
        budget=budget,
        reduce=reduce,
        tokenizer=byte_tokenizer(),
    )
    frozen = LocalReference(tiny_model(architecture, seed=1, dtype=dtype), layout=Layout()) if reference else None
    value_model = (
        LocalCritic(
            tiny_value_model(architecture, dtype=dtype),
            optim=settings,
            budget=budget,
            reduce=reduce,
            tokenizer=byte_tokenizer(),
        )
        if critic
        else None
    )
    return Parts(actor=actor, reference=frozen, critic=value_model)


def against_values(rewards, mask, group, *, values) -> Advantages:
    """Score less value: the simplest advantage that reads a critic (gamma = lambda = 1, not whitened)."""
    returns = rewards.sum(1, keepdim=True) * mask
    return Advantages(advantages=(returns - values) * mask, returns=returns)


READS_VALUES = Advantage(function=against_values, reads=("values",), group_baseline=False)


def build_trainer(
    parts,
    *,
    sampler_model: torch.nn.Module | None = None,
    reward: Callable[[Rollout], Score | float | None] = vowels,
    prompts: int = 4,
    n: int = 4,
    minibatch: int = 4,
    epochs: int = 1,
    tokens: int = 12,
    critic_warmup: int = 0,
    **options,
) -> Trainer:
    """A trainer over these parts; where the actor is remote, the sampler holds a model of its own."""
    trainer = Trainer(
        plan=Plan(
            prompts=prompts,
            n=n,
            minibatch=minibatch,
            epochs=epochs,
            seed=3,
            critic_warmup=critic_warmup,
            sampling=Sampling(max_tokens=tokens),
        ),
        prompts=Prompts(["the cat", "a dog sat on", "one", "two birds", "sea", "sky is"]),
        environment=SingleTurn(byte_tokenizer()),
        sampler=NativeSampler(sampler_model, eos_ids=[EOS], own_copy=True)
        if sampler_model is not None
        else NativeSampler(parts.actor.model, eos_ids=[EOS]),
        reward=FunctionReward(reward),
        actor=parts.actor,
        reference=parts.reference,
        **{
            "critic": parts.critic,
            "advantage": READS_VALUES if parts.critic else Advantage(function=partial(grpo)),
            **options,
        },
    )
    trainer.publish()
    return trainer
