"""A baseline for each token: the group's returns, weighted by how uncertain each answer has been so far."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms.grouping import group_max, group_min, group_sum
from cohort.algorithms.masking import zero_outside
from cohort.algorithms.reinforce import discounted_returns
from cohort.algorithms.signatures import Advantages


def optimal_token_baseline(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    old_log_probs: Float[Tensor, "B T"],
    sum_pi_squared: Float[Tensor, "B T"],
    rollout_is_weights: Float[Tensor, "B T"] | None = None,
    *,
    handle_zero_tail: bool = True,
) -> Advantages:
    """Optimal token baseline: at each position the baseline of the least variance, estimated from the group.

        G_t = sum_{k >= t} r_k
        w_t = 1 - 2 * pi_old(token_t) + sum_v pi_old(v)^2,   W_t = sum_{k <= t} w_k
        b_t = sum_j G_jt * W_jt / sum_j W_jt                 over the answers j of the group with a token at t
        A_t = G_t - b_t

    w_t is the squared norm of the gradient of log pi(token_t) in the logits. With importance weights rho against the
    sampler, w_t is multiplied by rho_t^2. "Position" is the column: where tool output makes columns of different
    answers incomparable, use ``tir_optimal_token_baseline``.

    Past the end of the second longest answer, the longest has only itself to compare with, and A would be 0 there.
    ``handle_zero_tail`` gives those tokens the plain return instead (baseline 0), as verl does; it is unbiased, and
    not centred: the end of the longest answer is pushed by its raw score. Ends are columns here, so the rule holds
    with holes in the mask too (verl compares a count of tokens with a column). Groups of one have advantage 0; verl
    gives them their return. A reward outside the mask is dropped: scores have to lie on tokens of the model, where
    ``shaping.place`` puts them.

    Args:
        rewards: per-token rewards.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        old_log_probs: log pi_old(token).
        sum_pi_squared: sum over the vocabulary of pi_old(v)^2.
        rollout_is_weights: rho of each token against the sampler, or None.
        handle_zero_tail: see above.

    Shapes: per token (B, T), group (B,) -> (B, T) each, 0 outside the mask.
    Paper: Li et al. 2026, The Optimal Token Baseline (2602.07078), its baseline with the logit-gradient proxy; the
        tail rule is verl's.
    Wrong choice when: groups are large and answers short, where a group mean does as well without the extra
        statistics; when answers to one prompt have little in common position by position.
    """
    returns = discounted_returns(rewards, mask, 1.0)
    energy = realized_energy(old_log_probs, sum_pi_squared, rollout_is_weights, mask)
    advantages = less_baseline(returns, energy, mask, group, handle_zero_tail)
    return Advantages(advantages=advantages, returns=returns)


def tir_optimal_token_baseline(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    old_log_probs: Float[Tensor, "B T"],
    sum_pi_squared: Float[Tensor, "B T"],
    rollout_is_weights: Float[Tensor, "B T"] | None = None,
    *,
    handle_zero_tail: bool = True,
) -> Advantages:
    """The optimal token baseline for answers with tool output in them: position t is the t-th token the model wrote.

        b_t = sum_j G_jt * W_jt / sum_j W_jt       t counts the tokens of the model, over answers j with a t-th one
        A_t = G_t - b_t

    G and W are those of ``optimal_token_baseline`` on rows from which all other columns are taken out; the
    result is put back where the tokens were. On masks without holes the two are the same.

    Args:
        rewards: per-token rewards.
        mask: 1 where the model wrote the token.
        group: which group a row belongs to.
        old_log_probs: log pi_old(token).
        sum_pi_squared: sum over the vocabulary of pi_old(v)^2.
        rollout_is_weights: rho of each token against the sampler, or None.
        handle_zero_tail: see ``optimal_token_baseline``.

    Shapes: per token (B, T), group (B,) -> (B, T) each, 0 outside the mask.
    Paper: Li et al. 2026, The Optimal Token Baseline (2602.07078), for tool-integrated reasoning.
    Wrong choice when: as ``optimal_token_baseline``; and when turns of different answers differ in length, because
        the t-th tokens then belong to different turns.
    """
    returns = discounted_returns(rewards, mask, 1.0)
    energy = realized_energy(old_log_probs, sum_pi_squared, rollout_is_weights, mask)
    order = torch.argsort((mask <= 0).to(torch.int8), dim=1, stable=True)
    packed_returns, packed_energy, packed_mask = (x.gather(1, order) for x in (returns, energy, mask))
    advantages = less_baseline(packed_returns, packed_energy, packed_mask, group, handle_zero_tail)
    return Advantages(advantages=torch.zeros_like(advantages).scatter(1, order, advantages), returns=returns)


def realized_energy(
    old_log_probs: Float[Tensor, "B T"],
    sum_pi_squared: Float[Tensor, "B T"],
    rollout_is_weights: Float[Tensor, "B T"] | None,
    mask: Float[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """W_t: the squared gradient norms in the logits, ``1 - 2 pi(token) + sum pi^2``, summed up to token t.

    Rounding can make a norm of 0 slightly negative; the sum is kept from following it, so that b_t stays a mean.

    Shapes: (B, T) each -> (B, T), 0 outside the mask, no gradient.
    Paper: Li et al. 2026, The Optimal Token Baseline (2602.07078), its logit-gradient proxy.
    """
    norms = 1 - 2 * zero_outside(old_log_probs, mask).exp() + zero_outside(sum_pi_squared, mask)
    if rollout_is_weights is not None:
        norms = norms * zero_outside(rollout_is_weights, mask) ** 2
    return zero_outside(zero_outside(norms, mask).cumsum(dim=1).clamp(min=0), mask).detach()


def less_baseline(
    returns: Float[Tensor, "B T"],
    energy: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    handle_zero_tail: bool,
) -> Float[Tensor, "B T"]:
    """Returns less the group's mean at each column, weighted by the energy of its rows.

    Shapes: (B, T) each, group (B,) -> (B, T), 0 outside the mask.
    Paper: Li et al. 2026, The Optimal Token Baseline (2602.07078).
    """
    written = mask > 0
    # Measured from the least return at the column, equal returns give exactly 0, and so does a row alone.
    least = group_min(torch.where(written, returns, torch.inf), group)
    above = torch.where(written, returns - least, torch.zeros_like(returns))
    baseline = group_sum(above * energy, group) / (group_sum(energy, group) + 1e-8)
    advantages = zero_outside(above - baseline, mask)
    if not handle_zero_tail:
        return advantages
    column = torch.ones_like(mask).cumsum(dim=1)
    end = torch.where(written, column, torch.zeros_like(column)).amax(dim=1)
    longest = end == group_max(end, group)
    count = group_sum(longest.to(mask.dtype), group)
    size = group_sum(torch.ones_like(end), group)
    second = group_max(torch.where(longest, torch.zeros_like(end), end), group)
    tail = (longest & (count == 1) & (size > 1))[:, None] & (column > second[:, None])
    return torch.where(tail & written, returns, advantages)
