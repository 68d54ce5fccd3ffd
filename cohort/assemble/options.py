"""Which keys of a configuration an estimator or a loss reads, under the paper's names.

One line per entry of the registries that has options. Null leaves an option at the function's own default. What is
not worth a key of its own (``epsilon``, ``handle_zero_tail``, ``ratio_cap``) comes through ``algorithm.adv_kwargs`` and
``policy_loss.kwargs``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import Tensor

from cohort.algorithms.registry import Advantages, TokenLoss
from cohort.config.convert import show
from cohort.config.family import ESTIMATORS, LOSSES
from cohort.config.nearest import nearest_words
from cohort.config.schema import Actor, Algorithm
from cohort.errors import UserError
from cohort.verl_api.calls import judged_advantages


def _scale(algorithm: Algorithm) -> dict[str, Any]:
    own = "group" if algorithm.norm_adv_by_std_in_grpo else "none"
    return {"scale": algorithm.adv_scale or own}


def _clip(actor: Actor) -> dict[str, Any]:
    return {"clip_low": actor.clip_ratio_low, "clip_high": actor.clip_ratio_high}


def _capped(actor: Actor) -> dict[str, Any]:
    return {**_clip(actor), "ratio_cap": actor.clip_ratio_c}


ADVANTAGE_OPTIONS: Mapping[str, Callable[[Algorithm], dict[str, Any]]] = {
    "gae": lambda algorithm: {"gamma": algorithm.gamma, "lam": algorithm.lam},
    "grpo": _scale,
    "grpo_passk": _scale,
    "gdpo": lambda algorithm: {"weights": algorithm.gdpo_reward_weights or None},
    "rloo": lambda algorithm: {"scale": algorithm.adv_scale},
    "reinforce_plus_plus": lambda algorithm: {"gamma": algorithm.gamma},
    "reinforce_plus_plus_baseline": lambda algorithm: {"scale": algorithm.adv_scale},
}
"""Estimators with keys of their own."""

LOSS_OPTIONS: Mapping[str, Callable[[Actor], dict[str, Any]]] = {
    "vanilla": lambda actor: {**_clip(actor), "delta": actor.policy_loss.delta},
    "gspo": _clip,
    "gspo_token": _clip,
    "geo_mean": _clip,
    "cispo": _clip,
    "dro": lambda actor: {"beta": actor.policy_loss.dro_beta},
    "sapo": lambda actor: {"tau_pos": actor.tau_pos, "tau_neg": actor.tau_neg},
    "dppo_tv": _capped,
    "dppo_kl": _capped,
    "clip_cov": lambda actor: {
        **_clip(actor),
        "clip_cov_ratio": actor.policy_loss.clip_cov_ratio,
        "clip_cov_lb": actor.policy_loss.clip_cov_lb,
        "clip_cov_ub": actor.policy_loss.clip_cov_ub,
    },
    "kl_cov": lambda actor: {
        "kl_cov_ratio": actor.policy_loss.kl_cov_ratio,
        "ppo_kl_coef": actor.policy_loss.ppo_kl_coef,
    },
}
"""Losses with keys of their own."""


def advantage_options(algorithm: Algorithm, function: Callable[..., Any]) -> dict[str, Any]:
    """What the estimator is called with beside tensors.

    Raises:
        UserError: for an argument in ``adv_kwargs`` that it does not have.
    """
    table = ADVANTAGE_OPTIONS.get(algorithm.adv_estimator)
    options = _given(table(algorithm)) if table else {}
    return options | _further("algorithm.adv_kwargs", algorithm.adv_kwargs, algorithm.adv_estimator, function)


def loss_options(actor: Actor, function: Callable[..., Any]) -> dict[str, Any]:
    """What the policy loss is called with beside tensors.

    Raises:
        UserError: for an argument in ``policy_loss.kwargs`` that it does not have.
    """
    mode = actor.policy_loss.loss_mode
    table = LOSS_OPTIONS.get(mode)
    options = _given(table(actor)) if table else {}
    if mode == "vanilla":
        options["dual_clip"] = actor.clip_ratio_c  # null is a value here: no dual clip
    key = "actor_rollout_ref.actor.policy_loss.kwargs"
    return options | _further(key, actor.policy_loss.kwargs, mode, function)


def judged_advantage(name: str, function: Callable[..., Advantages]) -> Callable[..., Advantages]:
    """The estimator; what one of a plug-in returns is judged, those that come with Cohort have their tests."""
    if name in ESTIMATORS:
        return function

    @wraps(function)
    def judged(rewards: Tensor, mask: Tensor, group: Tensor, **extra: Any) -> Advantages:
        found: Any = function(rewards=rewards, mask=mask, group=group, **extra)
        where = f"algorithm.adv_estimator={name}"
        if not isinstance(found, tuple) or len(found) != 2:
            raise UserError(f"{where}: it returned a {type(found).__name__}; expects Advantages(advantages, returns)")
        return judged_advantages(where, found[0], found[1], mask)

    return judged


def judged_loss(name: str, function: Callable[..., TokenLoss]) -> Callable[..., TokenLoss]:
    """The policy loss; what one of a plug-in returns is judged."""
    if name in LOSSES:
        return function

    @wraps(function)
    def judged(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, **extra: Any) -> TokenLoss:
        found: Any = function(log_probs, old_log_probs, advantages, mask, **extra)
        where = f"actor_rollout_ref.actor.policy_loss.loss_mode={name}"
        if not isinstance(found, TokenLoss) or not isinstance(found.loss, Tensor) or found.loss.shape != mask.shape:
            shape = tuple(found.loss.shape) if isinstance(found, TokenLoss) and isinstance(found.loss, Tensor) else None
            what = f"a loss {shape}" if shape is not None else f"a {type(found).__name__}"
            raise UserError(
                f"{where}: it returned {what}; expects TokenLoss(loss, diagnostics) with one loss per token, "
                f"{tuple(mask.shape)}; averaging is done by actor.loss_agg_mode"
            )
        if log_probs.requires_grad and not found.loss.requires_grad:
            raise UserError(f"{where}: its loss has no gradient; is log_probs detached on the way?")
        return found

    return judged


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _further(key: str, kwargs: Mapping[str, object], name: str, function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(kwargs)
    legal = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
    for word in kwargs:
        if word not in legal:
            close = nearest_words(word, legal, most=1)
            guess = f"did you mean {close[0]}?" if close else f"it has: {', '.join(legal) or 'none'}"
            raise UserError(f"{key}={show(dict(kwargs))}: {name} has no argument {word}; {guess}")
    return dict(kwargs)
