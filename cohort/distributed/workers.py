"""Stand-ins for the local classes: the same methods, written out, each calling every replica.

A replica is an ordinary ``LocalPolicy`` in a Ray actor; it does not know that it is one of several. What is split
is a minibatch, so the optimiser steps are those of a single process.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from torch import Tensor

from cohort.distributed.reduce import GroupReduce
from cohort.distributed.split import gather_rows, split_rows
from cohort.metrics import Metrics, merge
from cohort.protocols import Critic, Policy, Reduce, Reference, TokenStats, Update, ValueUpdate, Weights
from cohort.types import Batch, Demonstrations, Experience


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What one replica holds."""

    actor: Policy
    reference: Reference | None = None
    critic: Critic | None = None


class PolicyWorker:
    """One replica: joins the process group, builds the local parts, and lends out their methods."""

    def __init__(self, rank: int, replicas: int, build: Callable[[Reduce], Parts]) -> None:
        self.rank = rank
        self.replicas = replicas
        self.build = build

    def address(self) -> str:
        """A free TCP address on this node for the process group to meet at."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def join(self, address: str) -> None:
        """Joins the process group and builds the parts."""
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=address, rank=self.rank, world_size=self.replicas)
        self.parts = self.build(GroupReduce())

    def log_probs(self, batch: Batch, wanted: Mapping[str, bool]) -> TokenStats:
        """``Policy.log_probs`` on this replica's rows."""
        return self.parts.actor.log_probs(batch, **wanted)

    def reference_log_probs(self, batch: Batch, hidden: bool) -> TokenStats:
        """``Reference.log_probs`` on this replica's rows."""
        assert self.parts.reference is not None
        return self.parts.reference.log_probs(batch, hidden=hidden)

    def update(self, minibatch: Experience, demonstrations: Demonstrations | None) -> Update:
        """``Policy.update`` on this replica's rows; counts and gradients are summed over all."""
        return self.parts.actor.update(minibatch, demonstrations=demonstrations)

    def advance(self) -> None:
        """``Policy.advance``."""
        self.parts.actor.advance()

    def weights(self) -> list[tuple[str, Tensor]]:
        """``Policy.weights``, as a list that can travel."""
        return [(name, tensor.detach().cpu()) for name, tensor in self.parts.actor.weights()]

    def state(self) -> dict[str, Any]:
        """``Policy.state``."""
        return self.parts.actor.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """``Policy.load_state``."""
        self.parts.actor.load_state(state)

    def save(self, folder: Path) -> None:
        """``Policy.save``."""
        self.parts.actor.save(folder)

    @property
    def critic(self) -> Critic:
        """This replica's critic; ``RemoteCritic`` is made only where there is one."""
        assert self.parts.critic is not None
        return self.parts.critic

    def values(self, batch: Batch) -> Tensor:
        """``Critic.values`` on this replica's rows."""
        return self.critic.values(batch)

    def update_critic(self, minibatch: Experience) -> ValueUpdate:
        """``Critic.update`` on this replica's rows; counts and gradients are summed over all."""
        return self.critic.update(minibatch)

    def advance_critic(self) -> None:
        """``Critic.advance``."""
        self.critic.advance()

    def critic_state(self) -> dict[str, Any]:
        """``Critic.state``."""
        return self.critic.state()

    def load_critic_state(self, state: Mapping[str, Any]) -> None:
        """``Critic.load_state``."""
        self.critic.load_state(state)

    def save_critic(self, folder: Path) -> None:
        """``Critic.save``."""
        self.critic.save(folder)


class Replicas:
    """The Ray actors of one component."""

    def __init__(self, build: Callable[[Reduce], Parts], *, replicas: int) -> None:
        actor_class = ray.remote(num_cpus=1)(PolicyWorker)
        self.workers: list[Any] = [actor_class.remote(rank, replicas, build) for rank in range(replicas)]
        address = ray.get(self.workers[0].address.remote())
        ray.get([worker.join.remote(address) for worker in self.workers])

    def __len__(self) -> int:
        return len(self.workers)

    def close(self) -> None:
        """Ends the actors."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []


class RemotePolicy:
    """``protocols.Policy`` over replicas."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def log_probs(
        self, batch: Batch, *, entropy: bool = False, sum_pi_squared: bool = False, hidden: bool = False
    ) -> TokenStats:
        """Log-probs of every response token, each row computed by one replica."""
        rows = split_rows(batch, len(self.replicas))
        wanted = {"entropy": entropy, "sum_pi_squared": sum_pi_squared, "hidden": hidden}
        calls = [w.log_probs.remote(batch.select(r), wanted) for w, r in zip(self.replicas.workers, rows, strict=True)]
        return _join(ray.get(calls), rows)

    def update(self, minibatch: Experience, *, demonstrations: Demonstrations | None = None) -> Update:
        """One optimiser step of all replicas together; demonstrations are split over them too."""
        rows = split_rows(minibatch.batch, len(self.replicas))
        experts = _split(demonstrations, len(self.replicas))
        calls = [
            w.update.remote(minibatch.select(r), e)
            for w, r, e in zip(self.replicas.workers, rows, experts, strict=True)
        ]
        updates: list[Update] = ray.get(calls)
        metrics: Metrics = {}
        for update in updates:
            merge(metrics, update.metrics)
        warning = "; ".join(dict.fromkeys(update.warning for update in updates if update.warning))
        return Update(metrics=metrics, stats=_join([update.stats for update in updates], rows), warning=warning)

    def advance(self) -> None:
        """Moves every replica's schedule on."""
        ray.get([worker.advance.remote() for worker in self.replicas.workers])

    def weights(self) -> Weights:
        """The weights of the first replica; all are equal."""
        return ray.get(self.replicas.workers[0].weights.remote())

    def state(self) -> dict[str, Any]:
        """The state of the first replica; all are equal."""
        return ray.get(self.replicas.workers[0].state.remote())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores every replica."""
        shared = ray.put(dict(state))
        ray.get([worker.load_state.remote(shared) for worker in self.replicas.workers])

    def save(self, folder: Path) -> None:
        """Writes the first replica's Hugging Face folder."""
        ray.get(self.replicas.workers[0].save.remote(folder))


class RemoteReference:
    """``protocols.Reference`` over replicas."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def log_probs(self, batch: Batch, *, hidden: bool = False) -> TokenStats:
        """Log-probs of every response token under the frozen model."""
        rows = split_rows(batch, len(self.replicas))
        calls = [
            w.reference_log_probs.remote(batch.select(r), hidden)
            for w, r in zip(self.replicas.workers, rows, strict=True)
        ]
        return _join(ray.get(calls), rows)


def _split(demonstrations: Demonstrations | None, replicas: int) -> list[Demonstrations | None]:
    """Each replica's share of the demonstrations; without any, nothing for each."""
    if demonstrations is None:
        return [None] * replicas
    return [demonstrations.select(rows) for rows in split_rows(demonstrations.batch, replicas)]


def _join(parts: Sequence[TokenStats], rows: Sequence[Tensor]) -> TokenStats:
    """The statistics of the whole batch from those of its parts. A replica without rows has no say."""
    parts, rows = zip(*((part, r) for part, r in zip(parts, rows, strict=True) if len(r)), strict=True)

    def field(name: str) -> Tensor | None:
        values = [part.__dict__[name] for part in parts]
        return None if values[0] is None else gather_rows(values, rows)

    log_probs = gather_rows([part.log_probs for part in parts], rows)
    return TokenStats(
        log_probs=log_probs, entropy=field("entropy"), sum_pi_squared=field("sum_pi_squared"), hidden=field("hidden")
    )
