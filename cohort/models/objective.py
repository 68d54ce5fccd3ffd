"""The actor's loss: policy loss - entropy bonus + KL to the reference, each divided by the one ``aggregate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.algorithms.kl import kl_penalty
from cohort.algorithms.masking import aggregate, masked_mean, masked_sum
from cohort.algorithms.registry import TokenLoss
from cohort.metrics import Last, Mean, Metrics, Sum
from cohort.protocols import TokenStats
from cohort.types import Experience


@dataclass(frozen=True, kw_only=True)
class ScalarLoss:
    """A policy loss of somebody who averages by himself, as in verl.

    Attributes:
        function: ``fn(log_probs, old_log_probs, advantages, mask, counts=, weights=) -> (loss, numbers to log)``;
            ``counts`` are those of the whole minibatch, ``weights`` (b, T) or None.
        whole: parts of a minibatch would not add up to its loss, so it must come in one piece.
    """

    function: Callable[..., tuple[Tensor, Mapping[str, float]]]
    whole: bool = False

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, experience: Experience, counts: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of these rows, and what it logs, summed over tokens."""
        mask = experience.mask
        if not mask.any():  # a mean of nothing would be NaN
            return log_probs.sum() * 0, {}
        loss, seen = self.function(
            log_probs, old_log_probs, experience.advantages, mask, counts=counts, weights=experience.weights
        )
        return loss, {name: mask.sum() * value for name, value in seen.items()}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """loss = agg(policy loss) - entropy_coeff agg(H) + kl_coef agg(KL).

    Calling it on any split of a minibatch gives parts that add up to the loss of the whole, because every part is
    divided by the counts of the whole. Paper: Schulman et al. 2017 (1707.06347), equation 9, for the entropy bonus;
    Shao et al. 2024 (2402.03300), equation 3, for the KL term in the loss.

    Attributes:
        policy_loss: ``fn(log_probs, old_log_probs, advantages, mask, **needs) -> TokenLoss``, options bound; or a
            ``ScalarLoss``, whose aggregation is its own.
        aggregation: one of ``algorithms.masking.AGGREGATIONS``, for all three terms.
        entropy_coeff: weight of the entropy bonus.
        kl_coef: weight of the KL term.
        kl_kind: one of ``algorithms.kl.KL_KINDS``.
        horizon: constant divisor of ``seq-mean-token-sum-norm``, in tokens.
        needs: further arguments of ``policy_loss``: fields of ``Experience`` or names in its extras.
        row_weights: the policy loss is one number per row: weights enter as their geometric mean over the row.
    """

    policy_loss: Callable[..., TokenLoss] | ScalarLoss
    aggregation: str = "token-mean"
    entropy_coeff: float = 0.0
    kl_coef: float = 0.0
    kl_kind: str = "low_var_kl"
    horizon: float | None = None
    needs: tuple[str, ...] = ()
    row_weights: bool = False

    def losses(self, experience: Experience) -> tuple[str, ...]:
        """Names of the metrics that add up over micro-batches and replicas."""
        entropy = ("actor/entropy_loss",) if self.entropy_coeff else ()
        kl = ("actor/kl_loss",) if experience.ref_log_probs is not None else ()
        return ("actor/pg_loss", *entropy, *kl, "actor/loss")

    def __call__(self, stats: TokenStats, experience: Experience, counts: Tensor) -> tuple[Tensor, Metrics]:
        """The loss of these rows and what to log about it.

        Args:
            stats: the current model's statistics, with gradient  # (b, T)
            experience: the same rows, on the same device.
            counts: ``(tokens, rows)`` of the whole update minibatch over all replicas  # (2,)

        Returns:
            A scalar to differentiate, and metrics: losses as sums, diagnostics as means over tokens.

        Raises:
            ValueError: if a term is weighted but its statistics are missing.
        """
        mask, log_probs = experience.mask, stats.log_probs
        old_log_probs = experience.old_log_probs if experience.old_log_probs is not None else log_probs.detach()
        if isinstance(self.policy_loss, ScalarLoss):
            loss, means = self.policy_loss(log_probs, old_log_probs, experience, counts)
        else:
            extra = {name: self._needed(experience, name) for name in self.needs}
            policy = self.policy_loss(log_probs, old_log_probs, experience.advantages, mask, **extra)
            loss = self._aggregate(self._weighted(policy.loss, experience), mask, counts)
            means = {f"actor/{name}": masked_sum(value, mask) for name, value in policy.diagnostics.items()}
        sums = {"actor/pg_loss": loss}
        if self.entropy_coeff:
            if stats.entropy is None:
                raise ValueError(f"entropy_coeff={self.entropy_coeff} needs the entropy of the forward pass")
            sums["actor/entropy_loss"] = self._aggregate(stats.entropy, mask, counts)
            loss = loss - self.entropy_coeff * sums["actor/entropy_loss"]
        if experience.ref_log_probs is not None:
            kl = kl_penalty(log_probs, experience.ref_log_probs, self.kl_kind, mask)
            sums["actor/kl_loss"] = self._aggregate(kl, mask, counts)
            if self.kl_coef:
                loss = loss + self.kl_coef * sums["actor/kl_loss"]
        elif self.kl_coef:
            raise ValueError(f"kl_coef={self.kl_coef} needs the reference's log-probs")
        sums["actor/loss"] = loss
        if stats.entropy is not None:
            means["actor/entropy"] = masked_sum(stats.entropy, mask)
        return loss, self._metrics(sums, means, mask.sum())

    @property
    def whole(self) -> bool:
        """Whether a minibatch must not be cut into micro-batches."""
        return isinstance(self.policy_loss, ScalarLoss) and self.policy_loss.whole

    def _aggregate(self, per_token: Tensor, mask: Tensor, counts: Tensor) -> Tensor:
        return aggregate(per_token, mask, self.aggregation, counts, horizon=self.horizon)

    def _weighted(self, loss: Tensor, experience: Experience) -> Tensor:
        """The policy loss times what its tokens weigh; KL and entropy are not weighted  # (b, T)."""
        weights = experience.weights
        if weights is None:
            return loss
        if self.row_weights:
            mask = experience.mask
            weights = masked_mean(weights.log(), mask, axis=1).exp()[:, None].expand_as(loss)
        return loss * weights

    def _needed(self, experience: Experience, name: str) -> Tensor:
        value = experience.extras[name] if name in experience.extras else vars(experience).get(name)
        if value is None:
            raise ValueError(f"the policy loss needs {name!r}, which this run does not compute")
        return value

    def _metrics(self, sums: dict[str, Tensor], means: dict[str, Tensor], tokens: Tensor) -> Metrics:
        numbers = torch.stack([x.detach().double() for x in (*sums.values(), *means.values(), tokens)]).tolist()
        metrics: Metrics = {name: Sum(value) for name, value in zip(sums, numbers, strict=False)}
        metrics |= {name: Mean(value, numbers[-1]) for name, value in zip(means, numbers[len(sums) : -1], strict=True)}
        if "actor/kl_loss" in sums:
            metrics["actor/kl_coef"] = Last(self.kl_coef)
        return metrics
