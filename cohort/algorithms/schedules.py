"""Numbers that change during training: learning-rate factors and KL coefficients. Plain floats in and out."""

import math
from collections.abc import Callable

from cohort.algorithms.masking import Number

LR_SCHEDULES = ("constant", "cosine")


def lr_factor(
    step: int,
    *,
    kind: str = "constant",
    warmup_steps: int = 0,
    total_steps: int = 0,
    min_ratio: Number = 0.0,
    cycles: Number = 0.5,
) -> float:
    """What the learning rate is multiplied by in a training step.

        warm-up    step / warmup_steps                       while step < warmup_steps: the first step has rate 0
        constant   1
        cosine     max(m, (1 - m)/2 cos(2 pi cycles p) + (1 + m)/2),  p from 0 to 1 over the steps after the warm-up

    Past ``total_steps`` the cosine stays where it ended: a longer run does not warm up again.

    Args:
        step: training steps already finished, from 0.
        kind: ``constant`` or ``cosine``.
        warmup_steps: steps of linear warm-up.
        total_steps: length of the whole schedule, warm-up included; read by ``cosine`` alone.
        min_ratio: m, the least factor after the warm-up; read by ``cosine`` alone.
        cycles: waves of the cosine; 0.5 goes from 1 down to m once.

    Paper: Loshchilov and Hutter 2017, SGDR (1608.03983), equation 5.

    Raises:
        ValueError: for an unknown kind, or a cosine that has no steps after its warm-up.
    """
    if kind not in LR_SCHEDULES:
        raise ValueError(f"learning-rate schedule {kind!r} is not one of {', '.join(LR_SCHEDULES)}")
    if kind == "cosine" and total_steps <= warmup_steps:
        raise ValueError(f"a cosine needs total_steps > warmup_steps, got {total_steps} and {warmup_steps}")
    if step < warmup_steps:
        return step / warmup_steps
    if kind == "constant":
        return 1.0
    progress = min((step - warmup_steps) / (total_steps - warmup_steps), 1.0)
    wave = math.cos(2 * math.pi * cycles * progress)
    return max(float(min_ratio), (1 - min_ratio) / 2 * wave + (1 + min_ratio) / 2)


def fixed(coef: Number, kl: Number, target: Number, horizon: Number, rows: int) -> float:
    """The KL coefficient as it was; what was measured does not matter.

    Paper: Ziegler et al. 2019 (1909.08593), section 2.2, the constant beta.
    """
    return float(coef)


def adaptive_kl(coef: Number, kl: Number, target: Number, horizon: Number, rows: int) -> float:
    """The KL coefficient moved towards a target.

        error = clip(kl / target - 1, -0.2, 0.2);  beta <- beta (1 + error rows / horizon)

    A KL that is not finite leaves the coefficient alone: the step's loss is not finite either, and
    the update reports it; the coefficient must not be lost with it.

    Args:
        coef: beta of the step that was measured.
        kl: mean KL per token in that step.
        target: the KL to hold.
        horizon: rollouts over which beta may change by its error.
        rows: rollouts in the step.

    Paper: Ziegler et al. 2019 (1909.08593), section 2.2, the equations for e_t and beta_{t+1}.

    Raises:
        ValueError: for a target or a horizon that is not positive.
    """
    if target <= 0 or horizon <= 0:
        raise ValueError(f"an adaptive KL coefficient needs target > 0 and horizon > 0, got {target} and {horizon}")
    if not math.isfinite(kl):
        return float(coef)
    error = min(max(kl / target - 1, -0.2), 0.2)
    return float(coef * (1 + error * rows / horizon))


KL_CONTROLLERS: dict[str, Callable[[Number, Number, Number, Number, int], float]] = {
    "fixed": fixed,
    "adaptive": adaptive_kl,
}
