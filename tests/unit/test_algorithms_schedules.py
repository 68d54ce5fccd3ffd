"""Learning-rate factors and KL coefficients."""

import math

import pytest

from cohort.algorithms.schedules import KL_CONTROLLERS, adaptive_kl, fixed, lr_factor


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
