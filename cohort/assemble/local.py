"""Config -> Run, in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cohort.assemble.cluster import build_replicas
from cohort.assemble.inputs import (
    Inputs,
    Row,
    Say,
    build_inputs,
    build_reward,
    model_path,
    training_sampling,
    validation_sampling,
)
from cohort.assemble.learner import Learner, build_advantage, build_kl_reward, build_learner
from cohort.assemble.run import Run
from cohort.assemble.samplers import build_sampler
from cohort.config.load import to_yaml
from cohort.config.rules import describe_batch
from cohort.config.schema import Config
from cohort.data.loader import PromptLoader
from cohort.data.tokenizer import eos_ids, load_tokenizer
from cohort.errors import UserError
from cohort.models.build import pick_device
from cohort.models.forward import causal_lm
from cohort.rollout.environment import SingleTurn
from cohort.tracking.base import Run as RunFacts
from cohort.tracking.base import Trackers, build_trackers, check_names
from cohort.tracking.console import Console
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.loop import Schedule
from cohort.trainer.run_folder import Place, choose
from cohort.trainer.screen import Screen
from cohort.trainer.trainer import Plan, Trainer
from cohort.trainer.validator import Validator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def assemble(
    config: Config,
    *,
    rows: Sequence[Row] | None = None,
    val_rows: Sequence[Row] | None = None,
    reward: Callable[..., object] | None = None,
    title: str = "cohort train",
) -> Run:
    """Builds a run. What a person can get wrong is judged first, before a model is loaded.

    Args:
        config: the whole config.
        rows: training rows instead of ``data.train_files``.
        val_rows: validation rows instead of ``data.val_files``.
        reward: a reward function instead of the configured one.
        title: names the run on the banner.

    Raises:
        UserError: for anything in the config, the data or the reward that cannot work.
    """
    check_names(config.trainer.logger)
    device = pick_device(config.trainer.device)
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    console = Console(sample_every=max(config.trainer.sample_freq, 0)) if "console" in config.trainer.logger else None
    say: Say = console.note if console else _silent
    path = model_path(config, console.busy if console else _silent)
    tokenizer = build_tokenizer(config, path)
    inputs = build_inputs(config, tokenizer, rows=rows, val_rows=val_rows, say=say)
    total_steps = steps_of(config, len(inputs.training))
    place = find_place(config, total_steps)
    live: dict[str, object] = {"tokenizer": tokenizer, "sampler": None}  # the sampler itself is put in below
    runner = build_reward(config, tokenizer, inputs, function=reward, live=live, say=say)

    cleanup = ExitStack()
    if config.trainer.n_gpus_per_node > 1:
        learner = build_replicas(
            config, model_path=path, total_steps=total_steps, tokenizer=tokenizer, open_until_close=cleanup
        )
    else:
        learner = build_learner(config, model_path=path, device=device, total_steps=total_steps, tokenizer=tokenizer)
    model = causal_lm(learner.model)
    ends = eos_ids(tokenizer, model.config, model.generation_config, **config.data.apply_chat_template_kwargs)
    longest = max(len(prompt.ids) for prompt in [*inputs.training, *inputs.validation])
    sampler = build_sampler(config, learner, tokenizer=tokenizer, eos_ids=ends, longest_prompt=longest)
    runner.live["sampler"] = sampler
    trainer = Trainer(
        plan=build_plan(config),
        prompts=PromptLoader(inputs.training or inputs.validation, seed=config.data.seed, shuffle=config.data.shuffle),
        environment=SingleTurn(tokenizer),
        sampler=sampler,
        reward=runner,
        actor=learner.actor,
        reference=learner.reference,
        advantage=build_advantage(config),
        kl_reward=build_kl_reward(config),
        screen=Screen(max_unscorable_rate=config.reward.max_unscorable_rate),
    )
    checkpoints = Checkpoints(place.folder / "checkpoints", keep=config.trainer.max_actor_ckpt_to_keep)
    if place.checkpoint:
        checkpoints.restore(trainer, place.checkpoint)
        say(f"going on from {place.checkpoint}")
    else:
        trainer.publish()
    for note in learner.notes:
        say(note)
    resolved = with_precision(config, learner)
    return Run(
        trainer=trainer,
        schedule=build_schedule(config, total_steps),
        checkpoints=checkpoints,
        trackers=build_watchers(resolved, place, total_steps, trainer.steps, console),
        console=console,
        validator=build_validator(config, trainer, inputs),
        folder=place.folder,
        title=title,
        sentences=describe_batch(config),
        facts=build_facts(resolved, path, learner, inputs, device, place, total_steps),
        cleanup=cleanup,
    )


def _silent(_line: str) -> None:
    """Where remarks go when nobody reads them."""


def build_tokenizer(config: Config, path: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a run."""
    model = config.actor_rollout_ref.model
    return load_tokenizer(
        model.tokenizer_path or path,
        chat_template=model.custom_chat_template,
        trust_remote_code=model.trust_remote_code,
    )


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


def build_watchers(config: Config, place: Place, total_steps: int, done: int, console: Console | None) -> Trackers:
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
    total_steps: int,
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
        "steps": str(total_steps),
        "run folder": str(place.folder),
    }
