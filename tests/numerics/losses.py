"""What the tests of policy losses share: which options each is tried with, and how one is called."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.algorithms.registry import POLICY_LOSSES, TokenLoss
from tests.numerics.cases import Case
from tests.numerics.test_oracles import built_in

# Options beside the defaults, by entry. On small batches the covariance losses need wide bounds to pick anything, and
# the sequence losses wide ranges not to clip everything.
OPTIONS: dict[str, list[dict]] = {
    "vanilla": [{"clip_high": 0.5, "dual_clip": None}, {"delta": 1.4, "dual_clip": None}, {"delta": 4.0}],
    "gspo": [{"clip_low": 0.2, "clip_high": 0.3}],
    "gspo_token": [{"clip_low": 0.2, "clip_high": 0.3}],
    "geo_mean": [{"clip_low": 0.1, "clip_high": 0.3}],
    "cispo": [{"clip_low": 0.2, "clip_high": 0.2}, {"ratio_cap": 1.2}],
    "dro": [{"beta": 0.1}],
    "sapo": [{"tau_pos": 2.0, "tau_neg": 0.3}],
    "dppo_tv": [{"clip_low": 0.01, "clip_high": 0.05, "ratio_cap": 1.1}],
    "dppo_kl": [{"clip_low": 0.001, "clip_high": 0.01, "ratio_cap": 1.1}],
    "clip_cov": [{"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 2.0, "clip_high": 0.4}],
    "kl_cov": [{"kl_cov_ratio": 0.4, "ppo_kl_coef": 0.7}],
}
SELECT_ONLY = {"clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio"}


@dataclass(frozen=True)
class Variant:
    """A policy loss with some of its options."""

    name: str
    options: dict

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def select(self, log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, uniforms: Tensor) -> dict:
        """The choice over these rows as the argument that the loss takes; nothing where it makes none."""
        choose = POLICY_LOSSES[self.name].select
        if choose is None:
            return {}
        return {"selected": choose(log_probs, old, advantages, mask, uniforms, **self.options)}

    def __call__(self, log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, **selected) -> TokenLoss:
        return POLICY_LOSSES[self.name].function(log_probs, old, advantages, mask, **selected, **self.options)

    @property
    def oracle_options(self) -> dict:
        return {key: value for key, value in self.options.items() if key not in SELECT_ONLY}


DEFAULTS = [Variant(name, {}) for name in built_in(POLICY_LOSSES)]
VARIANTS = DEFAULTS + [Variant(name, options) for name in OPTIONS for options in OPTIONS[name]]
# One per entry, with options under which a small batch has clipped and picked tokens.
TELLING = [Variant(name, OPTIONS.get(name, [{}])[-1]) for name in built_in(POLICY_LOSSES)]


def uniforms_of(case: Case) -> Tensor:
    """Chance that belongs to a token, wherever its row stands and whatever stands off the mask."""
    return (case.ref_log_probs * 1000).abs() % 1


def random(mask: Tensor, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
