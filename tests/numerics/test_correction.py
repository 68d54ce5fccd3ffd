"""Sampler against trainer: importance weights, rejection rules, bypass, presets, and verl's strings."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cohort.algorithms.correction import (
    Bypass,
    correct,
    importance_metrics,
    importance_weights,
    rejection,
    rejection_metrics,
)
from cohort.algorithms.correction_settings import (
    LEVELS,
    PRESETS,
    STATISTICS,
    Correction,
    Rule,
    parse_rules,
)
from cohort.algorithms.kl import kl_penalty
from cohort.algorithms.masking import aggregate, counts
from cohort.algorithms.ppo_loss import clipped
from cohort.algorithms.signatures import TokenLoss
from tests.numerics.cases import NUMERICS, Case, cases
from tests.numerics.test_golden import mask_of, matrix
from tests.numerics.test_golden_losses import SWIFT_A, SWIFT_MASK, SWIFT_NEW, SWIFT_OLD

TRAINER = matrix([0.5, 0.5, 0.5], [0.4, 0.8, 1]).log()
SAMPLER = matrix([0.4, 0.5, 0.2], [0.5, 0.4, 1]).log()
MASK = mask_of([3, 2], 3)
NAN = math.nan


def close(actual: torch.Tensor, *rows: list[float], atol: float = 1e-4) -> None:
    torch.testing.assert_close(actual, matrix(*rows), atol=atol, rtol=0)


# --- golden -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(threshold=2.0), [[1.25, 1, 2], [0.8, 2, 0]]),
        (dict(level="sequence", threshold=2.0), [[2, 2, 2], [1.6, 1.6, 0]]),
        (dict(window=(0.5, 2.0)), [[1.25, 1, 0], [0.8, 2, 0]]),
        (dict(threshold=2.0, batch_normalize=True), [[1.25 / 1.41, 1 / 1.41, 2 / 1.41], [0.8 / 1.41, 2 / 1.41, 0]]),
        (dict(level="sequence", threshold=2.0, batch_normalize=True), [[1.11111] * 3, [0.88889, 0.88889, 0]]),
        (dict(), [[1.25, 1, 2.5], [0.8, 2, 0]]),
    ],
)
def test_golden_weights(options, expected):
    close(importance_weights(TRAINER, SAMPLER, MASK, **options), *expected)
    close(importance_weights(TRAINER.float(), SAMPLER.float(), MASK.float(), **options).double(), *expected)


@pytest.mark.parametrize(
    ("names", "bounds", "inverted", "expected"),
    [
        ("token_k1", "0.5_2.0", True, [[1, 1, 0], [1, 1, 0]]),
        ("token_k1", "0.5_2.0", False, [[1, 1, 0], [1, 1, 0]]),
        ("token_k1", 2.0, False, [[1, 1, 0], [1, 1, 0]]),
        ("token_k1", "0.9_4.0", True, [[0, 1, 0], [1, 0, 0]]),  # verl's number: a ratio of 1.25 is dropped
        ("token_k1", "0.9_4.0", False, [[1, 1, 1], [0, 1, 0]]),  # its documentation's
        ("token_k1", "0.25_1.1", True, [[1, 1, 1], [0, 1, 0]]),
        ("seq_sum_k1", "0.5_2.0", False, [[0, 0, 0], [1, 1, 0]]),
        ("token_k3", 0.3, False, [[1, 1, 0], [1, 0, 0]]),
        ("seq_mean_k3", "0.2", False, [[0, 0, 0], [1, 1, 0]]),
        ("seq_max_k2", 0.3, False, [[0, 0, 0], [1, 1, 0]]),
        ("seq_max_k2,token_k3", 0.3, False, [[0, 0, 0], [1, 0, 0]]),
        ("token_k1, seq_mean_k3", "0.5_2.0,10", False, [[1, 1, 0], [1, 1, 0]]),
    ],
)
def test_golden_rules(names, bounds, inverted, expected):
    rules = parse_rules(names, bounds, inverted=inverted)
    close(rejection(TRAINER, SAMPLER, MASK, rules), *expected)


def test_golden_metrics_of_token_weights():
    named = importance_metrics(TRAINER, SAMPLER, MASK, threshold=2.0).named()
    expected = {"mean": 1.41, "max": 2, "min": 0.8, "std": 0.50239, "eff_sample_size": 0.88735}
    expected |= {"ratio_fraction_high": 0.2, "ratio_fraction_low": 0, "seq_mean": 1.40833, "seq_std": 0.01179}
    expected |= {"seq_max": 1.416667, "seq_min": 1.4, "seq_max_deviation": 0.416667}
    expected |= {"seq_fraction_high": 0, "seq_fraction_low": 0}
    expected = {f"rollout_corr/rollout_is_{name}": value for name, value in expected.items()}
    assert {name: value.item() for name, value in named.items()} == pytest.approx(expected, abs=5e-6)


def test_golden_metrics_of_answers_weights():
    numbers = importance_metrics(TRAINER, SAMPLER, MASK, level="sequence", threshold=2.0, batch_normalize=True)
    found = [numbers.max, numbers.min, numbers.mean, numbers.eff_sample_size, numbers.ratio_fraction_high]
    assert [x.item() for x in found] == pytest.approx([3.125, 1.6, 1.84, 0.98879, 0.5], abs=1e-5)
    assert numbers.batch_norm_factor is not None
    assert numbers.batch_norm_factor.item() == pytest.approx(1.8)
    assert "rollout_corr/rollout_is_batch_norm_factor" in numbers.named()


def test_metrics_of_a_window():
    numbers = importance_metrics(TRAINER, SAMPLER, MASK, window=(0.9, 2.0))
    assert numbers.oob_ratio is not None
    found = [numbers.oob_ratio, numbers.ratio_fraction_high, numbers.ratio_fraction_low, numbers.min]
    assert [x.item() for x in found] == pytest.approx([0.4, 0.2, 0.2, 0])


def test_golden_metrics_of_a_rule():
    numbers = rejection_metrics(TRAINER, SAMPLER, MASK, parse_rules("token_k1,seq_mean_k3", "0.5_2.0,0.2"))
    named = {name.removeprefix("rollout_corr/rollout_rs_"): x.item() for name, x in numbers.named().items()}
    assert named["token_k1_fraction_high"] == pytest.approx(0.2)
    assert named["token_k1_masked_fraction"] == pytest.approx(0.2)
    assert named["token_k1_seq_masked_fraction"] == pytest.approx(0.5)
    assert named["token_k1_max"] == pytest.approx(math.log(2.5))
    assert named["token_k1_min"] == pytest.approx(math.log(0.8))
    assert named["token_k1_mean"] == pytest.approx(0.32189, abs=1e-5)
    k3 = [sum(r - 1 - math.log(r) for r in row) / len(row) for row in ([1.25, 1, 2.5], [0.8, 2])]
    assert named["seq_mean_k3_mean"] == named["seq_mean_k3_seq_mean"] == pytest.approx(sum(k3) / 2)
    assert named["seq_mean_k3_seq_max_deviation"] == pytest.approx(max(k3))
    assert named["seq_mean_k3_masked_fraction"] == named["masked_fraction"] == pytest.approx(0.6)
    assert named["seq_masked_fraction"] == pytest.approx(0.5)


SWIFT_SAMPLER = matrix([-1.2, -0.45, -1.9, -0.12], [-2.2, -1, 0, 0])


@pytest.mark.parametrize(
    ("mode", "loss"),
    [
        ("token_truncate", 0.533784),
        ("token_mask", -0.290576),
        ("sequence_truncate", 0.508154),
        ("sequence_mask", 0.829846),
    ],
)
def test_the_four_modes_of_the_second_source(mode, loss):
    weights = correct(SWIFT_OLD, SWIFT_SAMPLER, SWIFT_MASK, PRESETS[mode]).weights
    assert weights is not None
    per_token = clipped(SWIFT_NEW, SWIFT_OLD, SWIFT_A, SWIFT_MASK).loss * weights
    value = aggregate(per_token, SWIFT_MASK, "seq-mean-token-mean", counts(SWIFT_MASK))
    assert value.item() == pytest.approx(loss, abs=2e-6)


def test_diagnostics_of_the_second_source():
    numbers = importance_metrics(SWIFT_OLD, SWIFT_SAMPLER, SWIFT_MASK, threshold=2.0)
    assert numbers.mean.item() == pytest.approx(1.24469, abs=6e-6)
    assert numbers.ratio_fraction_high.item() == pytest.approx(1 / 6)
    assert numbers.eff_sample_size.item() == pytest.approx(0.9122, abs=6e-5)


# --- oracles --------------------------------------------------------------------------------------


def rows_of(case: Case) -> list[list[tuple[int, float]]]:
    """Per row the column and lambda of each token of the model."""
    difference = (case.log_probs - case.old_log_probs).tolist()
    return [
        [(t, min(max(x, -20.0), 20.0)) for t, (x, m) in enumerate(zip(xs, ms, strict=True)) if m]
        for xs, ms in zip(difference, case.mask.tolist(), strict=True)
    ]


def ratio_of(row: list[tuple[int, float]], at: int, level: str) -> float:
    total = math.fsum(x for _, x in row)
    return math.exp({"token": dict(row)[at], "sequence": total, "sequence_geometric": total / len(row)}[level])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("normalize", [False, True])
@NUMERICS
@given(case=cases(), judge=st.sampled_from([None, *LEVELS]), bound=st.sampled_from([None, 1.5, (0.6, 1.8)]))
def test_weights_against_loops(level: str, normalize: bool, case: Case, judge: str | None, bound: object):
    options: dict = {"window": bound} if isinstance(bound, tuple) else {"threshold": bound}
    if isinstance(bound, tuple):
        options["window_level"] = judge
    expected = torch.zeros_like(case.mask)
    rows = rows_of(case)
    for i, row in enumerate(rows):
        for t, _ in row:
            weight = ratio_of(row, t, level)
            if isinstance(bound, tuple) and not bound[0] <= ratio_of(row, t, judge or level) <= bound[1]:
                weight = 0.0
            expected[i, t] = min(weight, bound) if isinstance(bound, float) else weight
    per_token = [expected[i, t].item() for i, row in enumerate(rows) for t, _ in row]
    per_row = [math.fsum(expected[i, t].item() for t, _ in row) / len(row) for i, row in enumerate(rows) if row]
    averaged = per_token if level == "token" else per_row
    mean = math.fsum(averaged) / len(averaged) if averaged else 1.0
    if normalize and mean > 1e-8:
        expected = expected / mean
    found = importance_weights(
        case.log_probs, case.old_log_probs, case.mask, level=level, batch_normalize=normalize, **options
    )
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    if normalize and level == "token" and mean > 1e-8 and averaged:
        assert found[case.mask > 0].mean().item() == pytest.approx(1)


@pytest.mark.parametrize("statistic", STATISTICS)
@NUMERICS
@given(case=cases(), lower=st.floats(0.1, 0.9), upper=st.floats(0.05, 3), inverted=st.booleans())
def test_rules_against_loops(statistic: str, case: Case, lower: float, upper: float, inverted: bool):
    k1 = statistic.endswith("k1")
    rule = (
        Rule(statistic=statistic, lower=lower, upper=1 + upper, inverted=inverted)
        if k1
        else Rule(statistic=statistic, upper=upper)
    )
    estimate = {"k1": lambda x: x, "k2": lambda x: x * x / 2, "k3": lambda x: math.exp(x) - 1 - x}[statistic[-2:]]
    expected = torch.zeros_like(case.mask)
    for i, row in enumerate(rows_of(case)):
        values = {t: estimate(-x if inverted and k1 else x) for t, x in row}
        for t, own in values.items():
            whole = list(values.values())
            number = {
                "token": own,
                "seq_sum": math.fsum(whole),
                "seq_mean": math.fsum(whole) / len(whole),
                "seq_max": max(whole),
                "seq_min": min(whole),
            }[statistic[:-3]]
            passes = lower <= math.exp(number) <= 1 + upper if k1 else number <= upper
            expected[i, t] = float(passes)
    keep = rejection(case.log_probs, case.old_log_probs, case.mask, [rule])
    assert torch.equal(keep, expected)
    numbers = rejection_metrics(case.log_probs, case.old_log_probs, case.mask, [rule])
    lost = int(case.mask.sum() - expected.sum())
    assert numbers.masked_fraction.item() == pytest.approx(lost / max(int(case.mask.sum()), 1))
    assert numbers.rules[statistic].masked_fraction == numbers.masked_fraction
    assert all(math.isfinite(x.item()) for x in numbers.named().values())


@NUMERICS
@given(case=cases())
def test_metrics_of_weights_against_loops(case: Case):
    cap = 1.4
    rows = [[min(math.exp(x), cap) for _, x in row] for row in rows_of(case) if row]
    numbers = importance_metrics(case.log_probs, case.old_log_probs, case.mask, threshold=cap)
    if not rows:
        assert not any(x.item() for x in numbers.named().values())
        return
    weights = [w for row in rows for w in row]
    means = [math.fsum(row) / len(row) for row in rows]
    mean = math.fsum(weights) / len(weights)
    square = math.fsum(w * w for w in weights) / len(weights)
    centre = math.fsum(means) / len(means)
    expected = {
        "mean": mean,
        "max": max(weights),
        "min": min(weights),
        "std": math.sqrt(max(square - mean**2, 0)),
        "ratio_fraction_high": sum(x > math.log(cap) for row in rows_of(case) for _, x in row) / len(weights),
        "ratio_fraction_low": sum(w < 1 / cap for w in weights) / len(weights),
        "eff_sample_size": mean**2 / square,
        "seq_mean": centre,
        "seq_std": math.sqrt(math.fsum((m - centre) ** 2 for m in means) / max(len(means) - 1, 1)),
        "seq_max": max(means),
        "seq_min": min(means),
        "seq_max_deviation": max(abs(m - 1) for m in means),
        "seq_fraction_high": 0.0,
        "seq_fraction_low": sum(m < 1 / cap for m in means) / len(means),
    }
    found = {name: value.item() for name, value in numbers._asdict().items() if value is not None}
    # Of one repeated weight the variance is rounding, whose root is 1e-8.
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-7)


# --- properties -------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@NUMERICS
@given(case=cases(), junk=st.sampled_from([NAN, math.inf, 1e30]))
def test_what_stands_off_the_mask_changes_nothing(preset: str, case: Case, junk: float):
    wide = case.padded(2, junk)
    narrow_result = correct(case.log_probs, case.old_log_probs, case.mask, PRESETS[preset])
    wide_result = correct(wide.log_probs, wide.old_log_probs, wide.mask, PRESETS[preset])
    T = case.mask.shape[1]
    for name in ("weights", "keep"):
        narrow, padded = vars_of(narrow_result)[name], vars_of(wide_result)[name]
        assert (narrow is None) == (padded is None)
        if narrow is not None:
            torch.testing.assert_close(padded[:, :T], narrow, atol=1e-12, rtol=1e-12)
            assert not padded[:, T:].any()
            assert not narrow[case.mask == 0].any()
    assert wide_result.named().keys() == narrow_result.named().keys()
    for name, value in narrow_result.named().items():
        torch.testing.assert_close(wide_result.named()[name], value, atol=1e-12, rtol=1e-12)
        assert value.isfinite()


def vars_of(result) -> dict:
    return result._asdict()


@pytest.mark.parametrize("preset", PRESETS)
def test_equal_log_probs_need_no_correction(preset):
    log_probs = -torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) * 3
    mask = mask_of([5, 3, 1, 0], 5).float()
    result = correct(log_probs.requires_grad_(), log_probs.detach().clone(), mask, PRESETS[preset])
    for tensor in (result.weights, result.keep):
        assert tensor is None or torch.equal(tensor, mask)
        assert tensor is None or not tensor.requires_grad
    assert (result.weights is None) == (PRESETS[preset].is_level is None)
    assert (result.keep is None) == (not PRESETS[preset].rules)


def test_far_off_log_probs_stay_finite_and_what_is_no_number_is_rejected():
    old = torch.tensor([[-1.0, -1.0], [-90.0, -90.0], [-1.0, NAN]], dtype=torch.float64)
    sampler = torch.tensor([[-90.0, -90.0], [-1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    mask = torch.ones(3, 2, dtype=torch.float64)
    for level in LEVELS:
        weights = importance_weights(old[:2], sampler[:2], mask[:2], level=level)
        torch.testing.assert_close(weights[0], torch.full((2,), math.exp(20), dtype=torch.float64))
        torch.testing.assert_close(weights[1], torch.full((2,), math.exp(-20), dtype=torch.float64))
    keep = rejection(old, sampler, mask, [Rule(statistic="token_k1", lower=0.5, upper=2)])
    assert keep.tolist() == [[0, 0], [0, 0], [1, 0]]
    keep = rejection(old, sampler, mask, [Rule(statistic="seq_mean_k3", upper=1)])
    assert not keep.any()


def test_token_weights_are_unbiased_and_a_cut_lowers_them():
    """The mean of w f over the sampler's draws is the mean of f over the trainer's."""
    generator = torch.Generator().manual_seed(5)
    trainer = torch.log_softmax(torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64), 0)
    sampler = torch.log_softmax(torch.tensor([0.1, 0.2, 0.3, -0.1], dtype=torch.float64), 0)
    drawn = torch.multinomial(sampler.exp(), 40_000, replacement=True, generator=generator)[:, None]
    mask = torch.ones(drawn.shape, dtype=torch.float64)
    values = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    weighted = importance_weights(trainer[drawn], sampler[drawn], mask) * values[drawn]
    truth = (trainer.exp() * values).sum()
    standard_error = weighted.std() / 200
    assert (weighted.mean() - truth).abs() < 3 * standard_error
    assert (values[drawn].mean() - truth).abs() > 10 * standard_error
    cut = importance_weights(trainer[drawn], sampler[drawn], mask, threshold=1.1)
    assert cut.mean() < 0.99


# --- bypass ---------------------------------------------------------------------------------------------


def reinforce(log_probs, old_log_probs, advantages, mask):
    return TokenLoss(-advantages * log_probs * mask, {})


@NUMERICS
@given(case=cases())
def test_bypass_with_reinforce_is_weighted_by_the_current_policy(case: Case):
    correction = PRESETS["bypass_pg_geo_rs_token_tis"]
    log_probs = case.log_probs.clone().requires_grad_()
    loss, diagnostics = Bypass(policy_loss=reinforce, correction=correction)(
        log_probs, case.old_log_probs, case.advantages, case.mask
    )
    weights = (case.log_probs - case.old_log_probs).exp().clamp(max=2) * case.mask
    keep = rejection(case.log_probs, case.old_log_probs, case.mask, correction.rules)
    torch.testing.assert_close(loss, -case.advantages * case.log_probs * weights * keep)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    torch.testing.assert_close(gradient, -case.advantages * weights * keep)
    torch.testing.assert_close(diagnostics["rollout_is_mean"], weights)
    torch.testing.assert_close(diagnostics["rollout_rs_masked_fraction"], case.mask - keep)


@NUMERICS
@given(case=cases())
def test_bypass_with_the_clip_has_no_weights(case: Case):
    arguments = (case.log_probs, case.old_log_probs, case.advantages, case.mask)
    plain = clipped(*arguments)
    bypassed = Bypass(policy_loss=clipped, correction=PRESETS["bypass_ppo_clip"])(*arguments)
    torch.testing.assert_close(bypassed.loss, plain.loss)
    assert bypassed.diagnostics.keys() == plain.diagnostics.keys()
    rules = parse_rules("token_k3", 0.1)
    kept = Bypass(policy_loss=clipped, correction=Correction(bypass=True, rules=rules))(*arguments).loss
    keep = rejection(case.log_probs, case.old_log_probs, case.mask, rules)
    torch.testing.assert_close(kept, plain.loss * keep)


@NUMERICS
@given(case=cases(), data=st.data())
def test_bypass_does_not_see_micro_batches(case: Case, data: st.DataObject):
    loss = Bypass(policy_loss=reinforce, correction=PRESETS["bypass_pg_is"])
    whole = loss(case.log_probs, case.old_log_probs, case.advantages, case.mask).loss
    cut = data.draw(st.integers(0, len(case.mask)))
    parts = [case.rows(part) for part in torch.arange(len(case.mask)).split([cut, len(case.mask) - cut]) if len(part)]
    pieces = [loss(c.log_probs, c.old_log_probs, c.advantages, c.mask).loss for c in parts]
    torch.testing.assert_close(torch.cat(pieces), whole, atol=0, rtol=0)


def test_k3_of_the_mismatch_and_of_the_kl_are_one_formula():
    rule = Rule(statistic="token_k3", upper=0.2)
    named = kl_penalty(SAMPLER, TRAINER, "k3")  # KL(sampler || trainer), on the sampler's draws
    assert torch.equal(rejection(TRAINER, SAMPLER, MASK, [rule]), ((named <= 0.2) & (MASK > 0)).double())
