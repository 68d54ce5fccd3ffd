"""What to do where the sampler's log-probs are not the trainer's: weigh the loss, or leave tokens out.

An answer was drawn from the sampler, and the update wants an average over the trainer's policy. With
lambda = log p_trainer - log p_sampler of a token, exp(lambda) makes up for it, within limits; and a token or an
answer that is too far off can be rejected. ``mismatch`` measures the distance, ``correction_settings`` names what
may be done, ``importance`` and ``rejection`` have the formulas, and this file does what a run's settings say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from cohort.algorithms.correction_settings import Correction
from cohort.algorithms.importance import ImportanceMetrics, importance_metrics, importance_weights
from cohort.algorithms.masking import zero_outside
from cohort.algorithms.mismatch import Mismatch, mismatch
from cohort.algorithms.rejection import RejectionMetrics, rejection, rejection_metrics
from cohort.algorithms.signatures import TokenLoss

__all__ = [
    "Bypass",
    "Corrected",
    "Mismatch",
    "correct",
    "importance_metrics",
    "importance_weights",
    "mismatch",
    "rejection",
    "rejection_metrics",
]


class Corrected(NamedTuple):
    """What ``correct`` returns.

    Attributes:
        weights: factor of each token's policy loss; None without importance weights   # (B, T)
        keep: 1.0 where a token trains; None without rejection rules                   # (B, T)
        importance: what the weights do; None without them.
        rejected: what the rules do; None without them.
    """

    weights: Float[Tensor, "B T"] | None
    keep: Float[Tensor, "B T"] | None
    importance: ImportanceMetrics | None
    rejected: RejectionMetrics | None

    def named(self) -> dict[str, Tensor]:
        """All scalars under the names they are logged by; those of ``mismatch`` come on top."""
        weights = self.importance.named() if self.importance is not None else {}
        return weights | (self.rejected.named() if self.rejected is not None else {})


def correct(
    old_log_probs: Float[Tensor, "B T"],
    rollout_log_probs: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    correction: Correction,
) -> Corrected:
    """Weights, kept tokens and numbers of a whole training batch, for a run that is not in bypass mode.

    The weights are those of the unreduced batch, as in verl: rejection does not change their mean.

    Args:
        old_log_probs: the trainer's, under the weights that sampled.
        rollout_log_probs: the sampler's.
        mask: 1 where the model wrote the token.
        correction: what to do.

    Shapes: (B, T) each -> (B, T) each, and scalars.
    Paper: those of ``importance_weights`` and ``rejection``.
    """
    arguments = (old_log_probs, rollout_log_probs, mask)
    options = _weight_options(correction)
    weighs, rejects = correction.is_level is not None, bool(correction.rules)
    return Corrected(
        weights=importance_weights(*arguments, **options) if weighs else None,
        keep=rejection(*arguments, correction.rules) if rejects else None,
        importance=importance_metrics(*arguments, **options) if weighs else None,
        rejected=rejection_metrics(*arguments, correction.rules) if rejects else None,
    )


@dataclass(frozen=True, kw_only=True)
class Bypass:
    """A policy loss against the sampler itself, for runs that skip the trainer's pass over old log-probs.

    It is called like the loss that it wraps, with the sampler's log-probs as the old ones. The ratios of the
    correction are those of the *current* policy: lambda = sg(log_probs) - rollout_log_probs, anew in every update.

        ppo_clip    wraps ``ppo_loss.clipped``: loss * keep. The clipped ratio is the correction.
        reinforce   wraps -A log_probs: loss * keep * w, w the importance weights.

    Rejected tokens lose their loss and keep their place in the divisor, which is known before the update.

    Paper: Yao et al. 2025 (fengyao.notion.site/off-policy-rl), the ratio of PPO taken to the sampler; ``reinforce``,
        truncated importance sampling on Williams 1992, REINFORCE.
    Wrong choice when: answers are used for several updates: one clip then has to bound both the distance to the
        sampler and that of the updates; with old log-probs of the trainer the two are kept apart.

    Attributes:
        policy_loss: the loss inside; its options bound.
        correction: weights and rules; ``loss`` says which of the two it is.
    """

    policy_loss: Callable[..., TokenLoss]
    correction: Correction

    def __call__(
        self,
        log_probs: Float[Tensor, "B T"],
        old_log_probs: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        mask: Float[Tensor, "B T"],
        **needs: Tensor,
    ) -> TokenLoss:
        """The loss of each token; ``old_log_probs`` are the sampler's."""
        inner = self.policy_loss(log_probs, old_log_probs, advantages, mask, **needs)
        keep = rejection(log_probs, old_log_probs, mask, self.correction.rules)
        loss, diagnostics = zero_outside(inner.loss, keep), dict(inner.diagnostics)
        if self.correction.rules:
            diagnostics["rollout_rs_masked_fraction"] = mask * (1 - keep)
        if self.correction.is_level is not None:
            weights = importance_weights(log_probs, old_log_probs, mask, **_weight_options(self.correction))
            loss, diagnostics["rollout_is_mean"] = loss * zero_outside(weights, keep), weights
        return TokenLoss(loss=loss, diagnostics=diagnostics)


def _weight_options(correction: Correction) -> dict:
    return {
        "level": correction.is_level,
        "threshold": correction.threshold,
        "window": correction.window,
        "window_level": correction.window_level,
        "batch_normalize": correction.batch_normalize,
    }
