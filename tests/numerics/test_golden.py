"""Numbers computed by the reference implementations of the field, and by hand where we decide otherwise."""

import math

import pytest
import torch

from cohort.algorithms.correction import mismatch
from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.masking import AGGREGATIONS, aggregate, counts, whiten
from cohort.algorithms.registry import ADVANTAGES
from cohort.algorithms.schedules import adaptive_kl
from cohort.algorithms.shaping import place


def mask_of(lengths: list[int], width: int) -> torch.Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).double()


def matrix(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- advantages: five rows, three groups, of which two have one row -------------------------------

SCORES = torch.tensor([1, 0, 0.5, 1, 2], dtype=torch.float64)
GROUP = torch.tensor([0, 0, 0, 1, 2])
MASK = mask_of([3, 2, 4, 1, 3], 4)

# verl's values; rows 3 and 4 are groups of one, to which verl's grpo gives their raw score and we give 0.
ADVANTAGE_GOLDEN = {
    "grpo": [0.999998, -0.999998, 0, 0, 0],
    "dr_grpo": [0.5, -0.5, 0, 0, 0],
}


@pytest.mark.parametrize("name", ADVANTAGE_GOLDEN)
def test_advantages(name):
    advantages, returns = ADVANTAGES[name].function(rewards=place(SCORES, MASK), mask=MASK, group=GROUP)
    expected = torch.tensor(ADVANTAGE_GOLDEN[name], dtype=torch.float64)[:, None] * MASK
    torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=0)
    assert torch.equal(returns, advantages)


def test_the_classic_example_uses_the_unbiased_deviation():
    mask = torch.ones(3, 1)
    advantages, _ = ADVANTAGES["grpo"].function(
        rewards=torch.tensor([[1.0], [0.0], [1.0]]), mask=mask, group=torch.zeros(3, dtype=torch.int64)
    )
    torch.testing.assert_close(advantages[:, 0], torch.tensor([0.577349, -1.154699, 0.577349]), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("group", [1.16172, -0.38724, -1.16172, 0.38724, 0, 0, -1.22444, 1.22444]),
        ("batch", [1.44886, -0.48295, -1.44886, 0.48295, 0, 0, -0.96591, 0.96591]),
        ("none", [0.75, -0.25, -0.75, 0.25, 0, 0, -0.5, 0.5]),
    ],
)
def test_scales_of_grpo(scale, expected):
    rewards = torch.tensor([1.5, 0.5, 0, 1, 0.5, 0.5, 0, 1], dtype=torch.float64)[:, None]
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    advantages, _ = ADVANTAGES["grpo"].function(rewards, torch.ones_like(rewards), group, scale=scale, epsilon=1e-4)
    torch.testing.assert_close(advantages[:, 0], torch.tensor(expected, dtype=torch.float64), atol=5e-6, rtol=0)


def test_a_reward_on_a_token_the_model_did_not_write_counts():
    rewards = torch.zeros(2, 6)
    rewards[0, 5] = 1.0
    mask = torch.tensor([[1.0, 1, 1, 0, 0, 0]]).repeat(2, 1)
    advantages, _ = ADVANTAGES["dr_grpo"].function(rewards=rewards, mask=mask, group=torch.zeros(2, dtype=torch.int64))
    assert advantages.tolist() == [[0.5, 0.5, 0.5, 0, 0, 0], [-0.5, -0.5, -0.5, 0, 0, 0]]


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


def test_every_built_in_entry_has_golden_numbers():
    built_in = {name for name, entry in ADVANTAGES.items() if entry.function.__module__.startswith("cohort.")}
    assert built_in == set(ADVANTAGE_GOLDEN)
    assert set(KL_KINDS) == set(KL_GOLDEN)
