"""What stands around the training step: its plan, the run folder, the schedule, validation, watchers."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cohort.assemble.inputs import Inputs, training_sampling, validation_sampling
from cohort.assemble.learner import Learner
from cohort.config.load import to_yaml
from cohort.config.schema import Config
from cohort.data.tokenizer import decode
from cohort.errors import UserError
from cohort.tracking.base import Run as RunFacts
from cohort.tracking.base import Trackers, build_trackers
from cohort.tracking.console import Console
from cohort.tracking.pieces import TokenTexts
from cohort.trainer.loop import Schedule
from cohort.trainer.run_folder import Place, choose
from cohort.trainer.trainer import Plan, Trainer
from cohort.trainer.validator import Validator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def build_plan(config: Config) -> Plan:
    """The numbers of the algorithm."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    return Plan(
        prompts=config.data.train_batch_size,
        n=rollout.n,
        minibatch=actor.ppo_mini_batch_size,
        epochs=actor.ppo_epochs,
        seed=rollout.seed,
        shuffle=actor.data_loader_seed if actor.shuffle else None,
        critic_warmup=config.trainer.critic_warmup,
        overlong_filter=config.algorithm.overlong_filter,
        sampling=training_sampling(config),
    )


def steps_of(config: Config, prompts: int) -> int:
    """Training steps of the whole run: what was asked for, or the passes over the data."""
    trainer = config.trainer
    return trainer.total_training_steps or max(1, trainer.total_epochs * prompts // config.data.train_batch_size)


def find_place(config: Config, total_steps: int) -> Place:
    """The run folder, and the checkpoint that the run goes on from.

    Raises:
        UserError: if the named checkpoint is not there, or leaves nothing to do.
    """
    trainer = config.trainer
    folder = Path(os.path.expanduser(trainer.run_folder))
    place = choose(folder, total_steps=total_steps, resume=trainer.resume_mode == "auto")
    if trainer.resume_mode != "resume_path":
        return place
    checkpoint = Path(os.path.expanduser(trainer.resume_from_path or ""))
    if not (checkpoint / "trainer.json").is_file():
        raise UserError(
            f"trainer.resume_from_path={checkpoint} is not a checkpoint; give a folder like RUN/checkpoints/step_20"
        )
    return replace(place, checkpoint=checkpoint)


def build_schedule(config: Config, total_steps: int) -> Schedule:
    """When things happen around the steps."""
    trainer = config.trainer
    return Schedule(
        total_steps=total_steps,
        test_freq=trainer.test_freq,
        save_freq=trainer.save_freq,
        val_before_train=trainer.val_before_train,
        val_only=trainer.val_only,
        max_seconds=trainer.max_minutes * 60 if trainer.max_minutes else None,
    )


def build_validator(config: Config, trainer: Trainer, inputs: Inputs) -> Validator | None:
    """The validation, where there is a validation set."""
    if not inputs.validation:
        if config.trainer.val_only:
            raise UserError("trainer.val_only=True needs a validation set; name one with data.val_files")
        return None
    val = config.actor_rollout_ref.rollout.val_kwargs
    return Validator(
        trainer,
        inputs.validation,
        sampling=validation_sampling(config),
        n=val.n,
        batch_size=config.data.val_batch_size,
        also_greedy=val.also_greedy,
    )


def build_watchers(
    config: Config,
    place: Place,
    total_steps: int,
    done: int,
    console: Console | None,
    tokenizer: PreTrainedTokenizerBase,
) -> Trackers:
    """Every tracker of the run; writes ``config.yaml`` into the run folder."""
    trainer = config.trainer
    place.folder.mkdir(parents=True, exist_ok=True)
    (place.folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    if console:
        console.follow(total_steps=total_steps, first_step=done)
    facts = RunFacts(
        folder=place.folder,
        total_steps=total_steps,
        first_step=done,
        console=console,
        rollout_folder=_folder(trainer.rollout_data_dir),
        validation_folder=_folder(trainer.validation_data_dir),
        pieces=TokenTexts(partial(decode, tokenizer), tokenizer.encode("a", add_special_tokens=False)),
    )
    return build_trackers(trainer.logger, facts)


def _folder(name: str | None) -> Path | None:
    return Path(os.path.expanduser(name)) if name else None


def with_precision(config: Config, learner: Learner) -> Config:
    """The config with ``auto`` replaced by what it came to, so that the run folder says it."""
    arr = config.actor_rollout_ref
    dtype: Any = str(learner.compute_dtype).removeprefix("torch.")
    rollout = replace(arr.rollout, dtype=dtype if arr.rollout.dtype == "auto" else arr.rollout.dtype)
    return replace(config, actor_rollout_ref=replace(arr, actor=replace(arr.actor, dtype=dtype), rollout=rollout))


def build_facts(
    config: Config,
    path: str,
    learner: Learner,
    inputs: Inputs,
    device: torch.device,
    place: Place,
) -> dict[str, str]:
    """What the banner lists."""
    arr = config.actor_rollout_ref
    lora = f", LoRA rank {arr.model.lora_rank}" if arr.model.lora_rank else ""
    validation = f", {len(inputs.validation)} held out" if inputs.validation else ""
    source = config.data.task or ", ".join(config.data.train_files) or "rows"
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return {
        "model": f"{path} ({learner.parameters / 1e6:.2f} M parameters{lora})",
        "data": f"{source}: {len(inputs.training)} prompts{validation}",
        "precision": f"{arr.actor.dtype} compute, float32 weights; sampler {arr.rollout.name} in {arr.rollout.dtype}",
        "device": f"{device}{threads}",
        "run folder": str(place.folder),
    }
