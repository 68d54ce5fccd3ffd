"""Numbers that change during training: learning rates, KL coefficients, weights of terms. Plain floats in and out."""

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
    Wrong choice when: a cosine and the run may be prolonged: it ends at its least rate and stays there.

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
    Wrong choice when: runs are compared at one weight; when the KL may never reach the target, as beta then falls to
        nothing.

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


SHAPING_SCHEDULES = ("linear", "sigmoid", "cosine", "exp", "step")


def shaping_weight(
    step: int,
    *,
    max_weight: Number,
    kind: str = "sigmoid",
    warmup_ratio: Number = 0.7,
    total_steps: int | None = None,
    warmup_steps: Number | None = None,
    steps: int = 3,
    step_offset: int = 0,
    sigmoid_k: Number = 10.0,
    sigmoid_center: Number = 0.5,
    exp_k: Number = 5.0,
) -> float:
    """The weight of a reward's shaping term, rising from 0 to ``max_weight`` and staying there.

    With p = step / warm-up steps, held within 0 and 1, the weight is ``max_weight f(p)``:

        linear    p
        sigmoid   (s(k (p - c)) - s(-k c)) / (s(k (1 - c)) - s(-k c)),   s(x) = 1 / (1 + exp(-x))
        cosine    (1 - cos(pi p)) / 2
        exp       (exp(k p) - 1) / (exp(k) - 1)
        step      min(floor(p n) + step_offset, n) / n

    All begin at 0 (so switching a term on does not change the first step) and reach 1 exactly, which is why the
    sigmoid is stretched. A warm-up of no steps is the full weight from the start.

    Args:
        step: training steps already finished, from 0.
        max_weight: the weight after the warm-up.
        kind: one of ``SHAPING_SCHEDULES``.
        warmup_ratio: share of ``total_steps`` that the rise takes.
        total_steps: length of the training; needed unless ``warmup_steps`` is given.
        warmup_steps: length of the rise, for a training whose end is not known; wins over the ratio.
        steps: n, the stairs of ``step``.
        step_offset: stairs climbed at the start: 1 begins at 1/n.
        sigmoid_k: k, how steep ``sigmoid`` is.
        sigmoid_center: c, where it is steepest; above 0.5 it starts slowly.
        exp_k: k of ``exp``, how late it rises.

    Paper: none; the shapes are curriculum schedules, Bengio et al. 2009, Curriculum Learning (ICML).
    Wrong choice when: ``step`` and an adaptive part of the run (a KL coefficient, a critic) needs time at every jump.

    Raises:
        ValueError: for an unknown kind, a setting out of range, or no length to rise over.
    """
    if kind not in SHAPING_SCHEDULES:
        raise ValueError(f"shaping schedule {kind!r} is not one of {', '.join(SHAPING_SCHEDULES)}")
    if max_weight < 0 or not 0 <= warmup_ratio <= 1:
        raise ValueError(f"needs max_weight >= 0 and 0 <= warmup_ratio <= 1, got {max_weight} and {warmup_ratio}")
    if steps < 1 or sigmoid_k <= 0 or exp_k <= 0 or step_offset < 0:
        raise ValueError("needs steps >= 1, step_offset >= 0, sigmoid_k > 0 and exp_k > 0")
    if warmup_steps is None:
        if total_steps is None:
            raise ValueError("warmup_ratio is a share of total_steps: where the length is unknown, give warmup_steps")
        warmup_steps = total_steps * warmup_ratio
    p = 1.0 if warmup_steps <= 0 else min(max(step / warmup_steps, 0.0), 1.0)
    if kind == "linear":
        rise = p
    elif kind == "sigmoid":
        least, value, most = (_sigmoid(sigmoid_k * (x - sigmoid_center)) for x in (0.0, p, 1.0))
        rise = (value - least) / (most - least)
    elif kind == "cosine":
        rise = (1 - math.cos(math.pi * p)) / 2
    elif kind == "exp":
        rise = math.expm1(exp_k * p) / math.expm1(exp_k)
    else:
        rise = min(math.floor(p * steps + 1e-9) + step_offset, steps) / steps  # 1e-9: 0.1 * 3 / 0.1 is below 3
    return float(max_weight * rise)


def _sigmoid(x: float) -> float:
    """The logistic function, without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def chord_mu(step: int, *, warmup: Number, decay: Number, peak: Number, valley: Number) -> float:
    """How much supervised data weighs in CHORD: ``loss = (1 - mu) loss_RL + mu loss_SFT``.

        step < warmup             peak step / warmup
        step < warmup + decay     valley + (peak - valley) (1 + cos(pi (step - warmup) / decay)) / 2
        afterwards                valley

    Args:
        step: optimiser steps already finished, from 0.
        warmup: steps of the linear rise from 0 to ``peak``; 0 starts at the peak.
        decay: steps of the way down.
        peak: the largest mu, 0 to 1.
        valley: where mu ends; equal to ``peak`` for a constant mu.

    Paper: Zhang et al. 2025, On-Policy RL Meets Off-Policy Experts (2508.11408), CHORD-mu.
    Wrong choice when: the supervised answers are not better than the policy's own: a large mu forgets what RL found.

    Raises:
        ValueError: for a weight outside 0 to 1, or a negative length.
    """
    if not (0 <= peak <= 1 and 0 <= valley <= 1):
        raise ValueError(f"mu is a share: needs 0 <= peak, valley <= 1, got {peak} and {valley}")
    if warmup < 0 or decay < 0:
        raise ValueError(f"needs warmup >= 0 and decay >= 0, got {warmup} and {decay}")
    if step < warmup:
        return float(peak * step / warmup)
    if step >= warmup + decay:
        return float(valley)
    return float(valley + (peak - valley) * (1 + math.cos(math.pi * (step - warmup) / decay)) / 2)
