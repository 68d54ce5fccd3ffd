"""Advantages from a value model."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cohort.algorithms import masking
from cohort.algorithms.masking import Number, zero_outside
from cohort.algorithms.signatures import Advantages


def gae(
    rewards: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    group: Int[Tensor, "B"],
    values: Float[Tensor, "B T"],
    *,
    gamma: Number = 1.0,
    lam: Number = 1.0,
    whiten: bool = True,
) -> Advantages:
    """Generalized Advantage Estimation, from the last token that the model wrote to the first.

        delta_t = r_t + gamma * V_next - V_t
        A_t     = delta_t + gamma * lam * A_next
        returns = A_t + V_t

    "next" is the next token that the *model* wrote: tool output and padding in between are carried over, cost no
    discount, and their values count for nothing. After the last one both are 0. lam = 1 is Monte Carlo (returns less
    value), lam = 0 the one-step TD error. Returns are taken before whitening.

    A reward on a column outside the mask is dropped: there is no token to credit. Scores have to lie on tokens of the
    model, where ``shaping.place`` puts them.

    Args:
        rewards: per-token rewards.
        mask: 1 where the model wrote the token.
        group: not used; the baseline is the value model.
        values: V of the state before token t.
        gamma: discount per token of the model.
        lam: how far an error is trusted to reach back.
        whiten: scale the batch's advantages to mean 0 and variance 1 over the mask, as PPO implementations do.

    Shapes: rewards, mask and values (B, T), group (B,) -> (B, T) each, 0 outside the mask.
    Paper: Schulman et al. 2015, High-Dimensional Continuous Control Using GAE (1506.02438), equation 16; Schulman
        et al. 2017, PPO (1707.06347), equations 11 and 12. Whitening: Engstrom et al. 2020 (2005.12729), section 2.
    Wrong choice when: there is no trained value model or it costs too much: an untrained one at lam < 1 is bias.
        gamma < 1 makes the first tokens of long answers count for nothing (0.99 over 500 tokens is 0.007).
        ``whiten`` makes the update as large as ever when all answers are alike and only noise is left.
    """
    on = mask > 0
    V = zero_outside(values, mask).detach()
    r = zero_outside(rewards, mask).detach()
    advantages = torch.zeros_like(V)
    advantage, next_value = torch.zeros_like(V[:, 0]), torch.zeros_like(V[:, 0])
    for t in reversed(range(V.shape[1])):
        delta = r[:, t] + gamma * next_value - V[:, t]
        advantage = torch.where(on[:, t], delta + gamma * lam * advantage, advantage)
        next_value = torch.where(on[:, t], V[:, t], next_value)
        advantages[:, t] = advantage
    returns = zero_outside(advantages + V, mask)
    if whiten:
        advantages = masking.whiten(advantages, mask)
    return Advantages(advantages=zero_outside(advantages, mask), returns=returns)
