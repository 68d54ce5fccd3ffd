"""What a run does about the distance between sampler and trainer, before advantages are computed."""

from __future__ import annotations

from dataclasses import replace

from cohort.algorithms.correction import correct
from cohort.algorithms.correction_settings import Correction
from cohort.metrics import Last, Metrics
from cohort.trainer.evidence import Evidence


class SamplerCorrection:
    """Importance weights and rejected tokens of the whole batch; under bypass the policy loss does both itself.

    Args:
        settings: what to do; see ``algorithms/correction_settings.py``.
    """

    def __init__(self, settings: Correction) -> None:
        self.settings = settings
        self.bypass = settings.bypass
        self.needs = frozenset[str]() if settings.bypass else frozenset({"old_log_probs"})

    def __call__(self, evidence: Evidence) -> tuple[Evidence, Metrics]:
        """The evidence with ``keep`` and ``weights``, and what they do to the batch."""
        if self.bypass:
            return evidence, {}
        batch = evidence.batch
        corrected = correct(evidence.old_log_probs, batch.rollout_log_probs, batch.mask, self.settings)
        keep = evidence.keep
        if corrected.keep is not None:
            keep = corrected.keep if keep is None else keep * corrected.keep
        metrics: Metrics = {name: Last(float(value)) for name, value in corrected.named().items()}
        return replace(evidence, keep=keep, weights=corrected.weights), metrics
