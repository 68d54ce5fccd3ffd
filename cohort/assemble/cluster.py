"""Config -> learner over several replicas on this machine, with Ray."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import torch

from cohort.assemble.critic import needs_critic
from cohort.assemble.learner import Learner, build_learner, needs_reference
from cohort.config.schema import Config
from cohort.errors import UserError
from cohort.protocols import Reduce

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from cohort.distributed.workers import Parts


def build_replicas(
    config: Config,
    *,
    model_path: str,
    device: torch.device,
    total_steps: int,
    tokenizer: PreTrainedTokenizerBase,
) -> Learner:
    """As many replicas as ``trainer.n_gpus_per_node`` says; a minibatch is split over them.

    The learner also has a model in this process, which the sampler copies: the trained weights live in the replicas.

    Raises:
        UserError: without Ray, or on a device that replicas cannot share yet.
    """
    count = config.trainer.n_gpus_per_node
    if device.type != "cpu":
        raise UserError(
            f"trainer.n_gpus_per_node={count}: replicas run on CPU cores for now; set it to 1, or trainer.device=cpu "
            "on a machine without a GPU"
        )
    try:
        from cohort.distributed.critic import RemoteCritic
        from cohort.distributed.placement import local_cluster
        from cohort.distributed.workers import RemotePolicy, RemoteReference, Replicas
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UserError(f'trainer.n_gpus_per_node={count} needs Ray; pip install "cohort-rl[ray]"') from error

    local = build_learner(config, model_path=model_path, device=device, total_steps=total_steps)
    build: Callable[[Reduce], Parts] = partial(
        build_parts, config=config, model_path=model_path, total_steps=total_steps, tokenizer=tokenizer
    )
    with ExitStack() as stack:
        stack.enter_context(local_cluster(count))
        replicas = Replicas(build, replicas=count)
        stack.callback(replicas.close)
        close = stack.pop_all().close
    return Learner(
        actor=RemotePolicy(replicas),
        reference=RemoteReference(replicas) if needs_reference(config) else None,
        critic=RemoteCritic(replicas) if needs_critic(config) else None,
        model=local.model,
        compute_dtype=local.compute_dtype,
        parameters=local.parameters,
        notes=local.notes,
        remote=True,
        close=close,
    )


def build_parts(
    reduce: Reduce, *, config: Config, model_path: str, total_steps: int, tokenizer: PreTrainedTokenizerBase
) -> Parts:
    """What one replica holds; runs inside it."""
    from cohort.distributed.workers import Parts

    learner = build_learner(
        config,
        model_path=model_path,
        device=torch.device("cpu"),
        total_steps=total_steps,
        tokenizer=tokenizer,
        reduce=reduce,
    )
    return Parts(actor=learner.actor, reference=learner.reference, critic=learner.critic)
