"""What must hold between keys, which keys do nothing beside others, and the batch arithmetic in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cohort.config import demonstrations, family, sample_rules, shaping
from cohort.config.convert import show
from cohort.config.critic import check_critic, check_warmup, critic_runs, idle_critic
from cohort.config.nearest import nearest_words
from cohort.config.reward_rules import check_reward_model, idle_reward_model
from cohort.config.schema import Config
from cohort.config.schema.data import TASKS
from cohort.errors import UserError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def check(config: Config) -> None:
    """Cross-checks of a config whose single values are legal.

    Raises:
        UserError: naming the keys, their values and what would be legal.
    """
    _batch(config)
    family.check(config)
    _sampling(config)
    _kl(config)
    shaping.check(config)
    check_critic(config)
    demonstrations.check(config)
    _data(config)
    _reward(config)
    check_reward_model(config)
    _run(config)
    sample_rules.check(config)


def require_data(config: Config) -> None:
    """A run from the command line needs training rows; one from Python may bring its own.

    Raises:
        UserError: if there are none, or none to validate on or to imitate although that is asked for.
    """
    data, trainer = config.data, config.trainer
    if data.task is None and not data.train_files and not trainer.val_only:
        raise UserError(
            "data.train_files=[]: no training data; give a Parquet or JSONL file, "
            f"or a built-in task with data.task={TASKS[0]}"
        )
    if data.task is None and not data.val_files and (trainer.val_only or trainer.test_freq > 0):
        asked = "trainer.val_only=True" if trainer.val_only else f"trainer.test_freq={trainer.test_freq}"
        raise UserError(f"data.val_files=[]: {asked} needs validation data; give a Parquet or JSONL file")
    demonstrations.require_files(config)


def check_foreign(config: Config, flat: Mapping[str, Any]) -> None:
    """Keys of verl that do nothing here as long as they agree with ours.

    Raises:
        UserError: where they do not.
    """
    validation = config.actor_rollout_ref.rollout.val_kwargs
    do_sample = flat.get(f"{ROLLOUT}.val_kwargs.do_sample")
    if do_sample is not None and bool(do_sample) != (validation.temperature > 0):
        wish = "a temperature above 0" if do_sample else "0"
        raise UserError(
            f"{ROLLOUT}.val_kwargs.do_sample={show(do_sample)}: val_kwargs.temperature={validation.temperature:g} "
            f"decides here and says otherwise; set val_kwargs.temperature to {wish} and leave do_sample out"
        )
    length, needed = (
        flat.get(f"{ROLLOUT}.max_model_len"),
        config.data.max_prompt_length + config.data.max_response_length,
    )
    if isinstance(length, int) and length < needed:
        raise UserError(
            f"{ROLLOUT}.max_model_len={length}: data.max_prompt_length + data.max_response_length is {needed}; "
            "make those smaller instead"
        )


def _batch(config: Config) -> None:
    actor, data = config.actor_rollout_ref.actor, config.data
    if actor.ppo_mini_batch_size > data.train_batch_size:
        raise UserError(
            f"{ACTOR}.ppo_mini_batch_size={actor.ppo_mini_batch_size}: a step has only data.train_batch_size="
            f"{data.train_batch_size} prompts; make it {data.train_batch_size} or less"
        )


def _sampling(config: Config) -> None:
    rollout = config.actor_rollout_ref.rollout
    if config.trainer.val_only:
        return
    if rollout.temperature == 0:
        raise UserError(
            f"{ROLLOUT}.temperature=0: greedy answers to one prompt are all the same and teach nothing; "
            "set it above 0 (1 is usual), and val_kwargs.temperature=0 for greedy validation"
        )
    off = {"top_k": (rollout.top_k, -1), "top_p": (rollout.top_p, 1.0), "min_p": (rollout.min_p, 0.0)}
    for name, (value, neutral) in off.items():
        if value != neutral and not (name == "top_k" and value == 0):
            raise UserError(
                f"{ROLLOUT}.{name}={show(value)}: in training the loss would be of another distribution than the one "
                f"that was drawn from; set it to {neutral:g}, and {ROLLOUT}.val_kwargs.{name} for validation"
            )


def _kl(config: Config) -> None:
    actor, control = config.actor_rollout_ref.actor, config.algorithm.kl_ctrl
    if actor.use_kl_loss and actor.kl_loss_coef == 0:
        raise UserError(
            f"{ACTOR}.kl_loss_coef=0: with {ACTOR}.use_kl_loss=True it does nothing but run a second model; "
            f"set a coefficient such as 0.001, or {ACTOR}.use_kl_loss=False"
        )
    if actor.use_kl_loss and actor.kl_loss_type in ("kl", "k1"):
        raise UserError(
            f"{ACTOR}.kl_loss_type={actor.kl_loss_type}: as a loss its mean gradient is 0, whatever the reference is; "
            "set low_var_kl or k2, or kl+ for this value with the gradient of the KL"
        )
    if config.algorithm.use_kl_in_reward and control.kl_coef == 0:
        raise UserError(
            "algorithm.kl_ctrl.kl_coef=0: with algorithm.use_kl_in_reward=True it does nothing but run a second model; "
            "set a coefficient such as 0.001, or algorithm.use_kl_in_reward=False"
        )


def _data(config: Config) -> None:
    data = config.data
    if data.task is None:
        return
    if data.task not in TASKS and not re.fullmatch(r"reasoning-gym/\w+", data.task):
        close = nearest_words(data.task, [*TASKS, "reasoning-gym"], most=1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(f"data.task={show(data.task)}: expects {', '.join(TASKS)} or reasoning-gym/NAME{guess}")
    if data.train_files:
        raise UserError(
            f"data.task={data.task}: data.train_files={show(data.train_files)} is set too; "
            "for the files, set data.task=null"
        )


def _reward(config: Config) -> None:
    custom, functions = config.custom_reward_function, config.reward.functions
    if custom.path is None and (custom.name != "compute_score" or custom.reward_kwargs):
        name = "name" if custom.name != "compute_score" else "reward_kwargs"
        value = custom.name if name == "name" else custom.reward_kwargs
        raise UserError(
            f"custom_reward_function.{name}={show(value)}: which file is it in? Set custom_reward_function.path, "
            "or name a built-in reward in reward.functions"
        )
    if custom.path is not None and functions:
        raise UserError(
            f"custom_reward_function.path={show(custom.path)}: reward.functions is given too; "
            "add the function there, as {name: ..., path: ...}"
        )
    for i, part in enumerate(functions):
        if part.weight == 0:
            raise UserError(
                f"reward.functions[{i}].weight=0: {part.name} would do nothing; leave it out or give it a weight"
            )


def _run(config: Config) -> None:
    trainer, optim = config.trainer, config.actor_rollout_ref.actor.optim
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is None:
        raise UserError(
            "trainer.resume_mode=resume_path: trainer.resume_from_path is null; set it to a checkpoint folder"
        )
    if trainer.resume_mode != "resume_path" and trainer.resume_from_path is not None:
        raise UserError(
            f"trainer.resume_from_path={show(trainer.resume_from_path)}: trainer.resume_mode={trainer.resume_mode} "
            "ignores it; set trainer.resume_mode=resume_path"
        )
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", trainer.device):
        close = nearest_words(trainer.device, ["auto", "cpu", "cuda", "mps"], most=1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(f"trainer.device={show(trainer.device)}: expects auto, cpu, cuda, cuda:N or mps{guess}")
    check_warmup(f"{ACTOR}.optim", optim.lr_warmup_steps, trainer.total_training_steps)


def idle(config: Config, given: frozenset[str]) -> list[str]:
    """One line for each key that was given and does nothing beside the others, and remarks on legal choices."""
    idles = (_idle, family.idle, shaping.idle, idle_critic, demonstrations.idle)
    lines = [f"no effect: {key} ({why})" for part in idles for key, why in part(config) if key in given]
    return [*lines, *family.remarks(config), *shaping.remarks(config)]


def check_kl_settings(config: Config, given: frozenset[str]) -> None:
    """A KL that somebody set and that holds nothing is worse than none: he believes that it does.

    Raises:
        UserError: for a KL setting that was given and has no effect. A coefficient of 0 says so itself and is fine.
    """
    values = {**_kl_loss_settings(config), **_kl_reward_settings(config)}
    for key, (value, switch) in values.items():
        if key in given and value != 0:
            raise UserError(f"{key}={show(value)}: it has no effect with {switch}; change that, or leave this out")


def _kl_loss_settings(config: Config) -> dict[str, tuple[object, str]]:
    actor, off = config.actor_rollout_ref.actor, f"{ACTOR}.use_kl_loss=False"
    if actor.use_kl_loss:
        return {}
    return {f"{ACTOR}.kl_loss_coef": (actor.kl_loss_coef, off), f"{ACTOR}.kl_loss_type": (actor.kl_loss_type, off)}


def _kl_reward_settings(config: Config) -> dict[str, tuple[object, str]]:
    algorithm, control = config.algorithm, config.algorithm.kl_ctrl
    if algorithm.use_kl_in_reward and control.type == "adaptive":
        return {}
    steering = {"algorithm.kl_ctrl.target_kl": control.target_kl, "algorithm.kl_ctrl.horizon": control.horizon}
    if algorithm.use_kl_in_reward:
        return {key: (value, "algorithm.kl_ctrl.type=fixed") for key, value in steering.items()}
    kind = {"algorithm.kl_penalty": algorithm.kl_penalty, "algorithm.kl_ctrl.type": control.type}
    every = {**kind, "algorithm.kl_ctrl.kl_coef": control.kl_coef, **steering}
    return {key: (value, "algorithm.use_kl_in_reward=False") for key, value in every.items()}


def _idle(config: Config) -> Iterator[tuple[str, str]]:
    arr, data, trainer = config.actor_rollout_ref, config.data, config.trainer
    actor, optim = arr.actor, arr.actor.optim
    algorithm = config.algorithm
    if not (actor.use_kl_loss or algorithm.use_kl_in_reward or algorithm.ref_reward_blend.enable):
        names = ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "use_dynamic_bsz")
        yield from ((f"actor_rollout_ref.ref.log_prob_{key}", "nothing reads a reference model") for key in names)
    if actor.use_dynamic_bsz:
        yield f"{ACTOR}.ppo_micro_batch_size_per_gpu", "use_dynamic_bsz=True cuts by tokens alone"
    for section, part in (("rollout", arr.rollout), ("ref", arr.ref)):
        if part.log_prob_use_dynamic_bsz:
            key = f"actor_rollout_ref.{section}.log_prob_micro_batch_size_per_gpu"
            yield key, "log_prob_use_dynamic_bsz=True cuts by tokens alone"
    if not actor.shuffle:
        yield f"{ACTOR}.data_loader_seed", f"{ACTOR}.shuffle=False"
    if (mode := family.aggregation_of(config)) not in ("seq-mean-token-sum-norm", None):
        yield f"{ACTOR}.loss_scale_factor", f"loss_agg_mode={mode}"
    if optim.lr_scheduler_type == "constant":
        yield from ((f"{ACTOR}.optim.{key}", "lr_scheduler_type=constant") for key in ("min_lr_ratio", "num_cycles"))
    if optim.lr_warmup_steps >= 0:
        yield f"{ACTOR}.optim.lr_warmup_steps_ratio", f"lr_warmup_steps={optim.lr_warmup_steps}"
    if arr.model.lora_rank == 0:
        names = ("lora_alpha", "target_modules", "exclude_modules")
        yield from ((f"actor_rollout_ref.model.{key}", "lora_rank=0 trains all weights") for key in names)
    if data.task is None:
        yield from ((f"data.{key}", "data.task is not set") for key in ("task_kwargs", "train_size", "val_size"))
    if arr.rollout.val_kwargs.temperature == 0:
        names = ("top_k", "top_p", "min_p")
        yield from ((f"{ROLLOUT}.val_kwargs.{key}", "val_kwargs.temperature=0 is greedy") for key in names)
    yield from idle_reward_model(config)
    if trainer.save_freq < 1:
        yield "trainer.max_actor_ckpt_to_keep", f"trainer.save_freq={trainer.save_freq} saves none"
    yield from sample_rules.idle(config)


def describe_batch(config: Config) -> list[str]:
    """The batch arithmetic of a run in plain sentences, for the start banner."""
    data, arr, trainer = config.data, config.actor_rollout_ref, config.trainer
    prompts, n, mini = data.train_batch_size, arr.rollout.n, arr.actor.ppo_mini_batch_size
    whole, rest = divmod(prompts, mini)
    updates = (whole + bool(rest)) * arr.actor.ppo_epochs
    lines = [f"{_many(prompts, 'prompt')} x {_many(n, 'answer')} = {prompts * n} rollouts a step"]
    if updates == 1:
        lines.append(f"1 update a step, of all {prompts * n} rollouts (the ratio is exactly 1, nothing is clipped)")
    else:
        passes = f"{arr.actor.ppo_epochs} passes over " if arr.actor.ppo_epochs > 1 else ""
        last = f" and 1 of {_many(rest, 'prompt')} ({rest * n} rollouts)" if rest else ""
        cut = f"{whole} of {_many(mini, 'prompt')} ({mini * n} rollouts){last}"
        lines.append(f"{updates} updates a step: {passes}{cut}")
    if critic_runs(config):
        wait = f", alone for {_many(trainer.critic_warmup, 'step')}" if trainer.critic_warmup else ""
        lines.append(f"a critic learns on the same minibatches{wait}")
    lines += demonstrations.describe(config)
    lines += sample_rules.describe(config)
    rows = None if arr.actor.use_dynamic_bsz else arr.actor.ppo_micro_batch_size_per_gpu
    cap = f" and {_many(rows, 'answer')}" if rows else ""
    lines.append(f"training passes of at most {arr.actor.ppo_max_token_len_per_gpu} tokens{cap} (memory only)")
    lines.append(f"prompts of up to {data.max_prompt_length} tokens, answers of up to {data.max_response_length}")
    if trainer.n_gpus_per_node > 1:
        lines.append(f"every update is shared by {trainer.n_gpus_per_node} replicas")
    end = f"{_many(trainer.total_epochs, 'epoch')}"
    if trainer.total_training_steps is not None:
        end = _many(trainer.total_training_steps, "step")
    limit = f", at most {trainer.max_minutes:g} minutes" if trainer.max_minutes else ""
    lines.append(f"{end} in all{limit}")
    return lines


def _many(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
