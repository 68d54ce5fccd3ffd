"""How functions of a person with verl's signatures are called, and what is said where they return something else."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cohort.algorithms import masking
from cohort.algorithms.signatures import Advantages
from cohort.errors import UserError
from cohort.verl_api.aggregation import GlobalBatch, part_of
from cohort.verl_api.section import Section

OLD_METRICS = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")
"""What verl 0.5's four results are called after the loss."""

PROVIDED: Mapping[str, str] = {
    "values": "values",
    "old_log_probs": "old_log_probs",
    "sum_pi_squared": "sum_pi_squared",
    "reward_baselines": "baseline",
}
"""Parameters of an estimator that cost the run something, and what the training step calls them."""

NOT_THEIRS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
"""Folders whose lines say nothing to a person about his own file."""

FREE = ("token_level_rewards", "response_mask", "index", "config", "non_tensor_batch", "batch", "rollout_is_weights")
"""Parameters that every run can give."""


@dataclass(frozen=True, kw_only=True)
class EstimatorCall:
    """An advantage estimator of a person.

    Attributes:
        name: what the configuration calls it.
        function: see ``register_adv_est``.
        config: the section ``algorithm``, the entries of ``adv_kwargs`` among its keys.
        extra: ``algorithm.adv_kwargs``, for parameters of these names.
    """

    name: str
    function: Callable[..., Any]
    config: Section
    extra: Mapping[str, Any]

    def needs(self) -> tuple[str, ...]:
        """What the training step must compute for it.

        Raises:
            UserError: for a parameter that nothing can fill.
        """
        parameters = _parameters(self.function)
        for name, parameter in parameters.items():
            known = name in FREE or name in PROVIDED or name in self.extra or name in self.config
            if parameter.default is parameter.empty and _is_named(parameter) and not known:
                raise UserError(
                    f"algorithm.adv_estimator={self.name}: its parameter {name} has no default; a run can give "
                    f"{', '.join((*FREE, *PROVIDED))}, or the value that algorithm.adv_kwargs has under {name}"
                )
        required = [
            name for name in PROVIDED if name in parameters and parameters[name].default is inspect.Parameter.empty
        ]
        return tuple(PROVIDED[name] for name in required)

    @torch.no_grad()
    def __call__(self, available: Mapping[str, Any], mask: Tensor) -> Advantages:
        """Its advantages.

        Args:
            available: by parameter name, what this run has.
            mask: 1 where the model wrote the token  # (B, T)

        Raises:
            UserError: where it returns anything but two finite tensors of the mask's shape.
        """
        parameters = _parameters(self.function)
        offered = {**available, "response_mask": mask, "config": self.config, **self.extra}
        if not _takes_all(parameters):
            offered = {name: value for name, value in offered.items() if name in parameters}
        for name, parameter in parameters.items():  # gamma and lam of verl 0.5
            if name not in offered and parameter.default is parameter.empty and name in self.config:
                offered[name] = self.config[name]
        return self._judged(self.function(**offered), mask)

    def _judged(self, returned: Any, mask: Tensor) -> Advantages:
        where = f"algorithm.adv_estimator={self.name}"
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise UserError(f"{where}: it returned {_kind(returned)}; expects (advantages, returns)")
        return judged_advantages(where, returned[0], returned[1], mask)


def judged_advantages(where: str, advantages: Any, returns: Any, mask: Tensor) -> Advantages:
    """Both tensors, 0 off the mask, if they are what an estimator must return.

    Raises:
        UserError: otherwise.
    """
    for name, tensor in {"advantages": advantages, "returns": returns}.items():
        if not isinstance(tensor, Tensor) or tensor.shape != mask.shape:
            shape = f"a tensor {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else _kind(tensor)
            raise UserError(
                f"{where}: its {name} are {shape}; expects one number per token, {tuple(mask.shape)}, for example "
                "scores.unsqueeze(-1) * response_mask"
            )
        bad = (~tensor.isfinite() & (mask > 0)).any(dim=1).nonzero()
        if len(bad):
            raise UserError(f"{where}: its {name} of row {int(bad[0])} are not finite; is a deviation of 0 dividing?")
    kept = [masking.zero_outside(tensor.detach().to(mask.dtype), mask) for tensor in (advantages, returns)]
    return Advantages(*kept)


@dataclass(frozen=True, kw_only=True)
class PolicyLossCall:
    """A policy loss of a person, as the objective calls it.

    Attributes:
        name: what the configuration calls it.
        function: see ``register_policy_loss``.
        config: the section ``actor_rollout_ref.actor``.
        mode: ``loss_agg_mode``.
        horizon: ``loss_scale_factor``.
    """

    name: str
    function: Callable[..., Any]
    config: Section
    mode: str
    horizon: float | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return f"actor_rollout_ref.actor.policy_loss.loss_mode={self.name}"

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        counts: Tensor,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss of these rows, a part of the minibatch that has ``counts``, and what to log.

        Raises:
            UserError: where it returns anything but a scalar with a gradient and numbers.
        """
        whole = GlobalBatch(tokens=counts[0], rows=counts[1], horizon=self.horizon)
        parameters = _parameters(self.function)
        weighs = _takes_all(parameters) or "rollout_is_weights" in parameters
        if weights is not None and not weighs:
            raise UserError(
                f"{self.where}: it has no parameter rollout_is_weights, so the weights of this run (of "
                "rollout_correction or top_entropy_quantile) would do nothing; multiply the token losses by it"
            )
        given: dict[str, Any] = {
            "old_log_prob": old_log_probs,
            "log_prob": log_probs,
            "advantages": advantages,
            # Since verl 0.6 the mask is bool, to index with; before it was a number, to subtract from 1.
            "response_mask": mask > 0 if weighs else mask,
            "loss_agg_mode": self.mode,
            "config": self.config.having(global_batch_info=whole.info()),
            "rollout_is_weights": weights,
        }
        with part_of(whole):
            returned = self._called(parameters, given)
        return self._judged(returned, log_probs)

    def _called(self, parameters: Mapping[str, inspect.Parameter], given: dict[str, Any]) -> Any:
        """By keyword where the names are verl's, else in verl's order."""
        named = all(name in parameters for name in list(given)[:4])
        if _takes_all(parameters):
            return self.function(**given)
        if named:
            return self.function(**{name: value for name, value in given.items() if name in parameters})
        return self.function(*list(given.values())[: len(parameters)])

    def _judged(self, returned: Any, log_probs: Tensor) -> tuple[Tensor, dict[str, float]]:
        legal = "expects (loss, numbers to log) or verl 0.5's (loss, clipfrac, ppo_kl, clipfrac_lower)"
        if not isinstance(returned, tuple | list) or len(returned) not in (2, 4):
            raise UserError(f"{self.where}: it returned {_kind(returned)}; {legal}")
        loss, *rest = returned
        if not isinstance(loss, Tensor):
            raise UserError(f"{self.where}: its loss is {_kind(loss)}; {legal}")
        if loss.numel() != 1:
            raise UserError(
                f"{self.where}: its loss is a tensor {tuple(loss.shape)}; average it, for example by "
                "agg_loss(loss_mat, response_mask, loss_agg_mode)"
            )
        if log_probs.requires_grad and not loss.requires_grad:
            raise UserError(
                f"{self.where}: its loss has no gradient; is log_prob detached, or turned into a number, on the way?"
            )
        seen = dict(zip(OLD_METRICS, rest, strict=True)) if len(rest) == 3 else rest[0]
        if not isinstance(seen, Mapping):
            raise UserError(f"{self.where}: what it logs is {_kind(seen)}; {legal}")
        return loss.reshape(()), {_prefixed(str(name)): self._number(name, value) for name, value in seen.items()}

    def _number(self, name: object, value: Any) -> float:
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, int | float):
            raise UserError(f"{self.where}: {name} in what it logs is {_kind(value)}; expects a number")
        return float(value)

    def adds_up(self) -> bool:
        """Whether the losses of parts of a minibatch add up to that of the whole: value and gradient, on made-up rows.

        Raises:
            UserError: where it fails on them, or returns something else than it must.
        """
        generator = torch.Generator().manual_seed(0)
        lengths = torch.tensor([6, 3, 4, 1, 5])
        mask = (torch.arange(6) < lengths[:, None]).float()
        mask[2, 1] = 0  # text in the middle that the model did not write
        old, noise, advantages = (torch.randn(mask.shape, generator=generator) * mask for _ in range(3))
        old = (old.abs() + 0.2) * -mask
        log_probs = ((old + 0.3 * noise).clamp(max=-0.01) * mask).requires_grad_()

        def loss_of(rows: slice) -> Tensor:
            loss, _ = self(log_probs[rows], old[rows], advantages[rows], mask[rows], counts=masking.counts(mask))
            return loss

        try:
            with torch.random.fork_rng(devices=[]):
                whole, parts = loss_of(slice(None)), loss_of(slice(0, 2)) + loss_of(slice(2, None))
                pairs = [(whole.detach(), parts.detach())]
                pairs += [(torch.autograd.grad(whole, log_probs)[0], torch.autograd.grad(parts, log_probs)[0])]
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.where}: {described(error)}") from error
        if not all(bool(tensor.isfinite().all()) for tensor in pairs[0] + pairs[1]):
            raise UserError(f"{self.where}: its loss or gradient is not finite on ordinary rows")
        return all(bool((a - b).abs().max() <= 1e-4 * a.abs().max() + 1e-9) for a, b in pairs)


def described(error: BaseException) -> str:
    """The error and the line of the person's own file where it came up."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(NOT_THEIRS)]
    at = f" ({frames[-1].filename} line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _is_named(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _takes_all(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _prefixed(name: str) -> str:
    return name if "/" in name else f"actor/{name}"


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    return "nothing" if value is None else f"a {type(value).__name__}"
