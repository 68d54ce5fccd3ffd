"""Estimates of KL(policy || reference) from the log-probs of the sampled tokens alone.

A KL term can sit in the reward or in the loss, and which estimate is right depends on where.

*In the reward* only its value matters, and k1 is the one whose value makes the policy gradient
that of the KL. *In the loss* only its gradient matters, and there the mean over tokens drawn from
the policy is

    k1, kl            0: the reference drops out altogether
    k2, mse           the gradient of KL(policy || reference)
    k3, low_var_kl    the gradient of KL(reference || policy), the other direction
    abs               neither
    any name with +   the gradient of KL(policy || reference), with the named value

All this is of each token given what stands before it, and of tokens that the policy itself has drawn. So a KL in
the loss does not see that a token decides which tokens come after it; k1 in the reward, summed over the answer, does,
and its gradient is that of the KL of whole answers. And in later updates on the same answers a KL in the loss is no
longer an average over the policy, as no ratio corrects it.

``tests/numerics/test_kl_gradients.py`` measures every line.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import zero_outside

LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def k1(log_probs: Float[Tensor, "B T"], ref_log_probs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``log pi - log pi_ref``: unbiased, and negative for many tokens.

    Shapes: (B, T) each -> (B, T).
    Paper: Schulman 2020, Approximating KL Divergence (joschu.net/blog/kl-approx.html), k1; as a reward, Ouyang et al.
        2022, InstructGPT (2203.02155), equation 2.
    Wrong choice when: it is a loss. Its mean gradient is 0 whatever the reference is.
    """
    return log_probs - ref_log_probs


def absolute(log_probs: Float[Tensor, "B T"], ref_log_probs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``|log pi - log pi_ref|``: a distance, not a KL.

    Shapes: (B, T) each -> (B, T).
    Paper: none; the absolute value of Schulman's k1, kept because verl has it.
    Wrong choice when: the number is read as a KL, or the gradient should be that of one.
    """
    return (log_probs - ref_log_probs).abs()


def k2(log_probs: Float[Tensor, "B T"], ref_log_probs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``(log pi - log pi_ref)^2 / 2``: biased as a value, exact as a loss.

    Shapes: (B, T) each -> (B, T).
    Paper: Schulman 2020, k2; its gradient, Tang and Munos 2025, On a Few Pitfalls in KL Divergence Gradient Estimation
        for RL (2506.09477), section 3.
    Wrong choice when: the value is read as a KL far from the reference, or it is a reward.
    """
    return 0.5 * (log_probs - ref_log_probs) ** 2


def k3(log_probs: Float[Tensor, "B T"], ref_log_probs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``exp(x) - x - 1`` with ``x = log pi_ref - log pi``: unbiased as a value, never negative, low variance.

    x is held within 20 and the result within 10; beyond either limit the gradient is 0.

    Shapes: (B, T) each -> (B, T).
    Paper: Schulman 2020, k3; Shao et al. 2024, DeepSeekMath (2402.03300), equation 4.
    Wrong choice when: as a loss, the direction of the KL matters: it pulls towards KL(reference || policy), and lets
        go of tokens the policy has all but lost. As a reward, its policy gradient is the difference of both directions.
    """
    x = (ref_log_probs - log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # expm1, because exp(x) - 1 loses all digits of a small x, and near the reference x is small.
    return (torch.expm1(x) - x).clamp(-K3_LIMIT, K3_LIMIT)


def straight_through(
    log_probs: Float[Tensor, "B T"],
    ref_log_probs: Float[Tensor, "B T"],
    *,
    base: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "B T"]:
    """The value of ``base`` with the gradient of k2, ``log pi - log pi_ref``.

    Shapes: (B, T) each -> (B, T).
    Paper: Tang and Munos 2025 (2506.09477), section 3: the gradient of k2 is the unbiased one.
    Wrong choice when: it is a reward, where only the value counts: use the name without the plus.
    """
    through = k2(log_probs, ref_log_probs)
    return through - through.detach() + base(log_probs, ref_log_probs).detach()


KL_KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": k1,
    "k1": k1,
    "abs": absolute,
    "mse": k2,
    "k2": k2,
    "low_var_kl": k3,
    "k3": k3,
    "kl+": partial(straight_through, base=k1),
    "k1+": partial(straight_through, base=k1),
    "abs+": partial(straight_through, base=absolute),
    "mse+": partial(straight_through, base=k2),
    "k2+": partial(straight_through, base=k2),
    "low_var_kl+": partial(straight_through, base=k3),
    "k3+": partial(straight_through, base=k3),
}


def kl_penalty(
    log_probs: Float[Tensor, "B T"],
    ref_log_probs: Float[Tensor, "B T"],
    kind: str,
    mask: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """The KL estimate of each token; never weighted or averaged here.

    Args:
        log_probs: log pi(token), with gradient where the result is a loss.
        ref_log_probs: log pi_ref(token).
        kind: a name of ``KL_KINDS``.
        mask: given, the result and its gradient are exactly 0 off it, whatever the log-probs hold there.

    Shapes: (B, T) each -> (B, T).
    Paper: that of the kind.

    Raises:
        ValueError: for an unknown kind.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"KL kind {kind!r} is not one of {', '.join(KL_KINDS)}")
    if mask is not None:
        log_probs, ref_log_probs = zero_outside(log_probs, mask), zero_outside(ref_log_probs, mask)
    return KL_KINDS[kind](log_probs, ref_log_probs)
