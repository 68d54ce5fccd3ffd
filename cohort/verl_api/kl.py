"""verl's KL estimates, the controllers of their coefficient, and rewards with a KL."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cohort.algorithms import kl, schedules
from cohort.verl_api.section import read


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """The KL estimate of each token; with a ``+`` its gradient is that of k2.

    Raises:
        ValueError: for an unknown kind; ``full``, which verl never built, is one.
    """
    return kl.kl_penalty(logprob, ref_logprob, kl_penalty)


def kl_penalty_forward(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """The estimate with its own gradient: a ``+`` at the end is left out.

    Raises:
        ValueError: for an unknown kind.
    """
    return kl.kl_penalty(logprob, ref_logprob, kl_penalty.removesuffix("+"))


def compute_rewards(token_level_scores: Tensor, old_log_prob: Tensor, ref_log_prob: Tensor, kl_ratio: float) -> Tensor:
    """Scores less ``kl_ratio`` times the k1 estimate, at every token, masked or not."""
    return token_level_scores - kl.k1(old_log_prob, ref_log_prob) * kl_ratio


class AdaptiveKLController:
    """A coefficient that follows a target: ``value`` now, ``update(current_kl, n_steps)`` after each step."""

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        self.value = init_kl_coef
        self.target = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Moves ``value`` by the KL that was measured over ``n_steps`` answers."""
        self.value = schedules.adaptive_kl(self.value, float(current_kl), self.target, self.horizon, n_steps)


class FixedKLController:
    """A coefficient that stays."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Does nothing."""


def get_kl_controller(kl_ctrl: Any) -> AdaptiveKLController | FixedKLController:
    """The controller that ``algorithm.kl_ctrl`` describes.

    Raises:
        ValueError: for an unknown type, or an adaptive one whose target or horizon is not positive.
    """
    kind = read(kl_ctrl, "type", "fixed")
    coef = read(kl_ctrl, "kl_coef", 0.001)
    if kind == "fixed":
        return FixedKLController(coef)
    if kind != "adaptive":
        raise ValueError(f"KL controller {kind!r} is not one of fixed, adaptive")
    target, horizon = read(kl_ctrl, "target_kl", 0.1), read(kl_ctrl, "horizon", 10000)
    if target <= 0 or horizon <= 0:
        raise ValueError(f"an adaptive KL coefficient needs target_kl > 0 and horizon > 0, got {target} and {horizon}")
    return AdaptiveKLController(coef, target, horizon)
