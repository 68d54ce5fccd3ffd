"""Stages of reward shaping after the KL: the reference blend, and the alignment with the gold answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from cohort.algorithms.shaping import alignment_bonus, entropy_gate, gold_similarity, reference_blend
from cohort.metrics import Last, Metrics
from cohort.trainer.evidence import Evidence
from cohort.types import Author, FinishReason, Prompt, Rollout, Segment

Ramp = Callable[[int], float]
"""Training steps finished -> weight."""


class ReferenceBlend:
    """Rewards mixed with how plausible the reference finds each token.

    Args:
        weight: its share, by training step.
        options: ``norm_scope``, ``distribute``, ... of ``algorithms.shaping.reference_blend``.
    """

    needs = frozenset[str]()

    def __init__(self, *, weight: Ramp, **options: object) -> None:
        self.weight = weight
        self.blend = partial(reference_blend, **options)  # pyright: ignore[reportCallIssue]

    def __call__(self, rewards: Tensor, evidence: Evidence) -> tuple[Tensor, Metrics]:
        """The mixed rewards  # (B, T)."""
        if evidence.ref_log_probs is None:
            raise ValueError("the reference blend needs a reference")
        weight = self.weight(evidence.step)
        rewards, stats = self.blend(rewards, evidence.ref_log_probs, evidence.batch.mask, weight)
        metrics: Metrics = {name: Last(float(value)) for name, value in stats.named().items()}
        return rewards, {"actor/ref_blend/weight": Last(weight), **metrics}


class Encode(Protocol):
    """Pooled hidden states of answers under their prompts."""

    def __call__(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Mean last hidden state over the tokens that the model wrote  # (N, D)."""
        ...


class Alignment:
    """A bonus for answers near to the gold answer, paid while the policy is undecided.

    Args:
        weight: of the similarity, by training step; the clock runs on while the gate is closed.
        threshold: the policy's mean entropy per token, in nats, from which the gate is open.
        golds: the gold answers to a prompt as token ids, the end-of-turn id included as a sampled answer has it.
        encode: gives hidden states; only called while the gate is open.
        own: the encoder is the policy, so the states of the sampled answers are there already.
        allocation: see ``algorithms.shaping.alignment_bonus``.
        sim_transform: see there.
        center: take the group's mean off.
    """

    def __init__(
        self,
        *,
        weight: Ramp,
        threshold: float,
        golds: Callable[[Prompt], Sequence[tuple[int, ...]]],
        encode: Encode,
        own: bool,
        allocation: str = "uniform",
        sim_transform: str = "none",
        center: bool = False,
    ) -> None:
        self.weight = weight
        self.threshold = threshold
        self.golds = golds
        self.encode = encode
        self.own = own
        self.allocation = allocation
        self.sim_transform = sim_transform
        self.center = center
        self.known: dict[tuple[int, tuple[int, ...]], Tensor] = {}  # states of gold answers under a frozen encoder
        self.needs = frozenset({"entropy", "hidden"} if own else {"entropy"})

    def __call__(self, rewards: Tensor, evidence: Evidence) -> tuple[Tensor, Metrics]:
        """Rewards with the bonus  # (B, T); unchanged while the gate is closed."""
        batch, name = evidence.batch, "actor/repr/ref_gold_align"
        gate = entropy_gate(evidence.entropy, batch.mask, self.threshold)
        scheduled = self.weight(evidence.step)
        is_open = bool(gate.is_open)
        metrics: Metrics = {
            f"{name}/weight": Last(scheduled if is_open else 0.0),
            f"{name}/scheduled_weight": Last(scheduled),
            f"{name}/gate": Last(float(is_open)),
            f"{name}/avg_entropy": Last(float(gate.avg_entropy)),
        }
        if not is_open:
            return rewards, metrics
        rewards, stats = alignment_bonus(
            rewards,
            self.similarity(evidence),
            batch.mask,
            scheduled,
            allocation=self.allocation,
            entropy=evidence.entropy,
            sim_transform=self.sim_transform,
            group=batch.group if self.center else None,
        )
        return rewards, metrics | {key: Last(float(value)) for key, value in stats.named().items()}

    def similarity(self, evidence: Evidence) -> Tensor:
        """Cosine of each answer with the nearest gold answer to its prompt  # (B,)."""
        rollouts = [rollout for group in evidence.groups for rollout in group.rollouts]
        states = evidence.hidden if self.own else self.encode(rollouts)  # (B, D)
        golds = [[gold for gold in self.golds(group.prompt) if gold] for group in evidence.groups]
        most = max(max(map(len, golds)), 1)
        table = states.new_zeros(len(golds), most, states.shape[1])  # (P, K, D)
        there = states.new_zeros(len(golds), most)
        for number, pooled in self._gold_states([g.prompt for g in evidence.groups], golds):
            table[number, : len(pooled)] = pooled
            there[number, : len(pooled)] = 1.0
        rows = torch.tensor([i for i, group in enumerate(evidence.groups) for _ in group.rollouts])
        return gold_similarity(states, table[rows], there[rows])

    def _gold_states(
        self, prompts: Sequence[Prompt], golds: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[tuple[int, Tensor]]:
        """The states of each prompt's gold answers, computed in one call; a frozen encoder's are kept."""
        wanted = [(prompt, gold) for prompt, row in zip(prompts, golds, strict=True) for gold in row]
        missing = {(p.row, gold): (p, gold) for p, gold in wanted if self.own or (p.row, gold) not in self.known}
        if missing:
            pooled = self.encode([gold_rollout(prompt, gold) for prompt, gold in missing.values()])
            self.known.update(zip(missing, pooled, strict=True))
        found = [
            (number, torch.stack([self.known[prompt.row, gold] for gold in row]))
            for number, (prompt, row) in enumerate(zip(prompts, golds, strict=True))
            if row
        ]
        if self.own:
            self.known.clear()
        return found


def gold_rollout(prompt: Prompt, ids: tuple[int, ...]) -> Rollout:
    """A gold answer as if the model had written it."""
    written = Segment(ids=ids, author=Author.MODEL, log_probs=(0.0,) * len(ids), policy_versions=(-1,) * len(ids))
    return Rollout(prompt=prompt, sample=0, segments=(written,), finish_reason=FinishReason.STOP)
