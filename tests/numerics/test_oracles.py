"""Every formula against a literal transcription of its paper, on random uneven batches."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cohort.algorithms.correction import mismatch
from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.masking import AGGREGATIONS, aggregate, counts, masked_mean, masked_var
from cohort.algorithms.shaping import kl_in_reward, place
from tests.numerics import oracles
from tests.numerics.cases import NUMERICS, Case, cases


def close(actual: torch.Tensor, expected: object, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(
        actual.detach(), torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=tolerance, equal_nan=True
    )


def built_in(registry: dict) -> list[str]:
    return [name for name, entry in registry.items() if entry.function.__module__.startswith("cohort.")]


@pytest.mark.parametrize("kind", KL_KINDS)
@NUMERICS
@given(case=cases())
def test_kl_kinds(kind: str, case: Case):
    kl = kl_penalty(case.log_probs, case.ref_log_probs, kind)
    pairs = zip(case.log_probs.tolist(), case.ref_log_probs.tolist(), strict=True)
    close(kl, [[oracles.kl(x, y, kind) for x, y in zip(xs, ys, strict=True)] for xs, ys in pairs])


@pytest.mark.parametrize("mode", AGGREGATIONS)
@NUMERICS
@given(case=cases(), horizon=st.integers(1, 100))
def test_aggregations(mode: str, case: Case, horizon: int):
    value = aggregate(case.rewards, case.mask, mode, counts(case.mask), horizon=horizon)
    close(value, oracles.aggregate(case.rewards.tolist(), case.mask.tolist(), mode, horizon))


@NUMERICS
@given(case=cases())
def test_place(case: Case):
    scores = case.rewards[:, 0]
    close(place(scores, case.mask), oracles.place(scores.tolist(), case.mask.tolist()))


@pytest.mark.parametrize("kind", KL_KINDS)
@NUMERICS
@given(case=cases())
def test_kl_in_reward(kind: str, case: Case):
    rewards, kl = kl_in_reward(case.rewards, case.log_probs, case.ref_log_probs, case.mask, 0.3, kind)
    tables = (x.tolist() for x in (case.rewards, case.log_probs, case.ref_log_probs, case.mask))
    expected_rewards, expected_kl = oracles.kl_in_reward(*tables, 0.3, kind)
    close(rewards, expected_rewards)
    close(kl, expected_kl)


@NUMERICS
@given(case=cases())
def test_mismatch(case: Case):
    if not case.mask.any():
        return
    named = mismatch(case.log_probs, case.old_log_probs, case.mask).named()
    expected = oracles.mismatch(case.log_probs.tolist(), case.old_log_probs.tolist(), case.mask.tolist())
    assert set(named) == set(expected)
    if case.mask.sum() < 3:  # the correlation of one or two points is rounding
        del expected["training/rollout_actor_probs_pearson_corr"]
    for name, value in expected.items():
        assert named[name].item() == pytest.approx(value, rel=1e-8, abs=1e-9), name


@NUMERICS
@given(case=cases())
def test_masked_moments(case: Case):
    values = case.rewards[case.mask > 0].tolist()
    close(masked_mean(case.rewards, case.mask), oracles.mean(values) if values else 0.0)
    close(masked_var(case.rewards, case.mask), oracles.sample_std(values) ** 2)
    for row, mean, variance in zip(
        range(len(case.mask)),
        masked_mean(case.rewards, case.mask, axis=1).tolist(),
        masked_var(case.rewards, case.mask, axis=1).tolist(),
        strict=True,
    ):
        inside = case.rewards[row][case.mask[row] > 0].tolist()
        assert mean == pytest.approx(oracles.mean(inside) if inside else 0.0, abs=1e-12)
        assert variance == pytest.approx(oracles.sample_std(inside) ** 2, abs=1e-12)


def test_straight_through_kinds_have_the_value_of_their_kind():
    assert math.isclose(oracles.kl(-1.0, -1.5, "k3+"), 0.1065306597)
