"""The outer side of a run: model folder, tokenizer, prompts, rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cohort.assemble.reward_model import build_grader
from cohort.config.schema import Config
from cohort.data.dataset import build_prompts
from cohort.data.demonstrations import DemonstrationLoader
from cohort.data.demonstrations import build_demonstrations as make_demonstrations
from cohort.data.files import load_rows
from cohort.data.tasks import task_rows
from cohort.data.tokenizer import prefill
from cohort.errors import UserError
from cohort.protocols import Sampling
from cohort.rewards.base import RewardFunction
from cohort.rewards.custom import load_custom
from cohort.rewards.mixed import MixedReward
from cohort.rewards.registry import built_in, by_data_source
from cohort.rewards.runner import RewardRunner
from cohort.types import Prompt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

Row = Mapping[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Prompts of both sets. ``validation`` is empty where none was named."""

    training: Sequence[Prompt]
    validation: Sequence[Prompt]


def model_path(config: Config, say: Say) -> str:
    """The model's folder or hub name; ``starter`` is built on first use."""
    path = config.actor_rollout_ref.model.path
    if path != "starter":
        return path
    from cohort.starter.build import starter_model

    return str(starter_model(progress=say))


def build_inputs(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    *,
    rows: Sequence[Row] | None = None,
    val_rows: Sequence[Row] | None = None,
    say: Say,
) -> Inputs:
    """Training and validation prompts: rows that were handed in, a built-in task, or files."""
    data = config.data
    if rows is None and data.task is not None:
        make = task_rows(data.task)
        try:
            rows = make("train", data.train_size, data.seed, **data.task_kwargs)
            val_rows = make("test", data.val_size, data.seed, **data.task_kwargs)
        except UserError as error:
            sizes = f"data.train_size={data.train_size}, data.val_size={data.val_size}"
            raise UserError(f"data.task={data.task} ({sizes}): {error}") from error
    elif rows is None:
        if not data.train_files and not config.trainer.val_only:
            raise UserError("data.train_files is empty; name parquet or JSONL files, or a built-in task with data.task")
        rows = load_rows(data.train_files, key="data.train_files") if data.train_files else []
        val_rows = load_rows(data.val_files, key="data.val_files") if data.val_files else None
    return Inputs(
        training=_prompts(config, tokenizer, rows, data.train_max_samples, data.shuffle, say) if rows else (),
        validation=_prompts(config, tokenizer, val_rows, data.val_max_samples, False, say) if val_rows else (),
    )


def _prompts(
    config: Config, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], cap: int, shuffle: bool, say: Say
) -> list[Prompt]:
    data = config.data
    return build_prompts(
        rows,
        tokenizer,
        prompt_key=data.prompt_key,
        max_length=data.max_prompt_length,
        filter_overlong=data.filter_overlong_prompts,
        truncation=data.truncation,
        max_samples=cap,
        shuffle=shuffle,
        seed=data.seed,
        template_kwargs=data.apply_chat_template_kwargs,
        say=say,
    )


def build_demonstrations(config: Config, tokenizer: PreTrainedTokenizerBase, *, say: Say) -> DemonstrationLoader | None:
    """The demonstrations of CHORD, None where it is off."""
    chord, data = config.algorithm.chord, config.data
    if not chord.enable or config.trainer.val_only:
        return None
    rollouts = make_demonstrations(
        load_rows(chord.files, key="algorithm.chord.files"),
        tokenizer,
        prompt_key=chord.prompt_key,
        response_key=chord.response_key,
        max_length=chord.max_length or data.max_prompt_length + data.max_response_length,
        template_kwargs=data.apply_chat_template_kwargs,
        say=say,
    )
    return DemonstrationLoader(rollouts, seed=data.seed)


def build_reward(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Inputs,
    *,
    function: Callable[..., object] | None = None,
    live: Mapping[str, object],
    device: torch.device,
    say: Say,
) -> RewardRunner | MixedReward:
    """The reward of a run, checked against the columns that the data has: functions, a model, or the sum of both.

    Raises:
        UserError: if it asks for something that the data does not have, no reward fits, or the model does not load.
    """
    section = config.reward_model
    functions = _reward_functions(config, inputs, function)
    start = prefill(tokenizer, **config.data.apply_chat_template_kwargs)
    runner = _functions_runner(config, inputs, functions, start, live, say) if functions else None
    if not section.enable:
        assert runner is not None
        return runner
    shared = runner.live if runner else dict(live)
    rollout = config.actor_rollout_ref.rollout
    grader = build_grader(
        section,
        device=device,
        tokenizer=tokenizer,
        live=shared,
        engine=rollout.name,
        slots=rollout.max_num_seqs,
        say=say,
    )
    return MixedReward(grader, functions=runner, weight=section.weight, prefill=start, live=shared)


def _functions_runner(
    config: Config,
    inputs: Inputs,
    functions: Sequence[RewardFunction | Callable[..., object]],
    start: str,
    live: Mapping[str, object],
    say: Say,
) -> RewardRunner:
    runner = RewardRunner(
        functions,
        num_workers=config.reward.num_workers,
        timeout=config.reward.timeout,
        prefill=start,
        live=live,
        say=say,
    )
    runner.check([*inputs.training, *inputs.validation])
    return runner


def _reward_functions(
    config: Config, inputs: Inputs, function: Callable[..., object] | None
) -> Sequence[RewardFunction | Callable[..., object]]:
    custom = config.custom_reward_function
    of_run = {"max_response_length": config.data.max_response_length}
    if function is not None:
        return [function]
    if custom.path is not None:
        return [load_custom(custom.path, custom.name, custom.reward_kwargs)]
    if config.reward.functions:
        return [
            load_custom(part.path, part.name, part.kwargs, weight=part.weight)
            if part.path
            else built_in(part.name, part.kwargs, weight=part.weight, of_run=of_run)
            for part in config.reward.functions
        ]
    if config.reward_model.enable:  # the model alone, as in verl
        return []
    return [by_data_source(prompt.data_source for prompt in [*inputs.training, *inputs.validation])]


def training_sampling(config: Config) -> Sampling:
    """How training answers are drawn: temperature alone shapes the distribution."""
    rollout = config.actor_rollout_ref.rollout
    return Sampling(
        temperature=rollout.temperature,
        max_tokens=config.data.max_response_length,
        stop=rollout.stop,
        ignore_eos=rollout.ignore_eos,
    )


def validation_sampling(config: Config) -> Sampling:
    """How validation answers are drawn."""
    val = config.actor_rollout_ref.rollout.val_kwargs
    return Sampling(
        temperature=val.temperature,
        top_k=val.top_k,
        top_p=val.top_p,
        min_p=val.min_p,
        max_tokens=config.data.max_response_length,
        stop=val.stop,
    )
