"""Config -> what happens between scores and advantages: sampler correction, reference blend, alignment."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cohort.algorithms.schedules import shaping_weight
from cohort.assemble.learner import Learner, frozen, load
from cohort.config.schema import Config
from cohort.config.schema.shaping import RefAlignment, RefRewardBlend
from cohort.config.shaping import correction_of
from cohort.data.tokenizer import load_tokenizer, turn_end_id
from cohort.protocols import Reference
from cohort.trainer.correction import SamplerCorrection
from cohort.trainer.encoder import FrozenEncoder, PolicyEncoder, gold_ids
from cohort.trainer.evidence import Stage
from cohort.trainer.shaping import Alignment, Encode, Ramp, ReferenceBlend

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def build_correction(config: Config) -> SamplerCorrection | None:
    """The sampler correction, if one is on."""
    settings = correction_of(config)
    return SamplerCorrection(settings) if settings.active else None


def build_shaping(
    config: Config, learner: Learner, tokenizer: PreTrainedTokenizerBase, *, model_path: str, total_steps: int
) -> list[Stage]:
    """The stages after the KL, in their order: blend, then alignment."""
    blend, align = config.algorithm.ref_reward_blend, config.algorithm.repr_align
    stages: list[Stage] = []
    if blend.enable:
        stages.append(
            ReferenceBlend(
                weight=build_ramp(blend, total_steps),
                norm_scope=blend.norm_scope,
                distribute=blend.distribute,
                degenerate_value=blend.degenerate_value,
                eps=blend.eps,
            )
        )
    if align.enable and align.ref_alignment.enable:
        section = align.ref_alignment
        end = turn_end_id(tokenizer, **config.data.apply_chat_template_kwargs)
        stages.append(
            Alignment(
                weight=build_ramp(section, total_steps),
                threshold=section.entropy_high_threshold,
                golds=partial(gold_ids, tokenizer=tokenizer, key=section.gold_key, end=end),
                encode=build_encoder(config, learner, tokenizer, model_path=model_path),
                own=section.encoder.path is None,
                allocation=section.allocation,
                sim_transform=section.sim_transform,
                center=section.center,
            )
        )
    return stages


def build_ramp(section: RefRewardBlend | RefAlignment, total_steps: int) -> Ramp:
    """The weight by training step."""
    return partial(
        shaping_weight,
        max_weight=section.max_weight,
        kind=section.schedule,
        warmup_ratio=section.warmup_ratio,
        total_steps=total_steps,
        warmup_steps=section.warmup_steps,
        steps=section.steps,
        sigmoid_k=section.sigmoid_k,
        sigmoid_center=section.sigmoid_center,
        exp_k=section.exp_k,
    )


def build_encoder(config: Config, learner: Learner, tokenizer: PreTrainedTokenizerBase, *, model_path: str) -> Encode:
    """Where hidden states come from; a frozen model is loaded when it is first asked."""
    section = config.algorithm.repr_align.ref_alignment.encoder
    if section.path is None:
        return PolicyEncoder(learner.actor)
    path = model_path if section.path == "initial" else section.path

    def load_frozen() -> Reference:
        device = learner.model.get_input_embeddings().weight.device  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        return frozen(config, load(config, path, device), learner.compute_dtype)

    tokenizers = None
    if section.path != "initial":
        own = load_tokenizer(path, trust_remote_code=config.actor_rollout_ref.model.trust_remote_code)
        tokenizers = None if own.get_vocab() == tokenizer.get_vocab() else (tokenizer, own)
    return FrozenEncoder(load_frozen, max_length=section.max_length, tokenizers=tokenizers)
