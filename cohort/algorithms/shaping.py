"""From a score per answer to a reward per token: KL in the reward, reference blend, alignment with the gold answer.

They apply in this order, to training alone: metrics, validation and the choice of groups see the scores as they were.
Nothing here carries a gradient.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cohort.algorithms.group import group_statistics
from cohort.algorithms.kl import kl_penalty
from cohort.algorithms.masking import Number, masked_mean, masked_sum, masked_var, zero_outside
from cohort.algorithms.mismatch import largest, rows_with_a_token, share

NORM_SCOPES = ("sequence", "batch")
DISTRIBUTIONS = ("token", "mean", "last")
ALLOCATIONS = ("uniform", "last", "linear_tail", "entropy")
SIM_TRANSFORMS = ("none", "relu", "shifted")


def place(scores: Float[Tensor, "B"], mask: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each score on the last token that the model wrote, 0 elsewhere.

    Never on a tool's token or on padding, where some estimators would lose it. A row in which the
    model wrote nothing gets no reward: there is no token to credit, so such rows should not be scored.

    Shapes: scores (B,), mask (B, T) -> (B, T).
    """
    written = mask > 0
    count = written.cumsum(dim=1)
    last = written & (count == count[:, -1:])
    return torch.where(last, scores[:, None], torch.zeros_like(scores[:, None]))


def kl_in_reward(
    scores: Float[Tensor, "B T"],
    log_probs: Float[Tensor, "B T"],
    ref_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    coef: Number,
    kind: str,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B"]]:
    """Rewards less a penalty for leaving the reference: ``scores - coef * KL_t`` on the model's tokens.

    Only the value of the KL enters; nothing carries a gradient. The kind ``k1`` makes the policy
    gradient of the penalty that of KL(policy || reference); the others do not (see ``kl.py``).

    Args:
        scores: per-token scores.
        log_probs: log pi(token) of the policy that sampled.
        ref_log_probs: log pi_ref(token).
        mask: 1 where the model wrote the token.
        coef: beta.
        kind: a name of ``kl.KL_KINDS``.

    Returns:
        The rewards, and each row's mean KL per token (0 for a row without a token), which is what
        an adaptive coefficient is steered by and what ``actor/reward_kl_penalty`` averages.

    Shapes: (B, T) each -> (B, T), (B,).
    Paper: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences (1909.08593), equation 2.
    Wrong choice when: the estimator does not read rewards token by token or at all (gdpo), or divides by a group's
        deviation: the penalty is scaled with the score, and in a group of equal scores it alone decides.
    """
    kl = zero_outside(kl_penalty(log_probs, ref_log_probs, kind, mask), mask).detach()
    return scores - coef * kl * mask, masked_mean(kl, mask, axis=1)


class BlendStats(NamedTuple):
    """What the reference blend did, as scalars.

    Attributes:
        norm_mean: mean over tokens of the reference's normalised log-prob n, 0 to 1.
        degenerate_frac: share of answers whose log-probs do not differ, so that n is ``degenerate_value``.
        delta_seq_mean: how much an answer's total reward changed, averaged over answers.
    """

    norm_mean: Float[Tensor, ""]
    degenerate_frac: Float[Tensor, ""]
    delta_seq_mean: Float[Tensor, ""]

    def named(self) -> dict[str, Tensor]:
        """The scalars under the names they are logged by; ``actor/ref_blend/weight`` is the caller's."""
        return {f"actor/ref_blend/{name}": value for name, value in self._asdict().items()}


def reference_blend(
    rewards: Float[Tensor, "B T"],
    ref_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    weight: Number,
    *,
    norm_scope: str = "sequence",
    distribute: str = "token",
    degenerate_value: Number = 0.5,
    eps: Number = 1e-8,
) -> tuple[Float[Tensor, "B T"], BlendStats]:
    """Rewards mixed with how plausible the reference finds each token.

        n_t = (x_t - lo) / (hi - lo),   x the reference's log-probs, lo and hi their range (0 to 1)
        token   (1 - w) r_t + w n_t                         the formula as it was proposed
        mean    (1 - w) r_t + w n_t / (tokens of the answer)
        last    (1 - w) r_t, and w mean(n) on the last token

    ``token`` adds a sum over tokens to the answer's total, so it pays for length: an answer of 300 tokens gains
    about 150 w where its score is 0 or 1. Estimators that sum an answer's rewards (GRPO, RLOO) need ``mean`` or
    ``last``. Off the mask the rewards stay as they are.

    Args:
        rewards: per-token rewards, the KL penalty already in them.
        ref_log_probs: log pi_ref(token); what is not finite counts as ``lo``.
        mask: 1 where the model wrote the token.
        weight: w, 0 to 1; 0 gives the rewards back unchanged.
        norm_scope: ``sequence`` takes the range of each answer, which measures its shape and not its level;
            ``batch`` takes one range for all, which keeps the level.
        distribute: ``token``, ``mean`` or ``last``.
        degenerate_value: n where a range is below ``eps``, as in an answer of one token; 0.5 neither pays nor fines.
        eps: the least range.

    Shapes: (B, T) each -> (B, T), scalars.
    Paper: none; min-max scaling of log-likelihood as a dense reward, near to Ng et al. 1999, Policy Invariance under
        Reward Transformations (ICML), without their invariance.
    Wrong choice when: the policy should find what the reference would not say; ``token`` with a group baseline; as a
        leash on the policy: it is not a KL and does not hold it near the reference.

    Raises:
        ValueError: for an unknown option or a weight outside 0 to 1.
    """
    _check(norm_scope, NORM_SCOPES, "norm_scope")
    _check(distribute, DISTRIBUTIONS, "distribute")
    if not 0 <= weight <= 1:
        raise ValueError(f"the reference blend is a mean of two rewards: its weight is 0 to 1, got {weight}")
    rewards, x = rewards.detach(), ref_log_probs.detach()
    usable = (mask > 0) & x.isfinite()
    axis = (1,) if norm_scope == "sequence" else (0, 1)
    lo = torch.where(usable, x, torch.inf).amin(dim=axis, keepdim=True)
    hi = torch.where(usable, x, -torch.inf).amax(dim=axis, keepdim=True)
    degenerate = ~(hi - lo >= eps)
    spread = torch.where(degenerate, torch.ones_like(hi), hi - lo)
    scaled = torch.where(usable, (x - lo) / spread, torch.zeros_like(x))
    n = zero_outside(torch.where(degenerate, torch.full_like(x, degenerate_value), scaled), mask)

    rows = rows_with_a_token(mask)
    if distribute == "token":
        term = n
    elif distribute == "mean":
        term = n / (mask > 0).sum(dim=1, keepdim=True).clamp(min=1)
    else:
        term = place(masked_mean(n, mask, axis=1), mask)
    blended = torch.where(mask > 0, (1 - weight) * rewards + weight * term, rewards) if weight else rewards
    return blended, BlendStats(
        norm_mean=masked_mean(n, mask),
        degenerate_frac=share(degenerate[:, 0].expand_as(rows), rows),
        delta_seq_mean=masked_mean((blended - rewards).sum(dim=1), rows),
    )


class EntropyGate(NamedTuple):
    """Whether the policy is undecided enough for a hint.

    Attributes:
        is_open: the mean entropy has reached the threshold.
        avg_entropy: mean entropy per token of the batch, in nats.
    """

    is_open: Bool[Tensor, ""]
    avg_entropy: Float[Tensor, ""]


def entropy_gate(entropy: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], threshold: Number) -> EntropyGate:
    """Open while the policy's mean entropy per token is at least ``threshold``.

        open = mean of H_t over the mask >= threshold

    Args:
        entropy: of the policy that sampled, temperature applied, of the *whole* batch, so that all ranks decide alike.
        mask: 1 where the model wrote the token.
        threshold: in nats; reaching it is enough.

    Shapes: (B, T) each -> scalars.
    Paper: none; cf. Cui et al. 2025, The Entropy Mechanism of RL for Reasoning LMs (2505.22617), for what entropy says.
    Wrong choice when: the threshold is that of another model or temperature: entropies of large models lie below 1.
    """
    average = masked_mean(entropy.detach(), mask)
    return EntropyGate(is_open=(average >= threshold) & (mask > 0).any(), avg_entropy=average)


def gold_similarity(
    answers: Float[Tensor, "B D"],
    golds: Float[Tensor, "B K D"],
    gold_mask: Float[Tensor, "B K"],
    *,
    eps: Number = 1e-8,
) -> Float[Tensor, "B"]:
    """Cosine of each answer's pooled hidden state with that of its nearest gold answer, -1 to 1.

        sim_i = max_k  h_i . g_ik / (|h_i| |g_ik|)

    Args:
        answers: mean last hidden state over the answer's tokens; 0 for an empty answer.
        golds: the same of each gold answer, under the same prompt and encoder.
        gold_mask: 1 where there is one; a row without any has similarity 0.
        eps: least norm; anything shorter has similarity 0.

    Shapes: (B, D), (B, K, D), (B, K) -> (B,).
    Paper: none; cosine of mean-pooled states, Reimers and Gurevych 2019, Sentence-BERT (1908.10084), section 3.
    Wrong choice when: the states are those of a causal model's last layer under a long prompt: their cosines are all
        near 1 (Ethayarajh 2019, 1909.00512), and a fluent wrong answer is as near as a right one. Watch ``sim_std``.
    """
    answers, golds = _wide(answers.detach()), _wide(golds.detach())
    answer_norm, gold_norm = answers.norm(dim=-1)[:, None], golds.norm(dim=-1)  # (B, 1), (B, K)
    usable = (gold_mask > 0) & (answer_norm > eps) & (gold_norm > eps)
    product = (answers[:, None, :] * golds).sum(dim=-1)
    cosine = product / torch.where(usable, answer_norm * gold_norm, torch.ones_like(gold_norm))
    nearest = torch.where(usable, cosine, -torch.inf).amax(dim=1)
    return torch.where(usable.any(dim=1), nearest.clamp(-1, 1), torch.zeros_like(nearest))


class AlignmentStats(NamedTuple):
    """What the alignment bonus did, as scalars over the answers that have a token.

    Attributes:
        sim_mean: mean similarity, before any transform.
        sim_std: its unbiased standard deviation: near 0, the bonus tells answers apart by noise.
        sim_min: the least similarity.
        sim_max: the largest.
        bonus_mean: mean of an answer's whole bonus.
    """

    sim_mean: Float[Tensor, ""]
    sim_std: Float[Tensor, ""]
    sim_min: Float[Tensor, ""]
    sim_max: Float[Tensor, ""]
    bonus_mean: Float[Tensor, ""]

    def named(self) -> dict[str, Tensor]:
        """The scalars under the names they are logged by; weight, gate and entropy are the caller's."""
        return {f"actor/repr/ref_gold_align/{name}": value for name, value in self._asdict().items()}


def alignment_bonus(
    rewards: Float[Tensor, "B T"],
    similarity: Float[Tensor, "B"],
    mask: Float[Tensor, "B T"],
    weight: Number,
    *,
    allocation: str = "uniform",
    entropy: Float[Tensor, "B T"] | None = None,
    sim_transform: str = "none",
    group: Int[Tensor, "B"] | None = None,
) -> tuple[Float[Tensor, "B T"], AlignmentStats]:
    """Rewards plus ``weight * similarity`` per answer, spread over its tokens.

    An answer's bonus is the same whatever its length: each allocation sums to 1 over the tokens of the model.

        uniform       1 / tokens
        last          all of it on the last token
        linear_tail   2 k / (tokens (tokens + 1)) for the k-th token
        entropy       in proportion to H_t: where the policy decided something; uniform if all H_t are 0

    Args:
        rewards: per-token rewards.
        similarity: of the answer with the gold answer, -1 to 1.
        mask: 1 where the model wrote the token; a row without one gets no bonus.
        weight: the applied weight: 0 while the gate is closed, which gives the rewards back unchanged.
        allocation: one of the above. All are the same to estimators that sum an answer's rewards.
        entropy: H_t of the policy that sampled, in nats; needed by ``entropy``.
        sim_transform: ``none``; ``relu``, max(0, sim); ``shifted``, (1 + sim) / 2.
        group: which group a row is in; given, the group's mean bonus is taken off. A group baseline does that anyway.

    Shapes: rewards, mask, entropy (B, T), similarity and group (B,) -> (B, T), scalars.
    Paper: none; the bonus is a potential-free shaping term, cf. Ng et al. 1999 (ICML).
    Wrong choice when: there is no single right wording: it rewards sounding like the gold answer, not being right.

    Raises:
        ValueError: for an unknown option, a negative weight, or ``entropy`` without entropies.
    """
    _check(allocation, ALLOCATIONS, "allocation")
    _check(sim_transform, SIM_TRANSFORMS, "sim_transform")
    if weight < 0:
        raise ValueError(f"the weight of the alignment bonus must not be negative, got {weight}")
    rewards, similarity = rewards.detach(), similarity.detach().to(rewards.dtype)
    rows = rows_with_a_token(mask).to(rewards.dtype)
    transformed = {"none": similarity, "relu": similarity.clamp(min=0), "shifted": (1 + similarity) / 2}[sim_transform]
    if group is not None:
        transformed = group_statistics(transformed, group).deviation
    bonus = weight * transformed * rows
    spread = _allocation(mask, allocation, entropy).to(rewards.dtype)
    shaped = rewards + bonus[:, None] * spread if weight else rewards
    return shaped, AlignmentStats(
        sim_mean=masked_mean(similarity, rows),
        sim_std=masked_var(similarity, rows).sqrt(),
        sim_min=-largest(-similarity, rows),
        sim_max=largest(similarity, rows),
        bonus_mean=masked_mean(bonus, rows),
    )


def _allocation(mask: Tensor, allocation: str, entropy: Tensor | None) -> Tensor:
    """Shares of the tokens of each row; they sum to 1, or to 0 in a row without a token  # (B, T)."""
    written = (mask > 0).to(mask.dtype)
    if allocation == "last":
        return place(torch.ones_like(mask[:, 0]), mask)
    if allocation == "linear_tail":
        parts = written * written.cumsum(dim=1)
    elif allocation == "entropy":
        if entropy is None:
            raise ValueError("allocation 'entropy' needs the entropy of each token")
        parts = zero_outside(entropy.detach(), mask).clamp(min=0)
        parts = torch.where(parts.sum(dim=1, keepdim=True) > 0, parts, written)
    else:
        parts = written
    total = masked_sum(parts, written, axis=1)[:, None]
    return parts / torch.where(total > 0, total, torch.ones_like(total))


def _wide(x: Tensor) -> Tensor:
    """At least float32: sums over the width of a model lose too much in 16 bits."""
    return x if x.dtype == torch.float64 else x.float()


def _check(value: str, legal: tuple[str, ...], name: str) -> None:
    if value not in legal:
        raise ValueError(f"{name} {value!r} is not one of {', '.join(legal)}")
