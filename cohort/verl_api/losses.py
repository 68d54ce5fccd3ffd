"""verl's policy losses, value loss and entropy, over ``cohort.algorithms``: its names, argument order and numbers.

A policy loss takes ``(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)``,
the tensors (B, T), and returns ``(loss, numbers to log)``. ``config`` is anything with verl's keys of
``actor_rollout_ref.actor`` as attributes or items; what it lacks has verl's default.

Different from the losses that ``policy_loss.loss_mode`` names: the choices of ``clip_cov`` and ``kl_cov`` are made over
the rows that are passed in, by chance that nobody can name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms import (
    covariance_loss,
    divergence_loss,
    gradient_loss,
    masking,
    ppo_loss,
    sequence_loss,
    soft_loss,
    value_loss,
)
from cohort.algorithms.signatures import TokenLoss
from cohort.verl_api.aggregation import agg_loss
from cohort.verl_api.registry import register_policy_loss
from cohort.verl_api.section import read

Loss = tuple[Tensor, dict[str, float]]


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Verl's older form of the clipped loss: ``(loss, clipfrac, ppo_kl, clipfrac_lower)``."""
    base = 0.2 if cliprange is None else cliprange
    low = base if cliprange_low is None else cliprange_low
    high = base if cliprange_high is None else cliprange_high
    mask = response_mask.to(log_prob.dtype)
    found = ppo_loss.clipped(
        log_prob, old_log_prob, advantages, mask, clip_low=low, clip_high=high, dual_clip=clip_ratio_c
    )
    loss = agg_loss(found.loss, mask, loss_agg_mode)
    seen = {name: masking.masked_mean(value, mask) for name, value in found.diagnostics.items()}
    return loss, seen["pg_clipfrac"], seen["ppo_kl"], seen["pg_clipfrac_lower"]


@register_policy_loss("vanilla")
def compute_policy_loss_vanilla(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """PPO's clipped loss with dual clip."""
    options = {**_clip(config), "dual_clip": read(config, "clip_ratio_c", 3.0)}
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(ppo_loss.clipped, options, arguments, loss_agg_mode, config, rollout_is_weights)


@register_policy_loss("dppo_tv")
def compute_policy_loss_dppo_tv(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """DPPO by total variation; ``clip_ratio_c`` caps the weight, 20 where the config has none."""
    options = {**_clip(config), "ratio_cap": read(config, "clip_ratio_c", 20.0)}
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(divergence_loss.dppo_tv, options, arguments, loss_agg_mode, config, rollout_is_weights)


@register_policy_loss("dppo_kl")
def compute_policy_loss_dppo_kl(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """DPPO by KL; ``clip_ratio_c`` caps the weight, 20 where the config has none."""
    options = {**_clip(config), "ratio_cap": read(config, "clip_ratio_c", 20.0)}
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(divergence_loss.dppo_kl, options, arguments, loss_agg_mode, config, rollout_is_weights)


@register_policy_loss("gspo")
def compute_policy_loss_gspo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """GSPO in the form that the paper calls GSPO-token; always averaged by ``seq-mean-token-mean``, as in verl."""
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(
        sequence_loss.gspo_token, _clip(config), arguments, "seq-mean-token-mean", config, rollout_is_weights
    )


@register_policy_loss("sapo")
def compute_policy_loss_sapo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """SAPO's soft gate; always averaged by ``seq-mean-token-mean``, as in verl."""
    options = {"tau_pos": read(config, "tau_pos", 1.0), "tau_neg": read(config, "tau_neg", 1.05)}
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(soft_loss.sapo, options, arguments, "seq-mean-token-mean", config, rollout_is_weights)


@register_policy_loss("gpg")
def compute_policy_loss_gpg(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Advantage times log-prob. verl 0.5 had this function without old log-probs, as (log_prob, advantages, ...)."""
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(gradient_loss.gpg, {}, arguments, loss_agg_mode, config, rollout_is_weights)


@register_policy_loss("clip_cov")
def compute_policy_loss_clip_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """Clip-Cov. The log-ratio is held within 20, which verl does not do here."""
    section = read(config, "policy_loss", {})
    numbers = {"clip_cov_ratio": 2e-4, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0}
    options = {**_clip(config), **{name: read(section, name, default) for name, default in numbers.items()}}
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    options["selected"] = _selected(covariance_loss.select_clip_cov, arguments, options)
    return _averaged(covariance_loss.clip_cov, options, arguments, loss_agg_mode, config, rollout_is_weights)


@register_policy_loss("kl_cov")
def compute_policy_loss_kl_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """KL-Cov. ``ppo_kl`` is the mean absolute log-ratio."""
    section = read(config, "policy_loss", {})
    options = {
        "kl_cov_ratio": read(section, "kl_cov_ratio", 2e-4),
        "ppo_kl_coef": read(section, "ppo_kl_coef", 0.1),
    }
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    options["selected"] = _selected(covariance_loss.select_kl_cov, arguments, options)
    return _averaged(covariance_loss.kl_cov, options, arguments, loss_agg_mode, config, rollout_is_weights)


@register_policy_loss("geo_mean")
def compute_policy_loss_geo_mean(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """GMPO, averaged over rows. verl averages over those of the micro-batch, so its gradient grows with their number;
    here the rows of ``config.global_batch_info`` divide where they are given, and rows without a token do not count.
    """
    mask = response_mask.to(log_prob.dtype)
    weights = rollout_is_weights
    if weights is not None:
        weights = masking.masked_mean((weights + 1e-10).log(), mask, axis=1).exp()[:, None].expand_as(mask)
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(sequence_loss.geo_mean, _clip(config), arguments, "seq-mean-token-mean", config, weights)


@register_policy_loss("dro")
def compute_policy_loss_dro(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """DRO with ``policy_loss.dro_beta``.

    Raises:
        ValueError: without a positive beta.
    """
    beta = read(read(config, "policy_loss", {}), "dro_beta", None)
    if beta is None or beta <= 0:
        raise ValueError(f"dro needs policy_loss.dro_beta > 0, got {beta}")
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(gradient_loss.dro, {"beta": beta}, arguments, loss_agg_mode, config, rollout_is_weights)


@register_policy_loss("cispo")
def compute_policy_loss_cispo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """CISPO with both bounds on the weight."""
    arguments = (old_log_prob, log_prob, advantages, response_mask)
    return _averaged(gradient_loss.cispo, _clip(config), arguments, loss_agg_mode, config, rollout_is_weights)


def compute_policy_loss_reinforce(
    rollout_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> Loss:
    """REINFORCE, weighted by ``rollout_is_weights``; ``ppo_kl`` is measured against the sampler."""
    arguments = (rollout_log_prob, log_prob, advantages, response_mask)
    return _averaged(gradient_loss.reinforce, {}, arguments, loss_agg_mode, config, rollout_is_weights)


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Tensor]:
    """Half the clipped squared error of the critic: ``(loss, clipfrac)``."""
    mask = response_mask.to(vpreds.dtype)
    found = value_loss.clipped_value_loss(vpreds, values, returns, mask, clip=cliprange_value)
    clipfrac = masking.masked_mean(found.diagnostics["vf_clipfrac"], mask)
    return agg_loss(found.loss, mask, loss_agg_mode), clipfrac


def compute_entropy_loss(logits: Tensor, response_mask: Tensor, loss_agg_mode: str = "token-mean") -> Tensor:
    """Entropy of the distributions ``logits`` (B, T, V), aggregated; positive, so a bonus subtracts it."""
    log_probs = logits.log_softmax(dim=-1)
    return agg_loss(-(log_probs.exp() * log_probs).sum(dim=-1), response_mask, loss_agg_mode)


def _clip(config: Any) -> dict[str, Any]:
    """The clip range; low and high follow ``clip_ratio`` where they are missing or null."""
    base = read(config, "clip_ratio", 0.2)
    return {"clip_low": read(config, "clip_ratio_low", base), "clip_high": read(config, "clip_ratio_high", base)}


def _selected(select: Callable[..., Tensor], arguments: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    old_log_prob, log_prob, advantages, response_mask = arguments
    mask = response_mask.to(log_prob.dtype)
    return select(log_prob.detach(), old_log_prob, advantages, mask, torch.rand_like(mask), **options)


def _averaged(
    function: Callable[..., TokenLoss],
    options: dict[str, Any],
    arguments: tuple[Tensor, ...],
    mode: str,
    config: Any,
    weights: Tensor | None,
) -> Loss:
    old_log_prob, log_prob, advantages, response_mask = arguments
    mask = response_mask.to(log_prob.dtype)
    found = function(log_prob, old_log_prob, advantages, mask, **options)
    per_token = found.loss if weights is None else found.loss * weights
    loss = agg_loss(per_token, mask, mode, **read(config, "global_batch_info", {}))
    return loss, {f"actor/{name}": float(masking.masked_mean(x, mask)) for name, x in found.diagnostics.items()}
