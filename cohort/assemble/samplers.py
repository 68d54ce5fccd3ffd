"""The sampler of a run: the embedded engine, or the slow reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from cohort.assemble.learner import Learner
from cohort.config.schema import Config, RewardModel
from cohort.models.forward import causal_lm
from cohort.models.precision import resolve_precision
from cohort.protocols import Sampler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def build_sampler(
    config: Config,
    learner: Learner,
    *,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: tuple[int, ...],
    longest_prompt: int,
) -> Sampler:
    """A sampler of the actor's model; in the actor's own type unless ``rollout.dtype`` says otherwise.

    Raises:
        UserError: if the model is of a kind that the engine cannot run, or is too short for the data.
    """
    rollout = config.actor_rollout_ref.rollout
    dtype = learner.compute_dtype
    if rollout.dtype != "auto":
        dtype = resolve_precision(causal_lm(learner.model).device, learner.parameters, rollout.dtype)
    return make_sampler(
        rollout.name,
        learner.model,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        dtype=dtype,
        slots=rollout.max_num_seqs,
        max_model_len=_longest_input(config.reward_model, longest_prompt + config.data.max_response_length),
        own_copy=learner.remote,
    )


def _longest_input(section: RewardModel, longest: int) -> int | None:
    """The longest input of the policy's sampler: ``longest`` unless the policy judges, then with room for that.

    None where nobody said how long a judge's prompt may be: the model's own limit.
    """
    if not (section.enable and section.kind == "judge" and section.model.path is None):
        return longest
    return max(longest, section.max_length + section.judge.max_tokens) if section.max_length else None


def make_sampler(
    name: str,
    model: nn.Module,
    *,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: tuple[int, ...],
    dtype: torch.dtype,
    slots: int,
    max_model_len: int | None = None,
    own_copy: bool = False,
) -> Sampler:
    """The engine called ``name`` over ``model``; with ``own_copy`` over a copy of it."""
    if name == "hf":
        from cohort.rollout.hf import HFSampler as Engine
    else:
        from cohort.rollout.native import NativeSampler as Engine
    return Engine(
        model,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        slots=slots,
        dtype=dtype,
        max_model_len=max_model_len,
        own_copy=own_copy,
    )
