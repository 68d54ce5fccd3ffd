"""The built-in advantage estimators under each of their options, and what they are given in the property tests."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cohort.algorithms.registry import ADVANTAGES, Advantages
from cohort.algorithms.shaping import place
from tests.numerics.cases import Case

BY_ROW = ("group", "baseline", "parts")


def built_in_advantages() -> list[str]:
    return [name for name, entry in ADVANTAGES.items() if entry.function.__module__.startswith("cohort.")]


@dataclass(frozen=True)
class Evidence:
    """Whatever any estimator may ask for. Tensors by the name of the argument."""

    tensors: dict[str, Tensor]

    @property
    def mask(self) -> Tensor:
        return self.tensors["mask"]

    def rows(self, index: Tensor) -> "Evidence":
        return Evidence({name: x[index] for name, x in self.tensors.items()})

    def junk(self, value: float, *, rewards: bool) -> "Evidence":
        """``value`` wherever the mask is not set, in the rewards only if asked for."""
        spared = {"mask", *BY_ROW} | (set() if rewards else {"rewards"})
        off = self.mask == 0
        return Evidence({n: x if n in spared else x.masked_fill(off, value) for n, x in self.tensors.items()})

    def padded(self, width: int, value: float) -> "Evidence":
        def pad(name: str, x: Tensor) -> Tensor:
            fill = 0.0 if name in ("mask", "rewards") else value
            return x if name in BY_ROW else torch.cat([x, x.new_full((len(x), width), fill)], dim=1)

        return Evidence({name: pad(name, x) for name, x in self.tensors.items()})


def evidence(case: Case, scores: str = "dense") -> Evidence:
    """``dense`` rewards lie on every column, masked ones too; ``binary`` scores, 0 or 1, on the last model token."""
    g = torch.Generator().manual_seed(case.seed + 7)
    B, T = case.mask.shape

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    p = 0.05 + 0.7 * uniform(B, T)
    parts = (3 * uniform(B, 3)).round()
    parts[uniform(B, 3) < 0.2] = math.nan
    binary = place((uniform(B) < 0.5).double(), case.mask)
    return Evidence(
        {
            "rewards": case.rewards if scores == "dense" else binary,
            "mask": case.mask,
            "group": case.group,
            "values": 2 * uniform(B, T) - 1,
            "old_log_probs": p.log(),
            "sum_pi_squared": p**2 + uniform(B, T) * (1 - p) ** 2,
            "rollout_is_weights": 0.5 + uniform(B, T),
            "baseline": uniform(B),
            "parts": parts,
        }
    )


@dataclass(frozen=True)
class Variant:
    """An estimator with options; ``without`` are needs that are passed as None."""

    name: str
    options: dict = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{key}={value}" for key, value in self.options.items()] + [f"no {need}" for need in self.without]
        return "-".join([self.name, *parts])

    def arguments(self, given: Evidence) -> dict[str, Tensor | None]:
        names = ("rewards", "mask", "group", *ADVANTAGES[self.name].needs)
        return {name: None if name in self.without else given.tensors[name] for name in names}

    def __call__(self, given: Evidence) -> Advantages:
        return ADVANTAGES[self.name].function(**self.arguments(given), **self.options)


TOKEN_BASELINES = ("optimal_token_baseline", "tir_optimal_token_baseline")
VARIANTS = [
    *(Variant(name) for name in built_in_advantages()),
    *(
        Variant(name, {"scale": scale})
        for name in ("grpo", "rloo", "grpo_passk")
        for scale in ("group", "batch", "none")
    ),
    *(Variant("reinforce_plus_plus_baseline", {"scale": scale}) for scale in ("group", "batch", "none")),
    Variant("gpg", {"count": "gradients", "f_norm": 2.0}),
    *(Variant("gdpo", {"whiten": whiten, "weights": (1.0, 0.5, 2.0)}) for whiten in ("rows", "tokens", "none")),
    *(Variant("gae", {"gamma": gamma, "lam": lam, "whiten": False}) for gamma, lam in ((1, 1), (0.9, 0.95), (0.9, 0))),
    Variant("gae", {"gamma": 0.9, "lam": 0.95}),
    Variant("reinforce_plus_plus", {"gamma": 0.9}),
    Variant("reinforce_plus_plus", {"whiten": False}),
    *(Variant(name, {"handle_zero_tail": False}) for name in TOKEN_BASELINES),
    *(Variant(name, without=("rollout_is_weights",)) for name in TOKEN_BASELINES),
]
