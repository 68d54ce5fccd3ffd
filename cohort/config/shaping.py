"""Rules of ``algorithm.rollout_correction``, ``ref_reward_blend`` and ``repr_align``: what must hold, what is idle."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.algorithms.correction_settings import PRESETS, Correction, parse_correction
from cohort.config.convert import show
from cohort.config.nearest import nearest_words
from cohort.config.schema import Config
from cohort.config.schema.correction import RolloutCorrection
from cohort.errors import UserError

CORRECTION = "algorithm.rollout_correction"
BLEND = "algorithm.ref_reward_blend"
ALIGN = "algorithm.repr_align"

SUMMED = ("grpo", "dr_grpo", "grpo_passk", "gdpo", "rloo", "opo", "gpg", "max_rl", "reinforce_plus_plus_baseline")
"""Estimators that add up an answer's rewards: what is paid per token is paid for length."""


def correction_of(config: Config) -> Correction:
    """The settings of the sampler correction.

    Raises:
        UserError: naming the key, its value and what would be legal.
    """
    section = config.algorithm.rollout_correction
    if section.preset is None:
        try:
            return parse_correction(
                rollout_is=section.rollout_is,
                rollout_is_threshold=section.rollout_is_threshold,
                rollout_is_batch_normalize=section.rollout_is_batch_normalize,
                rollout_rs=section.rollout_rs,
                rollout_rs_threshold=section.rollout_rs_threshold,
                rollout_rs_threshold_lower=section.rollout_rs_threshold_lower,
                rollout_token_veto_threshold=section.rollout_token_veto_threshold,
                bypass_mode=section.bypass_mode,
                loss_type=section.loss_type,
                inverted=section.rollout_rs_inverted,
            )
        except ValueError as problem:
            raise UserError(f"{CORRECTION}: {problem}") from None
    if section.preset not in PRESETS:
        close = nearest_words(section.preset, PRESETS, most=1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(f"{CORRECTION}.preset={show(section.preset)}: expects one of {', '.join(PRESETS)}{guess}")
    if section != RolloutCorrection(preset=section.preset):
        changed = next(n for n, v in vars(section).items() if n != "preset" and v != vars(RolloutCorrection())[n])
        raise UserError(
            f"{CORRECTION}.preset={section.preset}: {changed}={show(vars(section)[changed])} is set too; "
            "leave one of them out"
        )
    return PRESETS[section.preset]


def check(config: Config) -> None:
    """Cross-checks.

    Raises:
        UserError: for settings that contradict each other.
    """
    correction_of(config)
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    correction = correction_of(config)
    if (
        correction.bypass
        and correction.loss == "reinforce"
        and actor.policy_loss.loss_mode
        not in (
            "vanilla",
            "reinforce",
        )
    ):
        raise UserError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode={actor.policy_loss.loss_mode}: {CORRECTION}.loss_type="
            "reinforce brings its own loss; leave one of them out"
        )
    if correction.bypass and algorithm.use_kl_in_reward:
        raise UserError(
            "algorithm.use_kl_in_reward=True: it needs the pass over old log-probs that "
            f"{CORRECTION}.bypass_mode=True is there to save; use actor_rollout_ref.actor.use_kl_loss=True"
        )
    if algorithm.repr_align.enable and not algorithm.repr_align.ref_alignment.enable:
        raise UserError(
            f"{ALIGN}.enable=True: {ALIGN}.ref_alignment.enable=False leaves nothing to do; set both or neither"
        )


def idle(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that do nothing beside the others, and why."""
    section = config.algorithm.rollout_correction
    if section.rollout_is is None and section.preset is None:
        yield f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.rollout_is=null"
    if not section.bypass_mode and section.preset is None:
        yield f"{CORRECTION}.loss_type", f"{CORRECTION}.bypass_mode=False"
    blend, align = config.algorithm.ref_reward_blend, config.algorithm.repr_align
    for name, part, on, off in (
        (BLEND, blend, blend.enable, f"{BLEND}.enable=False"),
        (f"{ALIGN}.ref_alignment", align.ref_alignment, align.enable, f"{ALIGN}.enable=False"),
    ):
        if not on:
            yield from ((f"{name}.{key}", off) for key in vars(part) if key not in ("enable", "encoder"))
            continue
        for key, schedule in (("steps", "step"), ("sigmoid_k", "sigmoid"), ("sigmoid_center", "sigmoid")):
            if part.schedule != schedule:
                yield f"{name}.{key}", f"schedule={part.schedule}"
        if part.schedule != "exp":
            yield f"{name}.exp_k", f"schedule={part.schedule}"
        if part.warmup_steps is not None:
            yield f"{name}.warmup_ratio", f"warmup_steps={part.warmup_steps}"
    if align.ref_alignment.encoder.path is None:
        yield f"{ALIGN}.ref_alignment.encoder.max_length", "the policy's own forward pass gives the states"


def remarks(config: Config) -> Iterator[str]:
    """What a person should know about a legal choice."""
    algorithm = config.algorithm
    blend = algorithm.ref_reward_blend
    if blend.enable and blend.distribute == "token" and algorithm.adv_estimator in SUMMED:
        yield (
            f"{BLEND}.distribute=token pays for length: {algorithm.adv_estimator} adds up an answer's rewards, so 300 "
            f"tokens may gain {150 * blend.max_weight:.0f} where a right answer gains 1; distribute=mean does not"
        )
