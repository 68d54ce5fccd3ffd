"""Gradients of KL estimates and moments against finite differences; those of losses are in test_loss_gradients.py."""

import pytest
import torch

from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.masking import masked_var, whiten

MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]], dtype=torch.float64)


def random(seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(MASK.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


@pytest.mark.parametrize("kind", [kind for kind in KL_KINDS if not kind.endswith("+")])
def test_kl_kinds_against_finite_differences(kind):
    log_probs, reference = random(1).requires_grad_(), random(2)
    assert torch.autograd.gradcheck(lambda x: kl_penalty(x, reference, kind, MASK), log_probs)


@pytest.mark.parametrize("kind", [kind for kind in KL_KINDS if kind.endswith("+")])
def test_straight_through_kinds_have_the_gradient_of_k2(kind):
    log_probs, reference = random(1).requires_grad_(), random(2)
    (gradient,) = torch.autograd.grad(kl_penalty(log_probs, reference, kind).sum(), log_probs)
    (expected,) = torch.autograd.grad(kl_penalty(log_probs, reference, "k2").sum(), log_probs)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(
        kl_penalty(log_probs, reference, kind), kl_penalty(log_probs, reference, kind.removesuffix("+"))
    )


@pytest.mark.parametrize("function", [masked_var, whiten])
def test_moments_against_finite_differences(function):
    assert torch.autograd.gradcheck(lambda x: function(x, MASK), random(3).requires_grad_())
