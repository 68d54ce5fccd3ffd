"""What may be done about a sampler that disagrees with the trainer: settings, named presets, and verl's strings.

No tensor here: a configuration is judged by this file alone, before torch is there.
"""

import math
from dataclasses import dataclass

Number = int | float

LEVELS = ("token", "sequence", "sequence_geometric")

STATISTICS = (
    *(f"{scope}_{estimate}" for scope in ("token", "seq_sum", "seq_mean") for estimate in ("k1", "k2", "k3")),
    "seq_max_k2",
    "seq_max_k3",
    "seq_min_k1",
)

BYPASS_LOSSES = ("ppo_clip", "reinforce")

VERL_07_RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""The rejection levels of verl 0.7; its bounds were on the ratio trainer over sampler, as ours are."""

Threshold = str | Number | None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Keeps the tokens or the answers whose distance from the sampler lies within bounds, both included.

    With lambda = log p_trainer - log p_sampler of a token, the estimate is

        k1  lambda; its bounds are given as ratios, so ``[0.5, 2]`` means ``ln 0.5 <= statistic <= ln 2``
        k2  lambda^2 / 2
        k3  exp(lambda) - lambda - 1

    and the scope says what is judged: ``token`` each token by its own estimate; ``seq_sum``, ``seq_mean``,
    ``seq_max`` and ``seq_min`` a whole answer by the sum, mean, largest or smallest over its tokens.

    verl documents the bounds of k1 as those of the ratio trainer over sampler and then applies them to its
    inverse. The two meanings are one where the bounds are symmetric (``[0.5, 2]``), as in nearly every recipe.
    Otherwise they are not: ``[0.9, 4]`` keeps a token that the trainer makes 1.25 times as likely as the sampler,
    and verl drops it. The documented meaning holds here; ``inverted`` asks for what verl computes.

    Attributes:
        statistic: one of ``STATISTICS``. ``seq_min_k1`` is the veto of verl 0.7: one token far below and the
            answer goes.
        lower: least ratio for k1, 0 for no limit; k2 and k3 are never negative and have no lower bound.
        upper: largest ratio for k1, largest estimate for k2 and k3.
        inverted: k1 alone: the bounds are those of sampler over trainer.

    Raises:
        ValueError: for an unknown statistic, or bounds that nothing can lie between.
    """

    statistic: str
    lower: Number = 0.0
    upper: Number = math.inf
    inverted: bool = False

    def __post_init__(self) -> None:
        if self.statistic not in STATISTICS:
            raise ValueError(f"rejection rule {self.statistic!r} is not one of {', '.join(STATISTICS)}")
        if not 0 <= self.lower <= self.upper or self.upper <= 0:
            raise ValueError(
                f"{self.statistic} needs 0 <= lower <= upper and upper > 0, got {self.lower}, {self.upper}"
            )
        if self.estimate != "k1" and self.lower > 0:
            raise ValueError(f"{self.statistic} has an upper bound alone, got lower = {self.lower}")
        if self.estimate != "k1" and self.inverted:
            raise ValueError(f"{self.statistic} is no ratio that could be inverted")

    @property
    def scope(self) -> str:
        """``token``, ``seq_sum``, ``seq_mean``, ``seq_max`` or ``seq_min``."""
        return self.statistic.rpartition("_")[0]

    @property
    def estimate(self) -> str:
        """``k1``, ``k2`` or ``k3``."""
        return self.statistic.rpartition("_")[2]

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value of the statistic itself: logarithms of the ratios for k1."""
        if self.estimate != "k1":
            return -math.inf, float(self.upper)
        return math.log(self.lower) if self.lower > 0 else -math.inf, math.log(self.upper)


@dataclass(frozen=True, kw_only=True)
class Correction:
    """What one run does about the distance between sampler and trainer.

    Attributes:
        is_level: whose ratio weights the loss, one of ``LEVELS``; None for no importance weights.
        threshold: the largest weight: larger ones are cut down to it.
        window: least and largest weight: whatever lies outside weighs 0 (IcePop).
        window_level: whose ratio ``window`` judges, one of ``LEVELS``; None for that of ``is_level``.
        batch_normalize: divides the weights by their mean over the batch.
        rules: what is left out of training altogether; all must pass.
        bypass: no pass of the trainer for old log-probs: the sampler's take their place.
        loss: the policy loss under bypass: ``ppo_clip`` (the clip itself bounds the ratio to the sampler; no
            weights) or ``reinforce`` (the weights are the correction).

    Raises:
        ValueError: for settings that contradict each other.
    """

    is_level: str | None = None
    threshold: Number | None = None
    window: tuple[Number, Number] | None = None
    window_level: str | None = None
    batch_normalize: bool = False
    rules: tuple[Rule, ...] = ()
    bypass: bool = False
    loss: str = "ppo_clip"

    def __post_init__(self) -> None:
        if self.is_level is None and (self.threshold, self.window, self.batch_normalize) != (None, None, False):
            raise ValueError("threshold, window and batch_normalize need importance weights: set is_level")
        if self.is_level is not None:
            check_weights(self.is_level, self.threshold, self.window, self.window_level)
        names = [rule.statistic for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError(f"each rejection rule may stand once, got {', '.join(names)}")
        if self.loss not in BYPASS_LOSSES:
            raise ValueError(f"the loss of bypass mode {self.loss!r} is not one of {', '.join(BYPASS_LOSSES)}")
        if not self.bypass and self.loss != "ppo_clip":
            raise ValueError(f"the loss {self.loss!r} belongs to bypass mode")
        if self.bypass and self.loss == "ppo_clip" and self.is_level is not None:
            raise ValueError("bypass with ppo_clip has no importance weights: its ratio is that to the sampler already")
        if self.bypass and self.batch_normalize:
            raise ValueError("bypass weighs in every micro-batch anew, which has no mean over the batch to divide by")

    @property
    def active(self) -> bool:
        """Whether anything is done at all."""
        return self != Correction()


def check_weights(
    level: str, threshold: Number | None, window: tuple[Number, Number] | None, window_level: str | None
) -> None:
    """Refuses settings of importance weights that mean nothing.

    Paper: none; the rules of ``correction.importance_weights``.

    Raises:
        ValueError: naming what is wrong.
    """
    for name in (level, window_level):
        if name is not None and name not in LEVELS:
            raise ValueError(f"importance weights of level {name!r}: not one of {', '.join(LEVELS)}")
    if threshold is not None and window is not None:
        raise ValueError("importance weights are cut off (threshold) or masked (window), not both")
    if threshold is not None and threshold <= 0:
        raise ValueError(f"the largest importance weight must be above 0, got {threshold}")
    if window is not None and not 0 <= window[0] < window[1]:
        raise ValueError(f"a window of importance weights needs 0 <= lower < upper, got {window[0]} and {window[1]}")
    if window_level is not None and window is None:
        raise ValueError("window_level says whose ratio the window judges: set window")


def parse_weight_bound(text: str | Number) -> tuple[float | None, tuple[float, float] | None]:
    """A ``rollout_is_threshold`` of verl as ``(threshold, window)``: ``2.0`` cuts off, ``"0.5_5.0"`` is a window.

    Paper: none; verl's configuration.

    Raises:
        ValueError: for anything else.
    """
    lower, upper = _bounds(text, "rollout_is_threshold")
    return (upper, None) if lower is None else (None, (lower, upper))


def parse_rules(
    names: str | None, thresholds: Threshold, *, lower: Number | None = None, inverted: bool = False
) -> tuple[Rule, ...]:
    """The ``rollout_rs`` and ``rollout_rs_threshold`` of verl as rules.

    One threshold serves all rules; otherwise there is one per rule. For k1 it is ``"lower_upper"``, or one
    number u for ``[1/u, u]``; for k2 and k3 it is the upper bound.

    Args:
        names: rules, with commas between; None or empty for none. The names of verl 0.7 (``token``, ``sequence``,
            ``geometric``) are read as ``token_k1``, ``seq_sum_k1``, ``seq_mean_k1``.
        thresholds: thresholds, with commas between.
        lower: ``rollout_rs_threshold_lower`` of verl 0.7: the lower bound of rules that have one number.
        inverted: k1's bounds are those of sampler over trainer, as verl computes them; see ``Rule``.

    Paper: none; verl's configuration.

    Raises:
        ValueError: for unknown rules, a missing or unreadable threshold, or numbers that do not match.
    """
    rules = [VERL_07_RULES.get(name.strip(), name.strip()) for name in (names or "").split(",") if name.strip()]
    if not rules:
        if thresholds is not None:
            raise ValueError(f"rollout_rs_threshold={thresholds} without a rule: set rollout_rs")
        return ()
    if thresholds is None:
        raise ValueError(f"rollout_rs={names} needs rollout_rs_threshold")
    bounds = [part.strip() for part in str(thresholds).split(",")]
    if len(bounds) == 1:
        bounds *= len(rules)
    if len(bounds) != len(rules):
        raise ValueError(
            f"rollout_rs has {len(rules)} rules and rollout_rs_threshold {len(bounds)} values: give one, or one each"
        )
    return tuple(_rule(rule, bound, lower, inverted) for rule, bound in zip(rules, bounds, strict=True))


def _rule(name: str, text: str, lower: Number | None, inverted: bool) -> Rule:
    least, upper = _bounds(text, "rollout_rs_threshold")
    if not name.endswith("_k1"):
        if least is not None:
            raise ValueError(f"rollout_rs_threshold={text}: {name} takes one upper bound")
        return Rule(statistic=name, upper=upper)
    if least is None and lower is None and upper < 1:
        raise ValueError(f"rollout_rs_threshold={text}: one number u means ratios from 1/u to u, so it is at least 1")
    if least is None:
        least = 1 / upper if lower is None else float(lower)
    return Rule(statistic=name, lower=least, upper=upper, inverted=inverted)


def _bounds(text: str | Number, key: str) -> tuple[float | None, float]:
    """``"0.5_2.0"`` as (0.5, 2.0), ``"2"`` and 2 as (None, 2.0)."""
    try:
        numbers = [float(part) for part in str(text).split("_")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < number < math.inf for number in numbers):
        raise ValueError(f'{key}={text!r}: a positive number, or "LOWER_UPPER" such as "0.5_2.0"')
    if len(numbers) == 2 and numbers[0] >= numbers[1]:
        raise ValueError(f"{key}={text!r}: the lower bound comes first")
    return (None, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def parse_correction(
    *,
    rollout_is: str | None = None,
    rollout_is_threshold: str | Number = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: Threshold = None,
    rollout_rs_threshold_lower: Number | None = None,
    rollout_token_veto_threshold: Number | None = None,
    bypass_mode: bool = False,
    loss_type: str = "ppo_clip",
    inverted: bool = False,
) -> Correction:
    """The block ``algorithm.rollout_correction`` of verl (0.7 and later) as a ``Correction``.

    Args:
        rollout_is: ``token``, ``sequence``, ours ``sequence_geometric``, or None.
        rollout_is_threshold: see ``parse_weight_bound``; read with ``rollout_is`` alone.
        rollout_is_batch_normalize: divide weights by their mean.
        rollout_rs: see ``parse_rules``.
        rollout_rs_threshold: see ``parse_rules``.
        rollout_rs_threshold_lower: verl 0.7.
        rollout_token_veto_threshold: verl 0.7: an answer with one token below this ratio is dropped.
        bypass_mode: the sampler's log-probs are the old ones.
        loss_type: ``ppo_clip`` or ``reinforce``.
        inverted: k1's bounds as verl computes them; see ``Rule``.

    Paper: none; verl's configuration.

    Raises:
        ValueError: naming what is wrong.
    """
    rules = parse_rules(rollout_rs, rollout_rs_threshold, lower=rollout_rs_threshold_lower, inverted=inverted)
    if rollout_token_veto_threshold is not None:
        rules = (*rules, Rule(statistic="seq_min_k1", lower=rollout_token_veto_threshold))
    threshold, window = parse_weight_bound(rollout_is_threshold) if rollout_is is not None else (None, None)
    return Correction(
        is_level=rollout_is,
        threshold=threshold,
        window=window,
        batch_normalize=rollout_is_batch_normalize,
        rules=rules,
        bypass=bypass_mode,
        loss=loss_type,
    )


_SEQ_SUM = (Rule(statistic="seq_sum_k1", lower=0.5, upper=2.0),)
_GEOMETRIC = (Rule(statistic="seq_mean_k1", lower=0.999, upper=1.001),)
_K3 = (Rule(statistic="seq_mean_k3", upper=0.01),)
_TOKEN = {"is_level": "token", "threshold": 2.0}
_ANSWER = {"is_level": "sequence", "threshold": 2.0}
_ICEPOP = {"is_level": "token", "window": (0.5, 5.0)}
_CLIP = {"bypass": True, "loss": "ppo_clip"}
_REINFORCE = {"bypass": True, "loss": "reinforce"}

PRESETS: dict[str, Correction] = {
    "disabled": Correction(),
    "decoupled_token_is": Correction(**_TOKEN),
    "decoupled_seq_is": Correction(**_ANSWER),
    "decoupled_token_icepop": Correction(**_ICEPOP),
    "decoupled_seq_is_rs": Correction(**_ANSWER, rules=_SEQ_SUM),
    "decoupled_geo_rs": Correction(rules=_GEOMETRIC),
    "decoupled_geo_rs_seq_tis": Correction(**_ANSWER, rules=_GEOMETRIC),
    "decoupled_geo_rs_token_tis": Correction(**_TOKEN, rules=_GEOMETRIC),
    "decoupled_k3_rs": Correction(rules=_K3),
    "decoupled_k3_rs_seq_tis": Correction(**_ANSWER, rules=_K3),
    "decoupled_k3_rs_token_tis": Correction(**_TOKEN, rules=_K3),
    "bypass_ppo_clip": Correction(**_CLIP),
    "bypass_ppo_clip_geo_rs": Correction(**_CLIP, rules=_GEOMETRIC),
    "bypass_ppo_clip_k3_rs": Correction(**_CLIP, rules=_K3),
    "bypass_pg_is": Correction(**_REINFORCE, **_ANSWER),
    "bypass_pg_token_icepop": Correction(**_REINFORCE, **_ICEPOP),
    "bypass_pg_geo_rs": Correction(**_REINFORCE, rules=_GEOMETRIC),
    "bypass_pg_geo_rs_seq_tis": Correction(**_REINFORCE, **_ANSWER, rules=_GEOMETRIC),
    "bypass_pg_geo_rs_token_tis": Correction(**_REINFORCE, **_TOKEN, rules=_GEOMETRIC),
    "token_truncate": Correction(**_TOKEN),
    "token_mask": Correction(is_level="token", window=(0.0, 2.0)),
    "sequence_truncate": Correction(is_level="sequence_geometric", threshold=2.0),
    "sequence_mask": Correction(is_level="token", window=(0.0, 2.0), window_level="sequence_geometric"),
}
"""By name: verl's factories (``decoupled_*``, ``bypass_*``, ``disabled``), then ms-swift's four modes."""
