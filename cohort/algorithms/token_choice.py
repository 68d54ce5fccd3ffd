"""Which tokens train, where that is a choice of its own and not of a loss. No result carries a gradient."""

import torch
from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.masking import Number, masked_mean, zero_outside


def entropy_threshold(
    entropy: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], quantile: Number = 0.2
) -> Float[Tensor, ""]:
    """The entropy that the top ``quantile`` of the tokens reach; NaN where there are no tokens.

    Between two tokens it is interpolated linearly. Logged as ``entropy/threshold``.

    Args:
        entropy: entropy of the policy at each token, in nats.
        mask: 1 where the model wrote the token.
        quantile: share of the tokens at or above the threshold, in (0, 1].

    Shapes: (B, T), (B, T) -> ().
    Paper: Wang et al. 2025, Beyond the 80/20 Rule (2506.01939), its threshold on entropy.

    Raises:
        ValueError: for a quantile out of (0, 1].
    """
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile is the share of tokens that is kept, in (0, 1], got {quantile}")
    values = entropy.detach()[mask > 0].sort().values  # torch.quantile refuses more than 2^24 values
    if not len(values):
        return entropy.new_full((), torch.nan)
    # Rounded, because (1 - 0.7) * 10 is a little more than 3 and would drop the token it should end at.
    position = round((1 - quantile) * (len(values) - 1), 9)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])


def top_entropy_mask(
    entropy: Float[Tensor, "B T"], mask: Float[Tensor, "B T"], quantile: Number = 0.2
) -> Float[Tensor, "B T"]:
    """1 at the tokens where the policy is least sure: the forking points of a chain of thought.

        keep = entropy >= threshold of the top quantile

    The threshold is taken over everything that is passed in: pass the whole update minibatch. It is a factor of the
    policy loss (``Experience.weights``) and no change of the mask: denominators do not shrink, KL and entropy terms
    stay on all tokens. ms-swift takes the threshold within each micro-batch, so there it moves with memory settings.

    Args:
        entropy: entropy of the policy at each token, in nats; only its order matters.
        mask: 1 where the model wrote the token.
        quantile: share of the tokens to keep, in (0, 1]; equal entropies at the threshold are all kept.

    Shapes: (B, T), (B, T) -> (B, T), 0 off the mask.
    Paper: Wang et al. 2025, Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning
        (2506.01939), its modified objective.
    Wrong choice when: the model is small: the paper gains at 32 billion parameters and hardly at 8. When the policy
        must unlearn something it is sure of, those tokens never train.

    Raises:
        ValueError: for a quantile out of (0, 1].
    """
    threshold = entropy_threshold(entropy, mask, quantile)
    return ((entropy.detach() >= threshold) & (mask > 0)).to(mask.dtype)


def off_policy_rows(
    log_probs: Float[Tensor, "B T"],
    behaviour_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    delta: Number,
) -> Float[Tensor, "B T"]:
    """0 at what DeepSeek-V3.2 leaves out: negative advantages of answers that the policy would hardly write any more.

        D_i     = mean_t(behaviour_log_probs - log_probs)
        keep_it = 0 where A_it < 0 and D_i > delta;   1 elsewhere on the mask

    An answer has one advantage in group methods, and the choice is then one of whole rows. In the paper it is a
    factor of the loss (``Experience.weights``), and denominators keep counting what was left out; taken into
    ``Experience.keep`` instead they do not.

    Args:
        log_probs: log pi(token) of the current policy.
        behaviour_log_probs: those of the policy that sampled; the sampler's own if it reports them.
        advantages: A_t.
        mask: 1 where the model wrote the token.
        delta: the largest mean log-ratio, in nats per token.

    Shapes: (B, T) each -> (B, T), 0 off the mask.
    Paper: DeepSeek-AI 2025, DeepSeek-V3.2 (2512.02556), section 3.1, off-policy sequence masking.
    Wrong choice when: one update is made of fresh rollouts: D is then the mismatch of sampler and trainer, for which
        there are rules of its own in the correction of the sampler.

    Raises:
        ValueError: for a negative delta.
    """
    if not delta >= 0:
        raise ValueError(f"delta must not be negative, got {delta}")
    log_probs, behaviour_log_probs = zero_outside(log_probs.detach(), mask), zero_outside(behaviour_log_probs, mask)
    distance = masked_mean(behaviour_log_probs.detach() - log_probs, mask, axis=1)[:, None]
    dropped = (advantages < 0) & (distance > delta)
    return ((mask > 0) & ~dropped).to(mask.dtype)
