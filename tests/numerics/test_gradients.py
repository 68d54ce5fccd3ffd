"""Gradients against finite differences, and where they must be exactly something."""

import math

import pytest
import torch

from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.masking import AGGREGATIONS, aggregate, counts, masked_var, whiten
from cohort.algorithms.ppo_loss import clipped
from cohort.algorithms.registry import POLICY_LOSSES
from tests.numerics.test_oracles import built_in

MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]], dtype=torch.float64)


def random(seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(MASK.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", built_in(POLICY_LOSSES))
@pytest.mark.parametrize("seed", range(3))
def test_policy_losses_against_finite_differences(name, mode, seed):
    log_probs = (random(seed) - 2).requires_grad_()
    old, advantages = log_probs.detach() + random(seed + 10, 0.5), random(seed + 20)

    def loss(x: torch.Tensor) -> torch.Tensor:
        per_token = POLICY_LOSSES[name].function(x, old, advantages, MASK).loss
        return aggregate(per_token, MASK, mode, counts(MASK), horizon=9)

    assert torch.autograd.gradcheck(loss, log_probs)


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


@pytest.mark.parametrize("junk", [0.5, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", built_in(POLICY_LOSSES))
def test_no_gradient_and_no_loss_off_the_mask(name, junk):
    off = MASK == 0
    log_probs, old, advantages = (random(seed).masked_fill(off, junk) for seed in (4, 5, 6))
    log_probs.requires_grad_()
    result = POLICY_LOSSES[name].function(log_probs, old, advantages, MASK)
    (gradient,) = torch.autograd.grad(result.loss.sum(), log_probs)
    for x in (gradient, result.loss, *result.diagnostics.values()):
        assert torch.equal(x[off], torch.zeros_like(x[off]))
    assert not any(x.requires_grad for x in result.diagnostics.values())


@pytest.mark.parametrize("options", [{}, {"clip_low": 0.0, "clip_high": 0.0}, {"dual_clip": None}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_update_per_rollout_is_exactly_reinforce(options, dtype):
    log_probs = (random(7, 5) - 4).to(dtype).requires_grad_()
    mask, advantages = MASK.to(dtype), random(8).to(dtype)
    result = clipped(log_probs, log_probs.detach(), advantages, mask, **options)
    assert torch.equal(result.loss, -advantages * mask)
    for name in ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower"):
        assert not result.diagnostics[name].any()
    (gradient,) = torch.autograd.grad(result.loss.sum(), log_probs)
    assert torch.equal(gradient, -advantages * mask)


def test_a_lost_token_does_not_overflow():
    log_probs = torch.tensor([[-1.0, -400.0]]).requires_grad_()
    result = clipped(log_probs, torch.tensor([[-400.0, -1.0]]), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2))
    result.loss.sum().backward()
    assert result.loss.isfinite().all()
    assert log_probs.grad is not None
    assert torch.equal(log_probs.grad, torch.zeros(1, 2))
    assert result.diagnostics["ppo_kl"].tolist() == [[-20.0, 20.0]]
    assert result.loss[0, 0].item() == 3.0  # the dual clip
