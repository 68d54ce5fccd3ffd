"""The stand-in for the critic: its methods, written out, each calling every replica."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from torch import Tensor

from cohort.distributed.split import gather_rows, split_rows
from cohort.distributed.workers import Replicas
from cohort.metrics import Metrics, merge
from cohort.protocols import ValueUpdate
from cohort.types import Batch, Experience


class RemoteCritic:
    """``protocols.Critic`` over replicas; they are those of the actor, and hold both models."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def values(self, batch: Batch) -> Tensor:
        """V of the state before each response token, each row computed by one replica  # (B, T)."""
        rows = split_rows(batch, len(self.replicas))
        calls = [w.values.remote(batch.select(r)) for w, r in zip(self.replicas.workers, rows, strict=True)]
        return gather_rows(ray.get(calls), rows)

    def update(self, minibatch: Experience) -> ValueUpdate:
        """One optimiser step of all replicas together."""
        rows = split_rows(minibatch.batch, len(self.replicas))
        calls = [w.update_critic.remote(minibatch.select(r)) for w, r in zip(self.replicas.workers, rows, strict=True)]
        updates: list[ValueUpdate] = ray.get(calls)
        metrics: Metrics = {}
        for update in updates:
            merge(metrics, update.metrics)
        warning = "; ".join(dict.fromkeys(update.warning for update in updates if update.warning))
        return ValueUpdate(metrics=metrics, warning=warning)

    def advance(self) -> None:
        """Moves every replica's schedule on."""
        ray.get([worker.advance_critic.remote() for worker in self.replicas.workers])

    def state(self) -> dict[str, Any]:
        """The state of the first replica; all are equal."""
        return ray.get(self.replicas.workers[0].critic_state.remote())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores every replica."""
        shared = ray.put(dict(state))
        ray.get([worker.load_critic_state.remote(shared) for worker in self.replicas.workers])

    def save(self, folder: Path) -> None:
        """Writes the first replica's Hugging Face folder."""
        ray.get(self.replicas.workers[0].save_critic.remote(folder))
