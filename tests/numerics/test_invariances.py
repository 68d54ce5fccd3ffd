"""What must not change a number: memory slices, padding, order of rows, and whatever stands off the mask."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.correction import mismatch
from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.masking import (
    AGGREGATIONS,
    aggregate,
    counts,
    masked_mean,
    masked_sum,
    masked_var,
    whiten,
    zero_outside,
)
from cohort.algorithms.shaping import kl_in_reward, place
from tests.numerics.cases import NUMERICS, Case, cases
from tests.numerics.losses import TELLING, Variant, uniforms_of

HORIZON = 12
FEW = settings(NUMERICS, max_examples=10)  # of each loss under each aggregation
everything = pytest.mark.parametrize(
    ("loss", "mode"), [pytest.param(loss, mode, id=f"{loss.name}-{mode}") for loss in TELLING for mode in AGGREGATIONS]
)


def chosen(case: Case, loss: Variant) -> dict[str, torch.Tensor]:
    """What the loss's ``select`` stage picks from the whole minibatch, as the argument that the loss takes."""
    return loss.select(case.log_probs, case.old_log_probs, case.advantages, case.mask, uniforms_of(case))


def objective(
    case: Case, loss: Variant, mode: str, total: torch.Tensor, picks: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A whole objective (policy loss and KL) of these rows under the counts of all, with its gradient."""
    log_probs = case.log_probs.clone().requires_grad_()
    per_token = loss(log_probs, case.old_log_probs, case.advantages, case.mask, **picks).loss
    per_token = per_token + 0.1 * kl_penalty(log_probs, case.ref_log_probs, "k3+", case.mask)
    value = aggregate(per_token, case.mask, mode, total, horizon=HORIZON)
    value.backward()
    assert log_probs.grad is not None
    return value.detach(), log_probs.grad


@everything
@FEW
@given(case=cases(), data=st.data())
def test_any_split_into_micro_batches_gives_the_same(loss: Variant, mode: str, case: Case, data: st.DataObject):
    total = counts(case.mask)
    picks = chosen(case, loss)
    value, gradient = objective(case, loss, mode, total, picks)
    B = len(case.mask)
    order = torch.randperm(B, generator=case.generator)
    cuts = sorted(data.draw(st.sets(st.integers(1, B - 1)))) if B > 1 else []
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, B], strict=True)]
    pieces = [
        objective(case.rows(part), loss, mode, total, {name: x[part] for name, x in picks.items()}) for part in parts
    ]
    torch.testing.assert_close(sum(v for v, _ in pieces), value, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(torch.cat([g for _, g in pieces])[order.argsort()], gradient, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(sum(counts(case.mask[part]) for part in parts), total, atol=0, rtol=0)


@everything
@FEW
@given(case=cases(), width=st.integers(1, 5), value=st.sampled_from([0.0, 1e30, math.inf, math.nan]))
def test_padding_changes_nothing_whatever_it_holds(loss: Variant, mode: str, case: Case, width: int, value: float):
    wide = case.padded(width, value)
    narrow_value, narrow_gradient = objective(case, loss, mode, counts(case.mask), chosen(case, loss))
    wide_value, wide_gradient = objective(wide, loss, mode, counts(wide.mask), chosen(wide, loss))
    torch.testing.assert_close(wide_value, narrow_value, atol=1e-13, rtol=1e-13)
    T = case.mask.shape[1]
    torch.testing.assert_close(wide_gradient[:, :T], narrow_gradient, atol=1e-13, rtol=1e-13)
    assert torch.equal(wide_gradient[:, T:], torch.zeros_like(wide_gradient[:, T:]))


@everything
@FEW
@given(case=cases())
def test_rows_without_a_token_are_as_if_absent(loss: Variant, mode: str, case: Case):
    has_token = (case.mask > 0).any(1).nonzero()[:, 0]
    if not len(has_token):
        value, gradient = objective(case, loss, mode, counts(case.mask), chosen(case, loss))
        assert value == 0
        assert not gradient.any()
        return
    kept = case.rows(has_token)
    value, gradient = objective(case, loss, mode, counts(case.mask), chosen(case, loss))
    kept_value, kept_gradient = objective(kept, loss, mode, counts(kept.mask), chosen(kept, loss))
    torch.testing.assert_close(value, kept_value, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(gradient[has_token], kept_gradient, atol=1e-13, rtol=1e-13)


@NUMERICS
@given(case=cases(), junk=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_what_stands_off_the_mask_reaches_no_reduction(case: Case, junk: float):
    dirty = torch.where(case.mask > 0, case.rewards, junk).requires_grad_()
    for axis in (None, 0, 1):
        for function in (masked_sum, masked_mean, masked_var):
            torch.testing.assert_close(function(dirty, case.mask, axis), function(case.rewards, case.mask, axis))
    on_mask = zero_outside(whiten(dirty, case.mask), case.mask)
    torch.testing.assert_close(on_mask, zero_outside(whiten(case.rewards, case.mask), case.mask))
    for mode in AGGREGATIONS:
        (gradient,) = torch.autograd.grad(
            aggregate(dirty, case.mask, mode, counts(case.mask), horizon=HORIZON), dirty, retain_graph=True
        )
        assert gradient.isfinite().all()
        assert torch.equal(gradient[case.mask == 0], torch.zeros_like(gradient[case.mask == 0]))


@pytest.mark.parametrize("kind", KL_KINDS)
@NUMERICS
@given(case=cases(), junk=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_stands_off_the_mask_reaches_no_kl(kind: str, case: Case, junk: float):
    off = case.mask == 0
    dirty = torch.where(off, junk, case.log_probs).requires_grad_()
    reference = torch.where(off, junk, case.ref_log_probs)
    kl = kl_penalty(dirty, reference, kind, case.mask)
    assert torch.equal(kl[off], torch.zeros_like(kl[off]))
    (gradient,) = torch.autograd.grad(kl.sum(), dirty)
    assert gradient.isfinite().all()
    assert torch.equal(gradient[off], torch.zeros_like(gradient[off]))
    rewards, row_kl = kl_in_reward(case.rewards, dirty, reference, case.mask, 0.5, kind)
    clean = kl_in_reward(case.rewards, case.log_probs, case.ref_log_probs, case.mask, 0.5, kind)
    torch.testing.assert_close((rewards, row_kl), clean)
    assert not rewards.requires_grad


@NUMERICS
@given(case=cases(), junk=st.sampled_from([math.nan, math.inf]))
def test_what_stands_off_the_mask_reaches_no_other_result(case: Case, junk: float):
    if not case.mask.any():
        return
    off = case.mask == 0
    dirty = mismatch(case.log_probs.masked_fill(off, junk), case.old_log_probs.masked_fill(off, junk), case.mask)
    torch.testing.assert_close(
        dirty, mismatch(case.log_probs, case.old_log_probs, case.mask), equal_nan=True, atol=1e-12, rtol=1e-12
    )
    wide = case.padded(2, junk)
    torch.testing.assert_close(
        mismatch(wide.log_probs, wide.old_log_probs, wide.mask), dirty, equal_nan=True, atol=1e-12, rtol=1e-12
    )
    scores = case.rewards[:, 0]
    assert torch.equal(place(scores, wide.mask)[:, : off.shape[1]], place(scores, case.mask))


def test_equal_log_probs_have_no_mismatch():
    log_probs = -torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) * 3
    named = mismatch(log_probs, log_probs.clone(), torch.ones(4, 5)).named()
    assert named["training/rollout_actor_probs_pearson_corr"].item() == pytest.approx(1, abs=1e-6)
    for name in ("kl", "k3_kl", "log_ppl_diff", "log_ppl_abs_diff", "chi2_token", "chi2_seq"):
        assert named[f"rollout_corr/{name}"].item() == 0
    assert named["rollout_corr/ppl_ratio"].item() == 1
