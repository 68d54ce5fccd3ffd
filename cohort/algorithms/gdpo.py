"""Several rewards, each compared within the group before they are added."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms import masking
from cohort.algorithms.grouping import group_statistics, has_siblings, on_every_token
from cohort.algorithms.masking import Number, masked_var, zero_outside
from cohort.algorithms.signatures import Advantages


def gdpo(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    parts: Float[Tensor, "B K"],
    *,
    weights: Sequence[Number] | None = None,
    whiten: str = "rows",
    epsilon: Number = 1e-6,
) -> Advantages:
    """Group reward-Decoupled normalisation: a z-score in the group for each reward, then their weighted sum, whitened.

        z_ik = (s_ik - mean_k(group)) / (std_k(group) + epsilon)
        a_i  = sum_k w_k * z_ik
        A_i  = a_i / (std(a over the batch) + epsilon)

    Adding rewards first, as grpo does, lets different mixes of rewards share one advantage, and the reward with the
    largest spread decide. The mean of a over the batch is 0 by construction, so it is not subtracted again.

    NaN in a part says that this reward does not apply to the answer: it is left out of that part's mean and deviation
    and adds 0. Groups of one, and equal scores, add 0; rows of groups of one are kept out of the batch's deviation.

    ``epsilon`` is the same in both divisions and is added to the standard deviation, 1e-6 as in grpo. verl has 1e-6
    in the group and 1e-8 under the root at the end, ms-swift 1e-8 twice; the numbers agree to six digits unless a
    spread is tiny.

    Args:
        rewards: not used, as in verl and ms-swift: a KL in the reward would be lost, so configure it in the loss.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        parts: the scores of each reward, a column each; NaN where one does not apply.
        weights: a factor per column; None is 1 for each.
        whiten: ``rows``, the paper and ms-swift: each answer counts once in the batch's deviation. ``tokens``, verl:
            each token counts once, and their mean is subtracted, which moves also groups without any spread; rows of
            groups of one stay 0. ``none``: the sum as it is.
        epsilon: added to both standard deviations.

    Shapes: rewards and mask (B, T), group (B,), parts (B, K) -> (B, T) each.
    Paper: Liu et al. 2026, GDPO: Group reward-Decoupled Normalization Policy Optimization (2601.05242), its batch-wise
        advantage normalisation over the rollouts.
    Wrong choice when: there is one reward (use ``grpo``); when the size of a reward is meant to say how much it
        matters: here only ``weights`` do. A reward that is rarely non-constant gets the largest z-scores.

    Raises:
        ValueError: if there is not one weight per part, or for an unknown ``whiten``.
    """
    K = parts.shape[1]
    if weights is not None and len(weights) != K:
        raise ValueError(f"{len(weights)} weights for {K} reward parts: give one per part")
    scores = parts.detach()
    total = torch.zeros_like(scores[:, 0])
    for k, weight in enumerate([1.0] * K if weights is None else weights):
        applies = ~scores[:, k].isnan()
        statistics = group_statistics(scores[applies, k], group[applies])
        z = torch.zeros_like(total)
        z[applies] = statistics.deviation / (statistics.std + epsilon)
        total = total + weight * z
    siblings = has_siblings(total, group)
    if whiten == "none":
        return on_every_token(total, mask)
    if whiten == "rows":
        return on_every_token(total / (masked_var(total, siblings).sqrt() + epsilon), mask)
    if whiten == "tokens":
        compared = mask * siblings[:, None]
        advantages = zero_outside(masking.whiten(total[:, None] * compared, compared), compared)
        return Advantages(advantages=advantages, returns=advantages)
    raise ValueError(f"whiten {whiten!r} is not one of rows, tokens, none")
