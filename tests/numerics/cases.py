"""Random cases for the property tests: uneven groups, interior holes in the mask, rows without a token."""

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

settings.register_profile("numerics", deadline=None, derandomize=True, max_examples=25)
NUMERICS = settings.get_profile("numerics")


@dataclass
class Case:
    """One minibatch in float64."""

    log_probs: Tensor
    old_log_probs: Tensor
    ref_log_probs: Tensor
    advantages: Tensor
    rewards: Tensor
    mask: Tensor
    group: Tensor
    seed: int

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + 1)

    def rows(self, index: Tensor) -> "Case":
        return Case(**{k: v[index] if isinstance(v, Tensor) else v for k, v in vars(self).items()})

    def padded(self, width: int, value: float) -> "Case":
        """Every (B, T) tensor wider by ``width``; ``value`` stands in the new columns, 0 in those of the mask."""

        def pad(name: str, x: Tensor) -> Tensor:
            if not isinstance(x, Tensor) or x.ndim == 1:
                return x
            fill = 0.0 if name in ("mask", "rewards") else value
            return torch.cat([x, torch.full((x.shape[0], width), fill, dtype=x.dtype)], dim=1)

        return Case(**{name: pad(name, x) for name, x in vars(self).items()})


@st.composite
def cases(draw, max_rows: int = 7, max_width: int = 6, full_mask: bool = False) -> Case:
    seed = draw(st.integers(0, 10_000))
    B, T = draw(st.integers(1, max_rows)), draw(st.integers(1, max_width))
    groups = draw(st.integers(1, B))
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return torch.randn(B, T, generator=generator, dtype=torch.float64) * scale

    mask = (torch.rand(B, T, generator=generator) < draw(st.sampled_from([0.2, 0.6, 0.95]))).double()
    log_probs = normal(1.0) - 2
    return Case(
        log_probs=log_probs,
        old_log_probs=log_probs + normal(0.6),
        ref_log_probs=log_probs + normal(1.0),
        advantages=normal(1.0),
        rewards=normal(1.0),
        mask=torch.ones_like(mask) if full_mask else mask,
        group=torch.randint(0, groups, (B,), generator=generator) * 3 - 4,  # neither from 0 nor consecutive
        seed=seed,
    )
