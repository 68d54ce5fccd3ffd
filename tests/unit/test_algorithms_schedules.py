"""Learning-rate factors, KL coefficients, weights of shaping terms and of supervised data."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.algorithms.schedules import (
    KL_CONTROLLERS,
    SHAPING_SCHEDULES,
    adaptive_kl,
    chord_mu,
    fixed,
    lr_factor,
    shaping_weight,
)


def test_constant_is_one_after_a_linear_warm_up_from_zero():
    assert [lr_factor(step) for step in (0, 1, 100)] == [1, 1, 1]
    assert [lr_factor(step, warmup_steps=4) for step in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]


def test_cosine_goes_from_one_to_the_minimum_and_stays_there():
    factors = [lr_factor(s, kind="cosine", warmup_steps=2, total_steps=10, min_ratio=0.1) for s in range(14)]
    assert factors[:3] == [0, 0.5, 1]
    assert factors[6] == pytest.approx(0.55)  # half way
    assert factors[2:11] == sorted(factors[2:11], reverse=True)
    assert factors[10:] == pytest.approx([0.1] * 4)
    by_hand = [0.45 * math.cos(math.pi * (s - 2) / 8) + 0.55 for s in range(2, 11)]
    assert factors[2:11] == pytest.approx(by_hand)


def test_a_full_wave_comes_back():
    factors = [lr_factor(s, kind="cosine", total_steps=8, cycles=1) for s in range(9)]
    assert factors[4] == pytest.approx(0)
    assert factors[8] == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "linear"}, "'linear' is not one of constant, cosine"),
        ({"kind": "cosine", "warmup_steps": 5, "total_steps": 5}, "needs total_steps > warmup_steps, got 5 and 5"),
    ],
)
def test_impossible_schedules(options, message):
    with pytest.raises(ValueError, match=message):
        lr_factor(0, **options)


def test_adaptive_coefficient_moves_towards_its_target_at_a_bounded_rate():
    options = dict(target=0.1, horizon=1000, rows=100)
    assert adaptive_kl(1.0, 0.1, **options) == 1.0
    assert adaptive_kl(1.0, 0.11, **options) == pytest.approx(1.01)
    assert adaptive_kl(1.0, 50.0, **options) == pytest.approx(1.02)
    assert adaptive_kl(1.0, -3.0, **options) == pytest.approx(0.98)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_broken_step_does_not_break_the_coefficient(kl):
    assert adaptive_kl(0.5, kl, target=0.1, horizon=1000, rows=100) == 0.5


@pytest.mark.parametrize("options", [{"target": 0.0, "horizon": 10}, {"target": 0.1, "horizon": 0}])
def test_impossible_controllers(options):
    with pytest.raises(ValueError, match="needs target > 0 and horizon > 0"):
        adaptive_kl(0.5, 0.1, rows=4, **options)


def test_controllers_are_interchangeable():
    assert {"fixed": fixed, "adaptive": adaptive_kl} == KL_CONTROLLERS
    assert fixed(0.25, 9.0, 0.1, 10, 4) == 0.25


AT = (0, 7, 14, 35, 52, 70, 100)
SHAPING_GOLDEN = {
    "linear": [0, 0.06, 0.12, 0.3, 0.445714, 0.6, 0.6],
    "sigmoid": [0, 0.006868, 0.024771, 0.3, 0.554799, 0.6, 0.6],
    "cosine": [0, 0.014683, 0.057295, 0.3, 0.507319, 0.6, 0.6],
    "exp": [0, 0.00264, 0.006994, 0.045515, 0.162927, 0.6, 0.6],
    "step": [0, 0, 0, 0.2, 0.4, 0.6, 0.6],
}


@pytest.mark.parametrize("kind", SHAPING_SCHEDULES)
def test_golden_shaping_weights(kind):
    weights = [shaping_weight(step, max_weight=0.6, kind=kind, warmup_ratio=0.7, total_steps=100) for step in AT]
    assert weights == pytest.approx(SHAPING_GOLDEN[kind], abs=1e-6)
    assert weights[0] == 0
    assert weights[-1] == 0.6
    explicit = [shaping_weight(step, max_weight=0.6, kind=kind, warmup_steps=70) for step in AT]
    assert explicit == pytest.approx(weights)


@pytest.mark.parametrize("kind", SHAPING_SCHEDULES)
@given(
    warmup=st.integers(1, 200),
    stairs=st.integers(1, 7),
    k=st.floats(0.1, 30),
    centre=st.floats(0, 1),
    offset=st.integers(0, 2),
)
def test_shaping_weights_rise_from_nothing_to_the_whole(kind, warmup, stairs, k, centre, offset):
    options = dict(steps=stairs, step_offset=offset, sigmoid_k=k, sigmoid_center=centre, exp_k=k)
    weights = [shaping_weight(s, max_weight=2.0, kind=kind, warmup_steps=warmup, **options) for s in range(warmup + 3)]
    assert weights[0] == (2.0 * min(offset, stairs) / stairs if kind == "step" else 0)
    assert weights[warmup:] == [2.0] * 3
    assert weights == sorted(weights)


def test_stairs():
    climb = [shaping_weight(s, max_weight=1, kind="step", warmup_steps=9, steps=3) for s in range(10)]
    assert climb == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3, 1])
    early = [shaping_weight(s, max_weight=1, kind="step", warmup_steps=9, steps=3, step_offset=1) for s in range(10)]
    assert early == pytest.approx([1 / 3] * 3 + [2 / 3] * 3 + [1] * 4)


def test_a_late_centre_starts_slowly_and_no_warm_up_is_the_whole_weight():
    middle, late = (shaping_weight(30, max_weight=1, warmup_steps=100, sigmoid_center=centre) for centre in (0.5, 0.7))
    assert late < middle / 4
    for kind in SHAPING_SCHEDULES:
        assert shaping_weight(0, max_weight=0.3, kind=kind, warmup_ratio=0, total_steps=10) == 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "square"}, "'square' is not one of linear, sigmoid, cosine, exp, step"),
        ({"max_weight": -1}, "max_weight >= 0"),
        ({"warmup_ratio": 1.5}, "0 <= warmup_ratio <= 1"),
        ({"steps": 0}, "steps >= 1"),
        ({"total_steps": None}, "where the length is unknown, give warmup_steps"),
    ],
)
def test_impossible_shaping_weights(options, message):
    with pytest.raises(ValueError, match=message):
        shaping_weight(0, **{"max_weight": 1, "total_steps": 10, **options})


def test_golden_mu_of_chord():
    mus = [chord_mu(s, warmup=10, decay=200, peak=0.9, valley=0.05) for s in (0, 5, 10, 60, 110, 210, 10_000)]
    assert mus == pytest.approx([0, 0.45, 0.9, 0.77552, 0.475, 0.05, 0.05], abs=5e-6)
    assert [chord_mu(s, warmup=0, decay=0, peak=0.3, valley=0.3) for s in (0, 1, 9)] == [0.3] * 3
    assert chord_mu(0, warmup=0, decay=100, peak=0.9, valley=0.05) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"peak": 1.1}, "mu is a share"), ({"valley": -0.1}, "mu is a share"), ({"decay": -1}, "decay >= 0")],
)
def test_impossible_mus(options, message):
    with pytest.raises(ValueError, match=message):
        chord_mu(0, **{"warmup": 1, "decay": 1, "peak": 0.9, "valley": 0.1, **options})
