"""Config -> Run, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from cohort.assemble.cluster import build_replicas
from cohort.assemble.inputs import Inputs, Row, Say, build_demonstrations, build_inputs, build_reward, model_path
from cohort.assemble.learner import (
    Learner,
    build_advantage,
    build_chord,
    build_kl_reward,
    build_learner,
    build_selection,
)
from cohort.assemble.plugins import settle
from cohort.assemble.run import Run
from cohort.assemble.samplers import build_sampler
from cohort.assemble.samples import build_filter, build_prompt_loader
from cohort.assemble.shaping import build_correction, build_shaping
from cohort.assemble.surroundings import (
    build_facts,
    build_plan,
    build_schedule,
    build_validator,
    build_watchers,
    find_place,
    steps_of,
    with_precision,
)
from cohort.config.rules import describe_batch
from cohort.config.schema import Config
from cohort.data.demonstrations import DemonstrationLoader
from cohort.data.tokenizer import eos_ids, load_tokenizer
from cohort.models.build import pick_device
from cohort.models.forward import causal_lm
from cohort.models.memory import keep_freed_memory
from cohort.protocols import PromptSource
from cohort.rewards.mixed import MixedReward
from cohort.rewards.runner import RewardRunner
from cohort.rollout.environment import SingleTurn
from cohort.tracking.base import check_names
from cohort.tracking.console import Console
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.evidence import Stage
from cohort.trainer.run_folder import Place
from cohort.trainer.screen import Screen
from cohort.trainer.trainer import Trainer

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
    if device.type == "cpu":
        keep_freed_memory()
    console = build_console(config)
    say: Say = console.note if console else _silent
    config = settle(config, say)
    path = model_path(config, console.busy if console else _silent)
    tokenizer = build_tokenizer(config, path)
    inputs = build_inputs(config, tokenizer, rows=rows, val_rows=val_rows, say=say)
    demonstrations = build_demonstrations(config, tokenizer, say=say)
    prompts = build_prompt_loader(config, inputs)
    total_steps = steps_of(config, len(inputs.training))
    place = find_place(config, total_steps)
    with ExitStack() as undo:  # what is open when something goes wrong is closed again
        live = {"tokenizer": tokenizer, "sampler": None}  # the sampler follows when there is a model
        runner = build_reward(config, tokenizer, inputs, function=reward, live=live, device=device, say=say)
        undo.callback(runner.close)
        make = build_replicas if config.trainer.n_gpus_per_node > 1 else build_learner
        learner = make(config, model_path=path, device=device, total_steps=total_steps, tokenizer=tokenizer)
        undo.callback(learner.close)
        shaping = build_shaping(config, learner, tokenizer, model_path=path, total_steps=total_steps)
        trainer = build_trainer(config, inputs, prompts, learner, runner, tokenizer, shaping, demonstrations)
        checkpoints = Checkpoints(place.folder / "checkpoints", keep=config.trainer.max_actor_ckpt_to_keep)
        begin(trainer, checkpoints, place, say)
        resolved = with_precision(config, learner)
        trackers = build_watchers(resolved, place, total_steps, trainer.steps, console, tokenizer)
        undo.pop_all()
    for note in learner.notes:
        say(note)
    return Run(
        trainer=trainer,
        schedule=build_schedule(config, total_steps),
        checkpoints=checkpoints,
        trackers=trackers,
        console=console,
        validator=build_validator(config, trainer, inputs),
        folder=place.folder,
        title=title,
        sentences=describe_batch(config),
        facts=build_facts(resolved, path, learner, inputs, device, place),
        close_learner=learner.close,
    )


def build_trainer(
    config: Config,
    inputs: Inputs,
    prompts: PromptSource,
    learner: Learner,
    runner: RewardRunner | MixedReward,
    tokenizer: PreTrainedTokenizerBase,
    shaping: Sequence[Stage],
    demonstrations: DemonstrationLoader | None = None,
) -> Trainer:
    """The training step over these parts."""
    model = causal_lm(learner.model)
    ends = eos_ids(tokenizer, model.config, model.generation_config, **config.data.apply_chat_template_kwargs)
    everything = [*inputs.training, *inputs.validation]
    longest = max(len(prompt.ids) for prompt in everything)
    sampler = build_sampler(config, learner, tokenizer=tokenizer, eos_ids=ends, longest_prompt=longest)
    runner.live["sampler"] = sampler
    plan = build_plan(config)
    screen = Screen(max_unscorable_rate=config.reward.max_unscorable_rate)
    return Trainer(
        plan=plan,
        prompts=prompts,
        environment=SingleTurn(tokenizer),
        sampler=sampler,
        reward=runner,
        actor=learner.actor,
        reference=learner.reference,
        critic=learner.critic,
        advantage=build_advantage(config),
        kl_reward=build_kl_reward(config),
        selection=build_selection(config),
        shaping=shaping,
        correction=build_correction(config),
        chord=build_chord(config, demonstrations, plan),
        group_filter=build_filter(config, len(inputs.training), screen),
        screen=screen,
    )


def begin(trainer: Trainer, checkpoints: Checkpoints, place: Place, say: Say) -> None:
    """Restores the checkpoint that the run goes on from, or hands the sampler its first weights."""
    if place.checkpoint is None:
        trainer.publish()
        return
    checkpoints.restore(trainer, place.checkpoint)
    say(f"going on from {place.checkpoint}")


def build_console(config: Config) -> Console | None:
    """What a person sees, where ``trainer.logger`` asks for it."""
    if "console" not in config.trainer.logger:
        return None
    return Console(sample_every=max(config.trainer.sample_freq, 0), val_answers=config.trainer.log_val_generations)


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
