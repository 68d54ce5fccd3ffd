"""The names a configuration may use for advantages and policy losses, and the functions behind them.

To add one of your own, write the function and register it before the run is built:

    def centred(rewards, mask, group, *, shift=0.5):
        advantages = (rewards.sum(1, keepdim=True) - shift) * mask
        return Advantages(advantages, advantages)

    register_advantage("centred", centred)

An advantage is called ``function(rewards=, mask=, group=, **needs, **options)`` and returns
``Advantages``. A policy loss is called ``function(log_probs, old_log_probs, advantages, mask,
**needs, **options)`` and returns a ``TokenLoss``: it must not average, because it sees a micro-batch
and only ``masking.aggregate`` knows the counts of the whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from cohort.algorithms import (
    covariance_loss,
    divergence_loss,
    gae,
    gdpo,
    gradient_loss,
    group,
    pass_at_k,
    ppo_loss,
    reinforce,
    sequence_loss,
    soft_loss,
    token_baseline,
)
from cohort.algorithms.signatures import Advantages, TokenLoss

__all__ = [
    "ADVANTAGES",
    "POLICY_LOSSES",
    "AdvantageEntry",
    "Advantages",
    "PolicyLossEntry",
    "TokenLoss",
    "register_advantage",
    "register_policy_loss",
]


@dataclass(frozen=True, kw_only=True)
class AdvantageEntry:
    """An advantage estimator.

    Attributes:
        function: rewards, mask and group -> Advantages.
        needs: further tensors it takes by keyword: ``values``, ``old_log_probs``, ``sum_pi_squared``,
            ``rollout_is_weights`` (B, T); ``baseline`` (B,), the score of the prompt's greedy answer; ``parts``
            (B, K), named parts of the reward.
        group_baseline: the group's other answers are the baseline, so one sample per prompt learns nothing.
    """

    function: Callable[..., Advantages]
    needs: tuple[str, ...] = ()
    group_baseline: bool = False


@dataclass(frozen=True, kw_only=True)
class PolicyLossEntry:
    """A policy loss.

    Attributes:
        function: log-probs, old log-probs, advantages and mask -> TokenLoss.
        needs: further tensors it takes by keyword, a field of ``Experience`` or a name of its extras.
        select: choices that only the whole minibatch can make (quantiles, covariance picks), made before it
            is split: ``select(log_probs, old_log_probs, advantages, mask, uniforms, **options) -> (B, T)``.
            Its result reaches ``function`` as ``selected``, sliced with the rows. ``uniforms`` (B, T) in
            [0, 1) are the only source of chance.
        aggregation: the paper's ``masking.aggregate`` mode, used where the configuration names none.
        row_weights: the loss is one number per answer, so importance weights against the sampler enter as their
            geometric mean over the row.
    """

    function: Callable[..., TokenLoss]
    needs: tuple[str, ...] = ()
    select: Callable[..., Tensor] | None = None
    aggregation: str = "token-mean"
    row_weights: bool = False


ADVANTAGES: dict[str, AdvantageEntry] = {
    "gae": AdvantageEntry(function=gae.gae, needs=("values",)),
    "grpo": AdvantageEntry(function=group.grpo, group_baseline=True),
    "dr_grpo": AdvantageEntry(function=group.dr_grpo, group_baseline=True),
    "grpo_passk": AdvantageEntry(function=pass_at_k.grpo_passk, group_baseline=True),
    "gdpo": AdvantageEntry(function=gdpo.gdpo, needs=("parts",), group_baseline=True),
    "rloo": AdvantageEntry(function=group.rloo, group_baseline=True),
    "opo": AdvantageEntry(function=group.opo, group_baseline=True),
    "gpg": AdvantageEntry(function=group.gpg, group_baseline=True),
    "max_rl": AdvantageEntry(function=group.max_rl, group_baseline=True),
    "reinforce_plus_plus": AdvantageEntry(function=reinforce.reinforce_plus_plus),
    "reinforce_plus_plus_baseline": AdvantageEntry(
        function=reinforce.reinforce_plus_plus_baseline, group_baseline=True
    ),
    "remax": AdvantageEntry(function=reinforce.remax, needs=("baseline",)),
    "optimal_token_baseline": AdvantageEntry(
        function=token_baseline.optimal_token_baseline,
        needs=("old_log_probs", "sum_pi_squared", "rollout_is_weights"),
        group_baseline=True,
    ),
    "tir_optimal_token_baseline": AdvantageEntry(
        function=token_baseline.tir_optimal_token_baseline,
        needs=("old_log_probs", "sum_pi_squared", "rollout_is_weights"),
        group_baseline=True,
    ),
}

POLICY_LOSSES: dict[str, PolicyLossEntry] = {
    "vanilla": PolicyLossEntry(function=ppo_loss.clipped),
    "gspo": PolicyLossEntry(function=sequence_loss.gspo, aggregation="seq-mean-token-mean"),
    "gspo_token": PolicyLossEntry(function=sequence_loss.gspo_token, aggregation="seq-mean-token-mean"),
    "geo_mean": PolicyLossEntry(function=sequence_loss.geo_mean, aggregation="seq-mean-token-mean", row_weights=True),
    "cispo": PolicyLossEntry(function=gradient_loss.cispo),
    "gpg": PolicyLossEntry(function=gradient_loss.gpg),
    "reinforce": PolicyLossEntry(function=gradient_loss.reinforce),
    "dro": PolicyLossEntry(function=gradient_loss.dro),
    "sapo": PolicyLossEntry(function=soft_loss.sapo, aggregation="seq-mean-token-mean"),
    "dppo_tv": PolicyLossEntry(function=divergence_loss.dppo_tv),
    "dppo_kl": PolicyLossEntry(function=divergence_loss.dppo_kl),
    "clip_cov": PolicyLossEntry(function=covariance_loss.clip_cov, select=covariance_loss.select_clip_cov),
    "kl_cov": PolicyLossEntry(function=covariance_loss.kl_cov, select=covariance_loss.select_kl_cov),
}

Entry = TypeVar("Entry", AdvantageEntry, PolicyLossEntry)


def register_advantage(
    name: str,
    function: Callable[..., Advantages],
    *,
    needs: tuple[str, ...] = (),
    group_baseline: bool = False,
    replace: bool = False,
) -> None:
    """Makes ``function`` an advantage estimator under ``name``.

    Args:
        name: what a configuration will call it.
        function: see the top of this file.
        needs: further tensors to pass by keyword.
        group_baseline: refuse to run it with one sample per prompt.
        replace: take the place of what has the name already, as a notebook cell that runs again must.

    Raises:
        ValueError: if the name stands for another function.
    """
    entry = AdvantageEntry(function=function, needs=needs, group_baseline=group_baseline)
    _register(ADVANTAGES, "advantage", name, entry, replace)


def register_policy_loss(
    name: str,
    function: Callable[..., TokenLoss],
    *,
    needs: tuple[str, ...] = (),
    select: Callable[..., Tensor] | None = None,
    aggregation: str = "token-mean",
    row_weights: bool = False,
    replace: bool = False,
) -> None:
    """Makes ``function`` a policy loss under ``name``.

    Args:
        name: what a configuration will call it.
        function: see the top of this file.
        needs: further tensors to pass by keyword.
        select: see ``PolicyLossEntry``.
        aggregation: see ``PolicyLossEntry``.
        row_weights: see ``PolicyLossEntry``.
        replace: take the place of what has the name already.

    Raises:
        ValueError: if the name stands for another function.
    """
    entry = PolicyLossEntry(
        function=function, needs=needs, select=select, aggregation=aggregation, row_weights=row_weights
    )
    _register(POLICY_LOSSES, "policy loss", name, entry, replace)


def _register(registry: dict[str, Entry], what: str, name: str, entry: Entry, replace: bool) -> None:
    present = registry.get(name)
    if present is not None and present != entry and not replace:
        module, function = present.function.__module__, present.function.__qualname__
        raise ValueError(f"{what} {name!r} is already {module}.{function}: choose another name or pass replace=True")
    registry[name] = entry
