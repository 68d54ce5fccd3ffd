"""Gradients of the losses: against finite differences, on policy, off the mask, and far off the policy."""

import math

import pytest
import torch
from hypothesis import given
from torch import Tensor

from cohort.algorithms.masking import aggregate, counts
from cohort.algorithms.ppo_loss import clipped
from cohort.algorithms.registry import POLICY_LOSSES
from cohort.algorithms.sequence_loss import gspo, gspo_token
from cohort.algorithms.value_loss import clipped_value_loss
from tests.numerics import oracles_losses as oracles
from tests.numerics.cases import NUMERICS, Case, cases
from tests.numerics.losses import DEFAULTS, TELLING, VARIANTS, Variant, random, uniforms_of

MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]], dtype=torch.float64)
STEP = 1e-6
OF_ANSWER = {"gspo", "geo_mean"}  # all tokens of an answer get the same gradient


def difference_quotients(total, at: Tensor, mask: Tensor) -> Tensor:
    """Central differences of ``total(x)`` at every written token; NaN next to a kink, where the sides disagree."""
    middle = total(at)
    quotients = torch.zeros_like(at)
    for i, t in (mask > 0).nonzero().tolist():
        shift = torch.zeros_like(at)
        shift[i, t] = STEP
        above, below = total(at + shift), total(at - shift)
        smooth = abs(above - 2 * middle + below) < 1e-3 * STEP * (1 + abs(above - below) / STEP)
        quotients[i, t] = (above - below) / (2 * STEP) if smooth else math.nan
    return quotients


def check(total, gradient: Tensor, at: Tensor, mask: Tensor) -> None:
    expected = difference_quotients(total, at, mask)
    kinks = expected.isnan()
    assert kinks.sum() <= 1
    torch.testing.assert_close(gradient[~kinks], expected[~kinks], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@NUMERICS
@given(case=cases(max_rows=4, max_width=5))
def test_against_finite_differences_of_the_paper(variant: Variant, case: Case):
    """Differences of the literal transcription, its stopped parts held still: also where the gradient is defined so."""
    at, old = -case.log_probs.abs(), -case.old_log_probs.abs()
    picks = variant.select(at, old, case.advantages, case.mask, uniforms_of(case))
    weights = case.rewards  # a factor of its own at every token
    fixed = {name: x.tolist() for name, x in picks.items()} | variant.oracle_options

    def total(x: Tensor) -> float:
        tables = [y.tolist() for y in (x, old, case.advantages, case.mask)]
        losses = oracles.POLICY_LOSSES[variant.name](*tables, stopped=at.tolist(), **fixed)
        rows = zip(losses, weights.tolist(), strict=True)
        return math.fsum(a * b for row, factors in rows for a, b in zip(row, factors, strict=True))

    log_probs = at.clone().requires_grad_()
    loss = variant(log_probs, old, case.advantages, case.mask, **picks).loss
    (gradient,) = torch.autograd.grad((loss * weights).sum(), log_probs)
    check(total, gradient, at, case.mask)


@NUMERICS
@given(case=cases(max_rows=4, max_width=5))
def test_value_loss_against_finite_differences(case: Case):
    def loss(values: Tensor) -> Tensor:
        return (clipped_value_loss(values, case.old_log_probs, case.rewards, case.mask).loss * case.advantages).sum()

    values = case.log_probs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(values), values)
    check(lambda x: loss(x).item(), gradient, case.log_probs, case.mask)


@pytest.mark.parametrize("junk", [0.5, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_no_gradient_and_no_loss_off_the_mask(variant: Variant, junk: float):
    off = MASK == 0
    log_probs, old, advantages, uniforms = (random(MASK, seed).masked_fill(off, junk) for seed in (4, 5, 6, 7))
    log_probs.requires_grad_()
    picks = variant.select(log_probs, old, advantages, MASK, uniforms)
    for x in picks.values():
        assert not x.requires_grad
        assert not x[off].any()
    picks = {name: x.masked_fill(off, junk) for name, x in picks.items()}
    result = variant(log_probs, old, advantages, MASK, **picks)
    (gradient,) = torch.autograd.grad(result.loss.sum(), log_probs)
    for x in (gradient, result.loss, *result.diagnostics.values()):
        assert torch.equal(x[off], torch.zeros_like(x[off]))
        assert x.isfinite().all()
    assert not any(x.requires_grad for x in result.diagnostics.values())


# --- on policy: the ratio is 1 -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@NUMERICS
@given(case=cases())
def test_one_update_per_rollout_has_the_gradient_of_reinforce(variant: Variant, case: Case):
    """Per token; where an answer has one ratio, for one advantage per answer and a weight that is constant in it."""
    advantages = case.advantages
    if variant.name in OF_ANSWER:
        advantages = advantages[:, :1].expand_as(case.mask)
    log_probs = -case.log_probs.abs().requires_grad_()
    old = log_probs.detach()
    picks = variant.select(log_probs, old, advantages, case.mask, uniforms_of(case))
    result = variant(log_probs, old, advantages, case.mask, **picks)
    (gradient,) = torch.autograd.grad(result.loss.sum(), log_probs)
    expected = -advantages * case.mask
    if variant.name == "clip_cov":  # a picked token has no gradient
        expected = expected * (1 - picks["selected"])
    if variant.options.get("ratio_cap", 1) >= 1 and variant.name != "sapo":
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-12)
    else:  # 4 / tau * tau * 1/4 rounds
        torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=1e-9)
    for name in ("ppo_kl", "pg_clipfrac_lower", "pg_clipfrac"):
        if name in result.diagnostics and (variant.name, name) != ("clip_cov", "pg_clipfrac"):
            assert not result.diagnostics[name].any()


@pytest.mark.parametrize("options", [{}, {"clip_low": 0.0, "clip_high": 0.0}, {"dual_clip": None}, {"delta": 4}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_update_per_rollout_is_exactly_reinforce(options, dtype):
    log_probs = (random(MASK, 7, 5) - 4).to(dtype).requires_grad_()
    mask, advantages = MASK.to(dtype), random(MASK, 8).to(dtype)
    result = clipped(log_probs, log_probs.detach(), advantages, mask, **options)
    assert torch.equal(result.loss, -advantages * mask)
    for name in ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower"):
        assert not result.diagnostics[name].any()
    (gradient,) = torch.autograd.grad(result.loss.sum(), log_probs)
    assert torch.equal(gradient, -advantages * mask)


# --- one ratio per answer ----------------------------------------------------------------------------------


@NUMERICS
@given(case=cases())
def test_gspo_spreads_the_gradient_that_gspo_token_leaves_where_it_arose(case: Case):
    gradients, losses = [], []
    for function in (gspo, gspo_token):
        log_probs = case.log_probs.clone().requires_grad_()
        loss = function(log_probs, case.old_log_probs, case.advantages, case.mask, clip_low=0.2, clip_high=0.2).loss
        gradients.append(torch.autograd.grad(loss.sum(), log_probs)[0])
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], atol=1e-12, rtol=1e-12)
    tokens = case.mask.sum(1, keepdim=True).clamp(min=1)
    spread = gradients[1].sum(1, keepdim=True) / tokens * case.mask
    torch.testing.assert_close(gradients[0], spread, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "geo_mean"])
@NUMERICS
@given(case=cases(full_mask=True))
def test_with_the_papers_aggregation_the_loss_is_the_papers(name: str, case: Case):
    """mean over answers of min(s A, clip(s) A), with s = (prod of ratios)^(1/n)."""
    advantages = case.advantages[:, :1].expand_as(case.mask).contiguous()
    loss = POLICY_LOSSES[name].function(case.log_probs, case.old_log_probs, advantages, case.mask, clip_high=0.3)
    total = aggregate(loss.loss, case.mask, POLICY_LOSSES[name].aggregation, counts(case.mask))
    expected = []
    for x, y, A in zip(case.log_probs, case.old_log_probs, advantages[:, 0].tolist(), strict=True):
        if name == "geo_mean":
            factors = [r ** (1 / len(x)) for r in (x - y).exp().tolist()]
            bound = math.exp(0.3 / len(x)) if A > 0 else math.exp(-0.4 / len(x))
            expected.append(A * math.prod(min(f, bound) if A > 0 else max(f, bound) for f in factors))
        else:
            s = math.exp(min(math.fsum((x - y).tolist()) / len(x), 10))
            expected.append(min(s * A, min(max(s, 1 - 3e-4), 1.3) * A))
    assert total.item() == pytest.approx(-sum(expected) / len(expected), rel=1e-9, abs=1e-12)


# --- far off the policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("variant", DEFAULTS + TELLING, ids=str)
def test_a_lost_token_does_not_overflow(variant: Variant, sign: float):
    log_probs = torch.tensor([[-1e-3], [-400.0]]).requires_grad_()
    old, mask = torch.tensor([[-400.0], [-1e-3]]), torch.ones(2, 1)
    advantages = torch.full((2, 1), sign)
    picks = variant.select(log_probs, old, advantages, mask, torch.zeros(2, 1))
    result = variant(log_probs, old, advantages, mask, **picks)
    (gradient,) = torch.autograd.grad(result.loss.sum(), log_probs)
    for x in (result.loss, gradient, *result.diagnostics.values()):
        assert x.isfinite().all()


def test_beyond_the_limit_the_clipped_loss_has_no_gradient():
    log_probs = torch.tensor([[-1.0, -400.0]]).requires_grad_()
    result = clipped(log_probs, torch.tensor([[-400.0, -1.0]]), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2))
    result.loss.sum().backward()
    assert log_probs.grad is not None
    assert torch.equal(log_probs.grad, torch.zeros(1, 2))
    assert result.diagnostics["ppo_kl"].tolist() == [[-20.0, 20.0]]
    assert result.loss[0, 0].item() == 3.0  # the dual clip
