"""The algorithm family as data: which estimators and losses there are and which keys each reads; and their rules.

Config imports no torch, so the names stand here once more; a test keeps them equal to the registries. Names that a file
of ``algorithm.plugins`` registers are judged by ``assemble/plugins.py``, after the file has run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cohort.config.convert import show
from cohort.config.nearest import nearest_words
from cohort.config.schema import Config
from cohort.errors import UserError

ACTOR = "actor_rollout_ref.actor"
ESTIMATOR, LOSS = "algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"


@dataclass(frozen=True)
class Estimator:
    """What config must know of an advantage estimator.

    Attributes:
        keys: those under ``algorithm.`` that it reads.
        group_baseline: it compares the answers of a group, so one answer per prompt teaches nothing.
    """

    keys: tuple[str, ...] = ()
    group_baseline: bool = False


@dataclass(frozen=True)
class Loss:
    """What config must know of a policy loss.

    Attributes:
        keys: those under ``actor_rollout_ref.actor.`` that it reads.
        aggregation: the mode of its paper.
        ranges: the paper's clip range, where it is of another kind than PPO's 0.2.
    """

    keys: tuple[str, ...] = ()
    aggregation: str = "token-mean"
    ranges: str = ""


_STD = ("norm_adv_by_std_in_grpo",)
_CLIP = ("clip_ratio", "clip_ratio_low", "clip_ratio_high")
_COV = ("policy_loss.clip_cov_ratio", "policy_loss.clip_cov_lb", "policy_loss.clip_cov_ub")
_GSPO = "a whole answer's ratio moves little: clip_ratio_low=3e-4 clip_ratio_high=4e-4 in the paper"

ESTIMATORS: Mapping[str, Estimator] = {
    "gae": Estimator(("gamma", "lam")),
    "grpo": Estimator((*_STD, "adv_scale"), group_baseline=True),
    "dr_grpo": Estimator(group_baseline=True),
    "grpo_passk": Estimator((*_STD, "adv_scale"), group_baseline=True),
    "gdpo": Estimator(("gdpo_reward_keys", "gdpo_reward_weights"), group_baseline=True),
    "rloo": Estimator(("adv_scale",), group_baseline=True),
    "reinforce_plus_plus": Estimator(("gamma",)),
    "reinforce_plus_plus_baseline": Estimator(("adv_scale",), group_baseline=True),
    "remax": Estimator(),
    "opo": Estimator(group_baseline=True),
    "gpg": Estimator(group_baseline=True),
    "optimal_token_baseline": Estimator(group_baseline=True),
    "tir_optimal_token_baseline": Estimator(group_baseline=True),
    "max_rl": Estimator(group_baseline=True),
}
"""The built-in values of ``algorithm.adv_estimator``."""

LOSSES: Mapping[str, Loss] = {
    "vanilla": Loss((*_CLIP, "clip_ratio_c", "policy_loss.delta")),
    "gspo": Loss(_CLIP, "seq-mean-token-mean", _GSPO),
    "gspo_token": Loss(_CLIP, "seq-mean-token-mean", _GSPO),
    "geo_mean": Loss(
        _CLIP, "seq-mean-token-mean", "the range is of log-ratios: clip_ratio_low=0.4 clip_ratio_high=0.4 in the paper"
    ),
    "cispo": Loss(
        _CLIP, ranges="the paper has no lower bound and a wide upper one: clip_ratio_low=1 clip_ratio_high=4 is usual"
    ),
    "gpg": Loss(),
    "reinforce": Loss(),
    "dro": Loss(("policy_loss.dro_beta",)),
    "sapo": Loss(("tau_pos", "tau_neg"), "seq-mean-token-mean"),
    "dppo_tv": Loss(
        (*_CLIP, "clip_ratio_c"), ranges="the range is of probabilities: 0.15, with clip_ratio_c=null, in the paper"
    ),
    "dppo_kl": Loss(
        (*_CLIP, "clip_ratio_c"), ranges="the range is of a KL in nats: 0.05, with clip_ratio_c=null, in the paper"
    ),
    "clip_cov": Loss((*_CLIP, *_COV)),
    "kl_cov": Loss(("policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef")),
}
"""The built-in values of ``actor_rollout_ref.actor.policy_loss.loss_mode``."""


def aggregation_of(config: Config) -> str | None:
    """How the policy loss is averaged; None where only a plug-in knows."""
    actor = config.actor_rollout_ref.actor
    if actor.loss_agg_mode is not None:
        return actor.loss_agg_mode
    loss = LOSSES.get(actor.policy_loss.loss_mode)
    return loss.aggregation if loss else None


def check(config: Config) -> None:
    """Cross-checks of estimator and loss.

    Raises:
        UserError: naming the keys, their values and what would be legal.
    """
    actor = config.actor_rollout_ref.actor
    if not config.algorithm.plugins:
        check_names(config)
    estimator = ESTIMATORS.get(config.algorithm.adv_estimator)
    if estimator and estimator.group_baseline:
        check_siblings(config)
    _check_gdpo(config)
    cov = actor.policy_loss
    if cov.clip_cov_lb >= cov.clip_cov_ub:
        raise UserError(
            f"{ACTOR}.policy_loss.clip_cov_lb={show(cov.clip_cov_lb)}: no covariance is above it and below "
            f"policy_loss.clip_cov_ub={cov.clip_cov_ub:g}; 1 and 5 are usual"
        )
    if cov.loss_mode == "vanilla":
        _check_delta(config)


def check_names(config: Config) -> None:
    """Whether estimator and loss exist; with plug-ins that is known when their files have run.

    Raises:
        UserError: with the nearest name.
    """
    for key, name, legal in _named(config):
        if name not in legal:
            raise _unknown(key, name, legal)


def check_siblings(config: Config) -> None:
    """For an estimator that compares the answers of a group.

    Raises:
        UserError: if there is only one.
    """
    alone = config.actor_rollout_ref.rollout.n == 1 and config.algorithm.group_by is None
    if alone and not config.trainer.val_only:
        raise UserError(
            f"actor_rollout_ref.rollout.n=1: {config.algorithm.adv_estimator} compares the answers to one prompt, and "
            "one answer teaches nothing; set actor_rollout_ref.rollout.n to 2 or more (8 is usual)"
        )


def _check_gdpo(config: Config) -> None:
    algorithm = config.algorithm
    keys, weights = algorithm.gdpo_reward_keys, algorithm.gdpo_reward_weights
    if algorithm.adv_estimator == "gdpo" and not keys:
        raise UserError(
            f"{ESTIMATOR}=gdpo: it normalises the parts of the reward one by one; name those that your reward function "
            "returns, for example algorithm.gdpo_reward_keys=[accuracy,format]"
        )
    shaped = {
        "algorithm.use_kl_in_reward": algorithm.use_kl_in_reward,
        "algorithm.ref_reward_blend.enable": algorithm.ref_reward_blend.enable,
        "algorithm.repr_align.enable": algorithm.repr_align.enable,
    }
    for key, on in shaped.items():
        if on and algorithm.adv_estimator == "gdpo":
            raise UserError(
                f"{key}=True: {ESTIMATOR}=gdpo reads the parts of the reward alone, so what is added to the reward is "
                f"lost; set it to False (a KL can go into the loss, {ACTOR}.use_kl_loss=True)"
            )
    if weights and len(weights) != len(keys):
        raise UserError(
            f"algorithm.gdpo_reward_weights={show(list(weights))}: {len(weights)} weights for {len(keys)} "
            "algorithm.gdpo_reward_keys; give one for each, or none"
        )


def _check_delta(config: Config) -> None:
    actor = config.actor_rollout_ref.actor
    delta, cap = actor.policy_loss.delta, actor.clip_ratio_c
    if delta is None:
        return
    if delta <= 1 + actor.clip_ratio_high:
        raise UserError(
            f"{ACTOR}.policy_loss.delta={show(delta)}: it must be above 1 + {ACTOR}.clip_ratio_high="
            f"{1 + actor.clip_ratio_high:g}; 4 is usual"
        )
    if cap is not None and delta >= cap:
        raise UserError(
            f"{ACTOR}.policy_loss.delta={show(delta)}: {ACTOR}.clip_ratio_c={cap:g} limits the same tokens to less, so "
            f"it would do nothing; set {ACTOR}.clip_ratio_c=null"
        )


def _named(config: Config) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Key, name, and every legal name that is known in this process."""
    algorithm, loss = config.algorithm, config.actor_rollout_ref.actor.policy_loss
    yield ESTIMATOR, algorithm.adv_estimator, (*ESTIMATORS, *_registered("ADVANTAGES", "ADV_ESTIMATOR_REGISTRY"))
    yield LOSS, loss.loss_mode, (*LOSSES, *_registered("POLICY_LOSSES", "POLICY_LOSS_REGISTRY"))


def _registered(*tables: str) -> tuple[str, ...]:
    """What a script or notebook has registered. Looks only into what it has imported already: torch is heavy."""
    modules = [sys.modules.get("cohort.algorithms.registry"), sys.modules.get("cohort.verl_api.registry")]
    return tuple(name for module, table in zip(modules, tables, strict=True) if module for name in vars(module)[table])


def _unknown(key: str, name: str, legal: Iterable[str]) -> UserError:
    """The error for a name that nobody registered."""
    legal = tuple(dict.fromkeys(legal))
    close = nearest_words(name, legal, most=1)
    guess = f" (did you mean {close[0]}?)" if close else "; a function of yours: name its file in algorithm.plugins"
    return UserError(f"{key}={show(name)}: expects one of {', '.join(legal)}{guess}")


def idle(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that belong to another estimator or loss, and why they do nothing."""
    algorithm, mode = config.algorithm, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if estimator := ESTIMATORS.get(algorithm.adv_estimator):
        known = dict.fromkeys(key for entry in ESTIMATORS.values() for key in entry.keys)
        for key in known:
            if key not in estimator.keys:
                yield f"algorithm.{key}", f"{algorithm.adv_estimator} does not read it"
    if algorithm.adv_scale is not None:
        yield "algorithm.norm_adv_by_std_in_grpo", f"adv_scale={algorithm.adv_scale} decides"
    if loss := LOSSES.get(mode):
        known = dict.fromkeys(key for entry in LOSSES.values() for key in entry.keys)
        for key in known:
            if key not in loss.keys:
                yield f"{ACTOR}.{key}", f"the loss {mode} does not read it"


def remarks(config: Config) -> Iterator[str]:
    """What a person should know about a choice that is legal."""
    actor = config.actor_rollout_ref.actor
    mode, chosen = actor.policy_loss.loss_mode, actor.loss_agg_mode
    loss = LOSSES.get(mode)
    if loss is None:
        return
    if chosen is not None and chosen != loss.aggregation and loss.aggregation != "token-mean":
        yield f"{ACTOR}.loss_agg_mode={chosen}: the paper of {mode} has {loss.aggregation}, which null would take"
    if loss.ranges and (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.2):
        yield f"{ACTOR}.clip_ratio=0.2 is PPO's; for {mode}, {loss.ranges}"
