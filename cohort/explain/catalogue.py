"""Every name that can be explained, by kind. Imports no torch, so that a list or a misspelt name costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from cohort.algorithms.correction_settings import PRESETS as CORRECTIONS
from cohort.config.family import ACTOR, ESTIMATORS, LOSSES
from cohort.config.load import presets
from cohort.config.nearest import nearest_words
from cohort.config.schema.actor import Aggregation, KLKind
from cohort.errors import UserError
from cohort.rewards.registry import REWARDS
from cohort.tracking.metrics_page import MEANINGS, meanings_of

WORKED = "advantage"
"""The word that asks for a worked example."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """A part of the step that is neither estimator nor loss.

    Attributes:
        target: ``module:function`` whose docstring has the formula.
        keys: keys, or beginnings of keys, that select and tune it.
        metrics: beginnings of the names it logs.
    """

    target: str
    keys: tuple[str, ...]
    metrics: tuple[str, ...] = ()


_CORRECTION = "algorithm.rollout_correction."
_KL_REWARD = ("algorithm.use_kl_in_reward", "algorithm.kl_penalty", "algorithm.kl_ctrl.")

TERMS: Mapping[str, Term] = {
    "chord": Term(
        target="cohort.algorithms.supervised:demonstration_loss",
        keys=("algorithm.chord.",),
        metrics=("actor/chord_", "actor/sft_"),
    ),
    "chord_mu": Term(
        target="cohort.algorithms.schedules:chord_mu",
        keys=("algorithm.chord.mu_",),
        metrics=("actor/chord_mu",),
    ),
    "critic": Term(
        target="cohort.algorithms.value_loss:clipped_value_loss",
        keys=("critic.cliprange_value", "critic.loss_agg_mode", "critic.optim.lr", "trainer.critic_warmup"),
        metrics=("critic/vf_", "critic/vpred_mean", "critic/grad_norm"),
    ),
    "importance_weights": Term(
        target="cohort.algorithms.importance:importance_weights",
        keys=(f"{_CORRECTION}preset", f"{_CORRECTION}rollout_is"),
        metrics=("rollout_corr/",),
    ),
    "rejection": Term(
        target="cohort.algorithms.rejection:rejection",
        keys=(f"{_CORRECTION}preset", f"{_CORRECTION}rollout_rs", f"{_CORRECTION}rollout_token_veto"),
        metrics=("rollout_corr/",),
    ),
    "bypass": Term(
        target="cohort.algorithms.correction:Bypass",
        keys=(f"{_CORRECTION}bypass_mode", f"{_CORRECTION}loss_type"),
        metrics=("rollout_corr/",),
    ),
    "kl_in_reward": Term(
        target="cohort.algorithms.shaping:kl_in_reward", keys=_KL_REWARD, metrics=("actor/reward_kl_penalty",)
    ),
    "adaptive_kl": Term(
        target="cohort.algorithms.schedules:adaptive_kl", keys=_KL_REWARD, metrics=("actor/reward_kl_penalty",)
    ),
    "ref_reward_blend": Term(
        target="cohort.algorithms.shaping:reference_blend",
        keys=("algorithm.ref_reward_blend.",),
        metrics=("actor/ref_blend/",),
    ),
    "repr_align": Term(
        target="cohort.algorithms.shaping:alignment_bonus",
        keys=("algorithm.repr_align.",),
        metrics=("actor/repr/",),
    ),
    "gold_similarity": Term(
        target="cohort.algorithms.shaping:gold_similarity",
        keys=("algorithm.repr_align.ref_alignment.gold_key", "algorithm.repr_align.ref_alignment.encoder."),
        metrics=("actor/repr/",),
    ),
    "entropy_gate": Term(
        target="cohort.algorithms.shaping:entropy_gate",
        keys=("algorithm.repr_align.ref_alignment.entropy_high_threshold",),
        metrics=("actor/repr/",),
    ),
    "shaping_weight": Term(
        target="cohort.algorithms.schedules:shaping_weight",
        keys=tuple(
            f"algorithm.ref_reward_blend.{key}"
            for key in ("max_weight", "warmup_", "schedule", "steps", "sigmoid_", "exp_k")
        ),
        metrics=("actor/ref_blend/", "actor/repr/"),
    ),
    "top_entropy": Term(
        target="cohort.algorithms.token_choice:top_entropy_mask",
        keys=(f"{ACTOR}.top_entropy_quantile",),
        metrics=("entropy/",),
    ),
    "learning_rate": Term(
        target="cohort.algorithms.schedules:lr_factor",
        keys=(f"{ACTOR}.optim.lr", f"{ACTOR}.optim.min_lr_ratio", f"{ACTOR}.optim.num_cycles"),
        metrics=("actor/lr",),
    ),
}
"""What else the step computes, by the name it is explained under."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "preset": presets(),
    "advantage estimator": tuple(ESTIMATORS),
    "policy loss": tuple(LOSSES),
    "KL kind": get_args(KLKind),
    "aggregation": get_args(Aggregation),
    "term of the step": tuple(TERMS),
    "sampler correction": tuple(CORRECTIONS),
    "reward": tuple(REWARDS),
    "metric": tuple(meaning.pattern for meaning in MEANINGS),
}
"""Kind -> names. A name may stand in several, as grpo does."""


def find(name: str) -> list[tuple[str, str]]:
    """The kinds that have ``name``, with the name as that kind writes it (a metric's with its placeholders).

    Raises:
        UserError: with the nearest names.
    """
    found = [(kind, name) for kind, names in KINDS.items() if kind != "metric" and name in names]
    if meanings := meanings_of(name):
        found.append(("metric", meanings[0].pattern))
    if found:
        return found
    every = list(dict.fromkeys(word for names in KINDS.values() for word in names))
    last = {word.rpartition("/")[2]: word for word in reversed(every) if "/" in word}
    close = nearest_words(name, every) or [last[word] for word in nearest_words(name, last, most=1)]
    close = close or [word for word in every if len(name) > 2 and _squeezed(name) in _squeezed(word)][:3]
    guess = f"did you mean {' or '.join(close)}?" if close else "cohort explain without a name lists them all"
    raise UserError(f"cohort explain {name}: no such preset, algorithm, reward or metric; {guess}")


def _squeezed(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
