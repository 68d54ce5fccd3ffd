"""The learning side of a run: actor, reference, advantage, KL in the reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES
from cohort.algorithms.schedules import chord_mu
from cohort.assemble.critic import build_critic, optim_settings
from cohort.config.schema import Config
from cohort.data.demonstrations import DemonstrationLoader
from cohort.models.build import add_lora, load_model
from cohort.models.layout import Layout
from cohort.models.micro import Budget
from cohort.models.objective import Objective
from cohort.models.policy import LocalPolicy
from cohort.models.precision import resolve_precision
from cohort.models.reference import AdapterOff, LocalReference
from cohort.protocols import Critic, Policy, Reduce, Reference
from cohort.trainer.advantage import Advantage
from cohort.trainer.chord import Chord
from cohort.trainer.kl import KLController
from cohort.trainer.trainer import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def nothing_to_close() -> None:
    """What ends with a learner in this process."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """The models of a run.

    Attributes:
        actor: the trainable policy.
        reference: the frozen model, where a KL term needs one.
        critic: the value model, where the advantage reads values.
        model: the model in this process that the sampler holds, or copies where the actor is remote.
        compute_dtype: what forward and backward passes compute in.
        parameters: size of the model.
        notes: what a person should know about how it runs.
        remote: the trained weights are in other processes.
        close: ends those processes; may be called twice.
    """

    actor: Policy
    reference: Reference | None
    critic: Critic | None
    model: nn.Module
    compute_dtype: torch.dtype
    parameters: int
    notes: tuple[str, ...] = ()
    remote: bool = False
    close: Callable[[], None] = nothing_to_close


def build_learner(
    config: Config,
    *,
    model_path: str,
    device: torch.device,
    total_steps: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reduce: Reduce | None = None,
) -> Learner:
    """Actor, reference and critic on ``device``; also what each replica of a larger run builds for itself."""
    rollout, lora_rank = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.lora_rank
    model = load(config, model_path, device)
    parameters = model.num_parameters()
    dtype = resolve_precision(device, parameters, config.actor_rollout_ref.actor.dtype)
    trained = with_lora(config, model) if lora_rank else model
    actor = LocalPolicy(
        trained,
        objective=build_objective(config),
        optim=optim_settings(config.actor_rollout_ref.actor.optim, total_steps),
        temperature=rollout.temperature,
        layout=build_layout(config),
        compute_dtype=dtype,
        budget=train_budget(config),
        log_prob_budget=log_prob_budget(rollout),
        entropy=config.actor_rollout_ref.actor.calculate_entropy,
        reduce=reduce,
        tokenizer=tokenizer,
    )
    reference: Reference | None = None
    if needs_reference(config):
        reference = AdapterOff(actor) if lora_rank else frozen(config, load(config, model_path, device), dtype)
    critic = build_critic(
        config, model_path=model_path, device=device, total_steps=total_steps, tokenizer=tokenizer, reduce=reduce
    )
    notes = (actor.layout_note, critic.layout_note if critic else "")
    return Learner(
        actor=actor,
        reference=reference,
        critic=critic,
        model=trained,
        compute_dtype=dtype,
        parameters=parameters,
        notes=tuple(note for note in notes if note),
    )


def load(config: Config, path: str, device: torch.device) -> PreTrainedModel:
    """The model as its folder has it, in float32."""
    settings = config.actor_rollout_ref.model
    return load_model(
        path, device=device, trust_remote_code=settings.trust_remote_code, override_config=settings.override_config
    )


def with_lora(config: Config, model: PreTrainedModel) -> nn.Module:
    """``model`` frozen, with trainable adapters."""
    settings = config.actor_rollout_ref.model
    return add_lora(
        model,
        rank=settings.lora_rank,
        alpha=settings.lora_alpha,
        target_modules=settings.target_modules,
        exclude_modules=settings.exclude_modules,
    )


def frozen(config: Config, model: PreTrainedModel, dtype: torch.dtype) -> LocalReference:
    """The reference, a model of its own."""
    return LocalReference(
        model,
        temperature=config.actor_rollout_ref.rollout.temperature,
        layout=build_layout(config),
        compute_dtype=dtype,
        budget=log_prob_budget(config.actor_rollout_ref.ref),
    )


def needs_reference(config: Config) -> bool:
    """Whether a KL term or the reference blend reads the frozen model."""
    algorithm = config.algorithm
    in_reward = algorithm.use_kl_in_reward or algorithm.ref_reward_blend.enable
    return config.actor_rollout_ref.actor.use_kl_loss or in_reward


def build_layout(config: Config) -> Layout:
    """How micro-batches are laid out; memory and speed, never a number."""
    model = config.actor_rollout_ref.model
    return Layout(
        packed=model.use_remove_padding,
        share_prompt=config.actor_rollout_ref.actor.share_prompt,
        checkpointing=model.enable_gradient_checkpointing,
    )


def build_objective(config: Config) -> Objective:
    """The loss, with its options bound to the paper's names."""
    actor = config.actor_rollout_ref.actor
    entry = POLICY_LOSSES[actor.policy_loss.loss_mode]
    options = {"clip_low": actor.clip_ratio_low, "clip_high": actor.clip_ratio_high, "dual_clip": actor.clip_ratio_c}
    return Objective(
        policy_loss=partial(entry.function, **options),
        aggregation=actor.loss_agg_mode,
        entropy_coeff=actor.entropy_coeff,
        kl_coef=actor.kl_loss_coef if actor.use_kl_loss else 0.0,
        kl_kind=actor.kl_loss_type,
        horizon=actor.loss_scale_factor,
        needs=entry.needs,
        row_weights=entry.row_weights,
    )


def train_budget(config: Config) -> Budget:
    """What a training pass may hold."""
    actor = config.actor_rollout_ref.actor
    rows = None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
    return Budget(max_tokens=actor.ppo_max_token_len_per_gpu, max_rows=rows)


def log_prob_budget(section) -> Budget:
    """What a pass without gradient may hold."""
    rows = None if section.log_prob_use_dynamic_bsz else section.log_prob_micro_batch_size_per_gpu
    return Budget(max_tokens=section.log_prob_max_token_len_per_gpu, max_rows=rows)


def build_advantage(config: Config) -> Advantage:
    """The advantage estimator, with its options bound."""
    algorithm = config.algorithm
    options: dict[str, object] = {"scale": "group" if algorithm.norm_adv_by_std_in_grpo else "none"}
    if algorithm.adv_estimator == "gae":
        options = {"gamma": algorithm.gamma, "lam": algorithm.lam}
    entry = ADVANTAGES[algorithm.adv_estimator]
    return Advantage(
        function=partial(entry.function, **options),
        reads=entry.needs,
        group_baseline=entry.group_baseline,
        group_by=algorithm.group_by,
    )


def build_kl_reward(config: Config) -> KLController | None:
    """The KL in the reward, if it is on."""
    algorithm = config.algorithm
    if not algorithm.use_kl_in_reward:
        return None
    control = algorithm.kl_ctrl
    return KLController(
        coef=control.kl_coef,
        kind=algorithm.kl_penalty,
        target=control.target_kl if control.type == "adaptive" else None,
        horizon=control.horizon,
    )


def build_chord(config: Config, source: DemonstrationLoader | None, plan: Plan) -> Chord | None:
    """CHORD over these demonstrations; None without any."""
    chord = config.algorithm.chord
    if source is None:
        return None
    return Chord(
        source=source,
        mu=partial(
            chord_mu,
            warmup=chord.mu_warmup_steps,
            decay=chord.mu_decay_steps,
            peak=chord.mu_peak,
            valley=chord.mu_valley,
        ),
        rows=chord.batch_size,
        updates=plan.updates(plan.prompts),
        phi=chord.phi,
        start=plan.critic_warmup,
    )
