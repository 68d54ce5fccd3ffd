"""Where functions with verl's signatures are registered, by the names that a configuration uses."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Any

Function = Callable[..., Any]

ADV_ESTIMATOR_REGISTRY: dict[str, Function] = {}
POLICY_LOSS_REGISTRY: dict[str, Function] = {}

OWN = "cohort.verl_api."
"""Where the functions that come with this package are defined."""


class AdvantageEstimator(StrEnum):
    """verl's names of its estimators. A name of your own needs no member: any string can be registered."""

    GAE = "gae"
    GRPO = "grpo"
    GRPO_VECTORIZED = "grpo_vectorized"
    GRPO_PASSK = "grpo_passk"
    GDPO = "gdpo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    RLOO = "rloo"
    RLOO_VECTORIZED = "rloo_vectorized"
    OPO = "opo"
    GPG = "gpg"
    OPTIMAL_TOKEN_BASELINE = "optimal_token_baseline"
    TIR_OPTIMAL_TOKEN_BASELINE = "tir_optimal_token_baseline"


def register_adv_est(name_or_enum: str | Enum) -> Callable[[Function], Function]:
    """Decorator: makes a function the estimator ``algorithm.adv_estimator=name``.

    It is called by keyword with ``token_level_rewards`` and ``response_mask`` (B, T), ``config`` (the section
    ``algorithm``, with attributes and ``.get``), ``index`` (B,), the array of prompt names, and whatever else it has a
    parameter for: ``values``, ``old_log_probs``, ``sum_pi_squared``, ``rollout_is_weights`` (B, T),
    ``reward_baselines`` (B,), ``non_tensor_batch``. It returns ``(advantages, returns)``, (B, T) each. A parameter
    without a default is provided: ``values`` needs a critic, ``reward_baselines`` a greedy answer to each prompt. One
    with a default, and ``**kwargs``, get what the run has anyway.

    Raises:
        ValueError: if the name stands for another function, as in verl. The same function of a file that runs again
            takes its place.
    """
    name = _word(name_or_enum)

    def decorator(function: Function) -> Function:
        present = ADV_ESTIMATOR_REGISTRY.get(name)
        if present is not None and _place(present) != _place(function):
            raise ValueError(f"the advantage estimator {name!r} is {'.'.join(_place(present))}: choose another name")
        ADV_ESTIMATOR_REGISTRY[name] = function
        return function

    return decorator


def get_adv_estimator_fn(name_or_enum: str | Enum) -> Function:
    """The estimator of that name, with verl's signature.

    Raises:
        ValueError: for a name that nobody registered.
    """
    return _find(ADV_ESTIMATOR_REGISTRY, "advantage estimator", _word(name_or_enum))


def register_policy_loss(name: str) -> Callable[[Function], Function]:
    """Decorator: makes a function the loss ``actor_rollout_ref.actor.policy_loss.loss_mode=name``.

    It is called by keyword with ``old_log_prob``, ``log_prob``, ``advantages``, ``response_mask`` (B, T),
    ``loss_agg_mode``, ``config`` (the section ``actor_rollout_ref.actor``, with attributes and ``.get``, and
    ``config.global_batch_info``) and, where it has the parameter, ``rollout_is_weights`` (B, T) or None. It returns
    ``(loss, numbers to log)``, or verl 0.5's ``(loss, clipfrac, ppo_kl, clipfrac_lower)``.

    A loss that divides with ``agg_loss``, or with the counts of ``config.global_batch_info``, is exact whatever the
    micro-batches are. One that takes means of its own gets each minibatch in one piece, with a warning.

    As in verl a name that is taken, a built-in one too, is taken over.
    """

    def decorator(function: Function) -> Function:
        POLICY_LOSS_REGISTRY[name] = function
        return function

    return decorator


def get_policy_loss_fn(name: str) -> Function:
    """The policy loss of that name, with verl's signature.

    Raises:
        ValueError: for a name that nobody registered.
    """
    return _find(POLICY_LOSS_REGISTRY, "policy loss", name)


def own_estimator(name: str) -> Function | None:
    """The estimator that a person registered under ``name``; None for verl's own."""
    return _own(ADV_ESTIMATOR_REGISTRY, name)


def own_policy_loss(name: str) -> Function | None:
    """The policy loss that a person registered under ``name``; None for verl's own."""
    return _own(POLICY_LOSS_REGISTRY, name)


def _word(name_or_enum: str | Enum) -> str:
    return str(name_or_enum.value) if isinstance(name_or_enum, Enum) else name_or_enum


def _own(registry: dict[str, Function], name: str) -> Function | None:
    function = registry.get(name)
    return None if function is None or _place(function)[0].startswith(OWN) else function


def _find(registry: dict[str, Function], what: str, name: str) -> Function:
    if name not in registry:
        raise ValueError(f"{name!r} is no registered {what}; there are: {', '.join(registry)}")
    return registry[name]


def _place(function: Function) -> tuple[str, str]:
    """Module and name. A callable object has those of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return named.__module__, named.__qualname__
