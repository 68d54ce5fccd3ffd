"""Every loss and every choice of tokens against a literal transcription of its paper, on random uneven batches."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cohort.algorithms import covariance_loss, divergence_loss, gradient_loss, sequence_loss, soft_loss
from cohort.algorithms.covariance_loss import covariance, select_clip_cov, select_kl_cov
from cohort.algorithms.ppo_loss import clipped
from cohort.algorithms.registry import POLICY_LOSSES
from cohort.algorithms.token_choice import entropy_threshold, off_policy_rows, top_entropy_mask
from cohort.algorithms.value_loss import clipped_value_loss
from tests.numerics import oracles_losses as oracles
from tests.numerics.cases import NUMERICS, Case, cases
from tests.numerics.losses import OPTIONS, VARIANTS, Variant, uniforms_of
from tests.numerics.test_oracles import built_in, close


def of(case: Case) -> tuple[torch.Tensor, ...]:
    return case.log_probs, case.old_log_probs, case.advantages, case.mask


def lists(*tensors: torch.Tensor) -> tuple:
    return tuple(x.tolist() for x in tensors)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@NUMERICS
@given(case=cases(), stretch=st.sampled_from([1, 12]))
def test_policy_losses(variant: Variant, case: Case, stretch: int):
    log_probs = -(case.log_probs * stretch).abs()  # probabilities are at most 1, as DPPO needs them
    arguments = (log_probs, -case.old_log_probs.abs(), case.advantages, case.mask)
    picks = variant.select(*arguments, uniforms_of(case))
    expected = oracles.POLICY_LOSSES[variant.name](
        *lists(*arguments), **{name: x.tolist() for name, x in picks.items()}, **variant.oracle_options
    )
    close(variant(*arguments, **picks).loss, expected)


@NUMERICS
@given(
    case=cases(),
    clip_low=st.floats(0, 0.9),
    clip_high=st.floats(0, 2),
    dual_clip=st.none() | st.floats(1.1, 5),
    delta=st.none() | st.floats(3.01, 5),
    stretch=st.sampled_from([1, 30]),
)
def test_clip_ranges(
    case: Case, clip_low: float, clip_high: float, dual_clip: float | None, delta: float | None, stretch: int
):
    arguments = (case.log_probs * stretch, case.old_log_probs, case.advantages, case.mask)
    options = dict(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, delta=delta)
    close(clipped(*arguments, **options).loss, oracles.clipped(*lists(*arguments), **options))


@NUMERICS
@given(case=cases(), limit=st.floats(1.51, 4))
def test_delta_and_dual_clip_are_the_same_limit(case: Case, limit: float):
    results = []
    for options in ({"dual_clip": None, "delta": limit}, {"dual_clip": limit}):
        log_probs = case.log_probs.clone().requires_grad_()
        result = clipped(log_probs, *of(case)[1:], clip_high=0.5, **options)
        result.loss.sum().backward()
        results.append((result.loss.detach(), log_probs.grad, result.diagnostics["pg_clipfrac_lower"]))
    torch.testing.assert_close(results[0], results[1])


# --- choices over the minibatch --------------------------------------------------------------------------


@NUMERICS
@given(case=cases(), ratio=st.sampled_from([0.0, 2e-4, 0.1, 0.4, 1.0]), lower=st.sampled_from([-1.0, 0.05, 1.0]))
def test_clip_cov_picks(case: Case, ratio: float, lower: float):
    uniforms = uniforms_of(case)
    picked = select_clip_cov(*of(case), uniforms, clip_cov_ratio=ratio, clip_cov_lb=lower, clip_cov_ub=3.0)
    close(picked, oracles.select_clip_cov(*lists(*of(case), uniforms), ratio=ratio, lower=lower, upper=3.0))


@NUMERICS
@given(case=cases(), ratio=st.sampled_from([0.0, 2e-4, 0.1, 0.4, 1.0]), ties=st.booleans())
def test_kl_cov_picks(case: Case, ratio: float, ties: bool):
    advantages = torch.zeros_like(case.mask) if ties else case.advantages
    arguments = (case.log_probs, case.old_log_probs, advantages, case.mask, uniforms_of(case))
    picked = select_kl_cov(*arguments, kl_cov_ratio=ratio)
    close(picked, oracles.select_kl_cov(*lists(*arguments), ratio=ratio))
    tokens = int(case.mask.sum())
    assert picked.sum() == min(max(1, int(tokens * ratio)), tokens)


@pytest.mark.parametrize("name", [name for name, entry in POLICY_LOSSES.items() if entry.select])
@NUMERICS
@given(case=cases(), junk=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_picks_follow_their_rows(name: str, case: Case, junk: float):
    variant = Variant(name, OPTIONS[name][0])
    picked = variant.select(*of(case), uniforms_of(case))["selected"]
    order = torch.randperm(len(case.mask), generator=case.generator)
    shuffled = case.rows(order)
    assert torch.equal(variant.select(*of(shuffled), uniforms_of(shuffled))["selected"], picked[order])
    wide = case.padded(2, junk)
    T = picked.shape[1]
    padded = variant.select(*of(wide), uniforms_of(wide))["selected"]
    assert torch.equal(padded[:, :T], picked)
    assert not padded[:, T:].any()
    assert not picked[case.mask == 0].any()


@pytest.mark.parametrize(("tokens", "wanted"), [(4999, 1), (5000, 1), (9999, 1), (10_000, 2), (20_000, 4)])
def test_shares_of_the_minibatch_are_exact(tokens: int, wanted: int):
    generator = torch.Generator().manual_seed(0)
    log_probs, advantages = (torch.randn(20, 1000, generator=generator) for _ in range(2))
    mask = (torch.arange(20_000) < tokens).float().view(20, 1000)
    uniforms = torch.rand(20, 1000, generator=generator)
    arguments = (log_probs, log_probs, advantages, mask, uniforms)
    cov = covariance(log_probs, advantages, mask)
    picked = select_kl_cov(*arguments) > 0
    assert picked.sum() == wanted
    assert cov[picked].min() >= cov[~picked].max()
    by_chance = select_clip_cov(*arguments) > 0
    candidates = (mask > 0) & (cov > 1) & (cov < 5)
    assert by_chance.sum() == wanted
    assert uniforms[by_chance].max() <= uniforms[candidates & ~by_chance].min()
    assert candidates[by_chance].all()


def test_every_candidate_is_as_likely():
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.tensor([[0.0, 0, 0, 0, -4, -4, -4, -4]])
    advantages = torch.tensor([[1.0, 1, 1, 1, -1, -1, -1, -1]])  # covariance 2 everywhere
    mask = torch.ones_like(log_probs)
    total = sum(
        select_clip_cov(log_probs, log_probs, advantages, mask, torch.rand(1, 8, generator=generator))
        for _ in range(1600)
    )
    assert total.sum() == 1600
    assert ((total - 200).abs() < 5 * math.sqrt(200)).all()


@NUMERICS
@given(case=cases(), quantile=st.sampled_from([0.05, 0.2, 0.3, 0.5, 0.7, 1.0]))
def test_top_entropy(case: Case, quantile: float):
    entropy = case.rewards.abs()
    keep = top_entropy_mask(entropy.masked_fill(case.mask == 0, math.nan), case.mask, quantile)
    close(keep, oracles.top_entropy_mask(*lists(entropy, case.mask), quantile))
    if case.mask.any():
        threshold = torch.quantile(entropy[case.mask > 0], 1 - quantile)
        torch.testing.assert_close(entropy_threshold(entropy, case.mask, quantile), threshold)
    else:
        assert entropy_threshold(entropy, case.mask, quantile).isnan()


@NUMERICS
@given(case=cases(), delta=st.sampled_from([0.0, 0.1, 0.5, 3.0]), junk=st.sampled_from([0.0, math.nan, math.inf]))
def test_off_policy_rows(case: Case, delta: float, junk: float):
    expected = oracles.off_policy_rows(*lists(*of(case)), delta)
    off = case.mask == 0
    dirty = [x.masked_fill(off, junk) for x in of(case)[:3]]
    close(off_policy_rows(*dirty, case.mask, delta), expected)


@NUMERICS
@given(case=cases(), clip=st.none() | st.floats(0.01, 2), junk=st.sampled_from([0.0, math.nan, math.inf]))
def test_value_loss(case: Case, clip: float | None, junk: float):
    arguments = (case.log_probs, case.old_log_probs, case.rewards)
    off = case.mask == 0
    dirty = [x.masked_fill(off, junk).requires_grad_() for x in arguments]
    loss, diagnostics = clipped_value_loss(*dirty, case.mask, clip)
    close(loss, oracles.clipped_value_loss(*lists(*arguments, case.mask), clip))
    (gradient,) = torch.autograd.grad(loss.sum(), dirty[0])
    for x in (loss, gradient, *diagnostics.values()):
        assert torch.equal(x[off], torch.zeros_like(x[off]))
    assert torch.equal(diagnostics["vpred_mean"], torch.where(off, 0.0, case.log_probs))


# --- what is refused ---------------------------------------------------------------------------------------

X = torch.zeros(1, 2)
RANGES = [
    clipped,
    sequence_loss.gspo,
    sequence_loss.gspo_token,
    sequence_loss.geo_mean,
    gradient_loss.cispo,
    divergence_loss.dppo_tv,
    divergence_loss.dppo_kl,
]


@pytest.mark.parametrize("function", RANGES)
@pytest.mark.parametrize("options", [{"clip_low": -0.1}, {"clip_high": -0.1}, {"clip_high": math.nan}])
def test_clip_ranges_are_not_negative(function, options):
    with pytest.raises(ValueError, match="clip_low and clip_high must not be negative"):
        function(X, X, X, X, **options)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (clipped, {"delta": 1.2}, r"delta must be above 1 \+ clip_high = 1.2"),
        (clipped, {"dual_clip": math.nan}, "dual_clip must be above 1"),
        (gradient_loss.cispo, {"ratio_cap": 0}, "ratio_cap must be positive"),
        (gradient_loss.dro, {"beta": 0}, "beta must be positive, got 0"),
        (gradient_loss.dro, {"beta": math.inf}, "beta must be positive"),
        (soft_loss.sapo, {"tau_pos": 0}, "tau_pos and tau_neg must be positive"),
        (soft_loss.sapo, {"tau_neg": -1.0}, "tau_pos and tau_neg must be positive"),
        (divergence_loss.dppo_tv, {"ratio_cap": 0.5}, "ratio_cap must be at least 1"),
        (divergence_loss.dppo_kl, {"ratio_cap": 0.5}, "ratio_cap must be at least 1"),
    ],
)
def test_illegal_options(function, options, message):
    with pytest.raises(ValueError, match=message):
        function(X, X, X, X, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clip_cov", {"clip_cov_ratio": 2}, "clip_cov_ratio is a share"),
        ("clip_cov", {"clip_cov_lb": 5.0, "clip_cov_ub": 5.0}, "clip_cov_lb must be below"),
        ("clip_cov", {"clip_low": -1}, "must not be negative"),
        ("kl_cov", {"kl_cov_ratio": -0.1}, "kl_cov_ratio is a share"),
        ("kl_cov", {"ppo_kl_coef": -1}, "ppo_kl_coef must not be negative"),
    ],
)
def test_illegal_options_of_both_stages(name, options, message):
    with pytest.raises(ValueError, match=message):
        Variant(name, options)(X, X, X, X, selected=X)
    with pytest.raises(ValueError, match=message):
        Variant(name, options).select(X, X, X, X, X)


def test_illegal_choices():
    for quantile in (0, 1.1, -0.2, math.nan):
        with pytest.raises(ValueError, match="quantile is the share"):
            top_entropy_mask(X, X, quantile)
    with pytest.raises(ValueError, match="delta must not be negative"):
        off_policy_rows(X, X, X, X, -1)
    with pytest.raises(ValueError, match="clip must be positive"):
        clipped_value_loss(X, X, X, X, 0)


def test_the_oracles_cover_every_built_in_policy_loss():
    assert set(built_in(POLICY_LOSSES)) == set(oracles.POLICY_LOSSES)
    selects = {name for name in built_in(POLICY_LOSSES) if POLICY_LOSSES[name].select}
    assert selects == {"clip_cov", "kl_cov"}
    assert covariance_loss.select_kl_cov is POLICY_LOSSES["kl_cov"].select
    assert [name for name, entry in POLICY_LOSSES.items() if entry.row_weights] == ["geo_mean"]
