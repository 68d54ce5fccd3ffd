"""Config -> the critic of PPO, in this process or as what each replica holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from cohort.algorithms.registry import ADVANTAGES
from cohort.config.schema import Config
from cohort.config.schema.actor import Optim
from cohort.models.build import add_lora
from cohort.models.critic import LocalCritic
from cohort.models.layout import Layout
from cohort.models.micro import Budget
from cohort.models.optim import OptimSettings
from cohort.models.precision import resolve_precision
from cohort.models.value import head_name, load_value_model
from cohort.protocols import Reduce

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def needs_critic(config: Config) -> bool:
    """Whether the advantage reads values."""
    return "values" in ADVANTAGES[config.algorithm.adv_estimator].needs


def build_critic(
    config: Config,
    *,
    model_path: str,
    device: torch.device,
    total_steps: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reduce: Reduce | None = None,
) -> LocalCritic | None:
    """The critic on ``device``, where the advantage needs one; also what each replica of a larger run builds.

    Args:
        config: the whole config.
        model_path: the actor's folder, with ``starter`` already built.
        device: where it goes.
        total_steps: training steps of the run, where a cosine ends.
        tokenizer: saved beside the model.
        reduce: sums over replicas.

    Raises:
        UserError: if the folder holds no value model and nothing that one can be made of.
    """
    if not needs_critic(config):
        return None
    critic = config.critic
    model = _load(config, model_path, device)
    return LocalCritic(
        _with_lora(config, model) if critic.model.lora_rank else model,
        optim=optim_settings(critic.optim, total_steps),
        clip=critic.cliprange_value,
        aggregation=critic.loss_agg_mode or "token-mean",
        horizon=critic.loss_scale_factor,
        layout=Layout(
            packed=critic.model.use_remove_padding,
            share_prompt=config.actor_rollout_ref.actor.share_prompt,
            checkpointing=critic.model.enable_gradient_checkpointing,
        ),
        compute_dtype=resolve_precision(device, model.num_parameters(), config.actor_rollout_ref.actor.dtype),
        budget=_budget(config, critic.ppo_max_token_len_per_gpu, critic.ppo_micro_batch_size_per_gpu),
        values_budget=_budget(config, critic.forward_max_token_len_per_gpu, critic.forward_micro_batch_size_per_gpu),
        reduce=reduce,
        tokenizer=tokenizer,
    )


def optim_settings(optim: Optim, total_steps: int) -> OptimSettings:
    """AdamW and its schedule; steps of warm-up win over a ratio."""
    warmup = optim.lr_warmup_steps
    return OptimSettings(
        lr=optim.lr,
        betas=optim.betas,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        clip_grad=optim.clip_grad,
        schedule=optim.lr_scheduler_type,
        warmup_steps=warmup if warmup >= 0 else int(optim.lr_warmup_steps_ratio * total_steps),
        total_steps=total_steps,
        min_ratio=optim.min_lr_ratio,
        cycles=optim.num_cycles,
    )


def _load(config: Config, model_path: str, device: torch.device) -> PreTrainedModel:
    settings = config.critic.model
    path = settings.path
    if path == config.actor_rollout_ref.model.path:
        path = model_path
    elif path == "starter":
        path = _starter()
    return load_value_model(
        path, device=device, trust_remote_code=settings.trust_remote_code, override_config=settings.override_config
    )


def _starter() -> str:
    from cohort.starter.build import starter_model

    return str(starter_model())


def _with_lora(config: Config, model: PreTrainedModel) -> nn.Module:
    settings = config.critic.model
    return add_lora(
        model,
        rank=settings.lora_rank,
        alpha=settings.lora_alpha,
        target_modules=settings.target_modules,
        exclude_modules=settings.exclude_modules,
        head=head_name(model),
    )


def _budget(config: Config, tokens: int, rows: int | None) -> Budget:
    return Budget(max_tokens=tokens, max_rows=None if config.critic.use_dynamic_bsz else rows)
