"""Numbers computed by the reference implementations of the field, and by hand where we decide otherwise."""

import math

import pytest
import torch

from cohort.algorithms.correction import mismatch
from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.masking import AGGREGATIONS, aggregate, counts, whiten
from cohort.algorithms.schedules import adaptive_kl


def mask_of(lengths: list[int], width: int) -> torch.Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).double()


def matrix(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- aggregation ------------------------------------------------------------------------------------


def test_aggregations():
    loss, mask = torch.arange(8.0).reshape(2, 4), mask_of([3, 2], 4).float()
    values = [aggregate(loss, mask, mode, counts(mask), horizon=4).item() for mode in AGGREGATIONS]
    assert dict(zip(AGGREGATIONS, values, strict=True)) == pytest.approx(
        {
            "token-mean": 2.4,
            "token-sum": 12,
            "seq-mean-token-sum": 6.0,
            "seq-mean-token-mean": 2.75,
            "seq-mean-token-sum-norm": 1.5,
        }
    )


# --- KL ---------------------------------------------------------------------------------------------

X = matrix([-1, -2, -0.5, -30, -0.1])
Y = matrix([-1.5, -1, -0.5, -0.1, -30])
K1 = [0.5, -1, 0, -29.9, 29.9]
K2 = [0.125, 0.5, 0, 447.005, 447.005]
K3 = [0.106531, 0.718282, 0, 10, 10]
STRAIGHT = [0.5, -1, 0, -29.9, 29.9]
KL_GOLDEN = {
    "kl": (K1, [1, 1, 1, 1, 1]),
    "k1": (K1, [1, 1, 1, 1, 1]),
    "abs": ([0.5, 1, 0, 29.9, 29.9], [1, -1, 0, -1, 1]),
    "mse": (K2, STRAIGHT),
    "k2": (K2, STRAIGHT),
    "low_var_kl": (K3, [0.393469, -1.718282, 0, 0, 0]),
    "k3": (K3, [0.393469, -1.718282, 0, 0, 0]),
    "kl+": (K1, STRAIGHT),
    "k1+": (K1, STRAIGHT),
    "abs+": ([0.5, 1, 0, 29.9, 29.9], STRAIGHT),
    "mse+": (K2, STRAIGHT),
    "k2+": (K2, STRAIGHT),
    "low_var_kl+": (K3, STRAIGHT),
    "k3+": (K3, STRAIGHT),
}


@pytest.mark.parametrize("kind", KL_KINDS)
def test_kl_kinds(kind):
    value, gradient = KL_GOLDEN[kind]
    log_probs = X.clone().requires_grad_()
    kl = kl_penalty(log_probs, Y, kind)
    kl.sum().backward()
    torch.testing.assert_close(kl.detach(), matrix(value), atol=1e-6, rtol=0)
    torch.testing.assert_close(log_probs.grad, matrix(gradient), atol=1e-6, rtol=0)


def test_k3_keeps_its_digits_near_the_reference():
    x = torch.tensor([[1e-3, 1e-4, -1e-4]])
    k3 = kl_penalty(x, torch.zeros_like(x), "k3")
    torch.testing.assert_close(k3, 0.5 * x**2, rtol=1e-3, atol=0)  # exp(x) - x - 1 in float32 is off by 20% here


def test_adaptive_kl_coefficient():
    assert adaptive_kl(0.1, 0.2, 0.05, 10_000, 1024) == pytest.approx(0.102048)


# --- whitening and mismatch -------------------------------------------------------------------------


def test_whiten():
    x, mask = torch.tensor([[1.0, 2, 3, 9]]), torch.tensor([[1.0, 1, 1, 0]])
    torch.testing.assert_close(whiten(x, mask), torch.tensor([[-1.0, 0, 1, 7]]))
    torch.testing.assert_close(whiten(x, mask, shift_mean=False), torch.tensor([[1.0, 2, 3, 9]]))


def test_mismatch():
    trainer = matrix([0.5, 0.5, 0.5], [0.4, 0.8, 1]).log()
    sampler = matrix([0.4, 0.5, 0.2], [0.5, 0.4, 1]).log()
    named = mismatch(trainer, sampler, mask_of([3, 2], 3)).named()
    expected = {
        "rollout_corr/training_ppl": 1.88388,
        "rollout_corr/rollout_ppl": 2.58004,
        "rollout_corr/kl": -0.32189,
        "rollout_corr/k3_kl": 0.18811,
        "rollout_corr/log_ppl_diff": -0.30741,
        "rollout_corr/ppl_ratio": 0.73728,
        "rollout_corr/chi2_token": 1.6905,
        "rollout_corr/chi2_seq": 5.16281,
        "training/rollout_probs_diff_mean": 0.18,
        "training/rollout_probs_diff_max": 0.4,
    }
    assert {name: named[name].item() for name in expected} == pytest.approx(expected, abs=5e-6)
    assert all(math.isfinite(value) for value in named.values())


def test_mismatch_of_the_second_source():
    trainer = matrix([-1.3, -0.4, -1.5, -0.1], [-1.2, -1, 0, 0])
    sampler = matrix([-1.2, -0.45, -1.9, -0.12], [-2.2, -1, 0, 0])
    named = mismatch(trainer, sampler, mask_of([4, 2], 4)).named()
    expected = {
        "rollout_corr/kl": -0.22833,
        "rollout_corr/k3_kl": 0.13607,
        "rollout_corr/chi2_token": 1.26322,
        "rollout_corr/training_ppl": 2.64302,
        "rollout_corr/rollout_ppl": 3.72803,
        "rollout_corr/ppl_ratio": 0.75909,
    }
    assert {name: named[name].item() for name in expected} == pytest.approx(expected, abs=6e-6)


# --- nothing built in goes without --------------------------------------------------------------------


def test_every_kl_kind_has_golden_numbers():
    assert set(KL_KINDS) == set(KL_GOLDEN)
