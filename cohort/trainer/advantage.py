"""The advantage estimator with everything it reads, as the training step calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.algorithms.registry import Advantages
from cohort.data.columns import column
from cohort.metrics import Metrics, Sum
from cohort.trainer.evidence import OLD_STATISTICS, Evidence, baseline_scores, reward_parts
from cohort.types import Batch, Group


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """An estimator of the registry, bound to its options.

    Attributes:
        function: rewards, mask, group and ``reads`` by keyword -> ``Advantages``.
        reads: the entry's ``needs``.
        parts: names of the reward's parts, in the order of the columns of ``parts``.
        group_by: data column whose value decides what is compared; None compares the answers to one prompt.
        group_baseline: the other members of a group are the baseline: groups of one are counted.
    """

    function: Callable[..., Advantages]
    reads: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    group_by: str | None = None
    group_baseline: bool = True

    @property
    def needs(self) -> frozenset[str]:
        """What the actor's pass over the whole batch must give."""
        return OLD_STATISTICS & set(self.reads)

    @property
    def reads_baseline(self) -> bool:
        """Whether each prompt needs a greedy answer beside its group."""
        return "baseline" in self.reads

    def __call__(self, rewards: Tensor, evidence: Evidence) -> tuple[Advantages, Metrics]:
        """Advantages and returns  # (B, T), and what to log."""
        group = self.groups_of(evidence.groups, evidence.batch)
        extra = {name: self._read(name, evidence) for name in self.reads}
        advantages = self.function(rewards=rewards, mask=evidence.batch.mask, group=group, **extra)
        metrics: Metrics = {}
        if self.group_baseline:
            metrics["training/groups_of_one"] = Sum(int((group.unique(return_counts=True)[1] == 1).sum()))
        return advantages, metrics

    def groups_of(self, groups: Sequence[Group], batch: Batch) -> Tensor:
        """Which group a row is compared in  # (B,).

        Raises:
            UserError: if a data row has no such column.
        """
        if self.group_by is None:
            return batch.group
        numbers: dict[str, int] = {}
        out = []
        for group in groups:
            value = column(group.prompt, self.group_by, key="algorithm.group_by")
            number = numbers.setdefault(repr(value), len(numbers))
            out += [number] * len(group.rollouts)
        return torch.tensor(out)

    def _read(self, name: str, evidence: Evidence) -> Tensor | None:
        if name == "parts":
            return reward_parts(evidence.groups, self.parts)
        if name == "baseline":
            return baseline_scores(evidence.groups)
        if name == "rollout_is_weights":
            return evidence.weights
        if name == "old_log_probs":
            return evidence.old_log_probs
        value = evidence.values if name == "values" else evidence.old and evidence.old.__dict__.get(name)
        if value is None:
            raise ValueError(f"the advantage needs {name!r}, which this run does not compute")
        return value
