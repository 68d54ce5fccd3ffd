"""Every advantage against a literal transcription of its paper, its limits, and what it is the gradient of."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.gae import gae
from cohort.algorithms.registry import ADVANTAGES
from cohort.algorithms.reinforce import discounted_returns
from tests.numerics import oracles_advantages
from tests.numerics.cases import NUMERICS, Case, cases
from tests.numerics.estimators import VARIANTS, Evidence, Variant, built_in_advantages, evidence
from tests.numerics.test_oracles import close

FEW = settings(NUMERICS, max_examples=8)
SCALED = [v for v in VARIANTS if "epsilon" in inspect.signature(ADVANTAGES[v.name].function).parameters]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@NUMERICS
@given(case=cases(max_width=7), scores=st.sampled_from(["dense", "binary"]))
def test_oracle(variant: Variant, case: Case, scores: str):
    evidence_ = evidence(case, scores)
    result = variant(evidence_)
    lists = {name: None if x is None else x.tolist() for name, x in variant.arguments(evidence_).items()}
    advantages, returns = oracles_advantages.ADVANTAGES[variant.name](**lists, **variant.options)
    tolerance = 1e-6 if "token_baseline" in variant.name else 1e-8  # those have 1e-8 beside the weights
    close(result.advantages, advantages, tolerance)
    close(result.returns, returns, 1e-9 if ADVANTAGES[variant.name].group_baseline is False else tolerance)


def test_the_oracles_and_the_variants_cover_every_built_in_entry():
    assert set(built_in_advantages()) == set(oracles_advantages.ADVANTAGES) == {variant.name for variant in VARIANTS}
    for name in built_in_advantages():
        parameters = inspect.signature(ADVANTAGES[name].function).parameters
        options = {p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
        tried = {option for variant in VARIANTS if variant.name == name for option in variant.options}
        assert options <= tried | {"epsilon"}, f"{name}: try every option"
        assert list(parameters)[: 3 + len(ADVANTAGES[name].needs)] == [
            "rewards",
            "mask",
            "group",
            *ADVANTAGES[name].needs,
        ]


@pytest.mark.parametrize("variant", SCALED, ids=str)
@FEW
@given(case=cases(), epsilon=st.sampled_from([1e-8, 1e-4, 0.5]))
def test_epsilon(variant: Variant, case: Case, epsilon: float):
    with_epsilon = Variant(variant.name, variant.options | {"epsilon": epsilon}, variant.without)
    evidence_ = evidence(case, "binary")
    lists = {name: x.tolist() for name, x in variant.arguments(evidence_).items() if x is not None}
    expected, _ = oracles_advantages.ADVANTAGES[variant.name](**lists, **with_epsilon.options)
    close(with_epsilon(evidence_).advantages, expected, 1e-8)


# --- limits of GAE -----------------------------------------------------------------------------------------


@NUMERICS
@given(case=cases(max_width=8), gamma=st.floats(0, 1))
def test_gae_at_lambda_one_is_monte_carlo(case: Case, gamma: float):
    given_ = evidence(case).tensors
    advantages, returns = gae(case.rewards, case.mask, case.group, given_["values"], gamma=gamma, lam=1, whiten=False)
    monte_carlo = discounted_returns(case.rewards, case.mask, gamma)
    torch.testing.assert_close(returns, monte_carlo, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(advantages, (monte_carlo - given_["values"]) * case.mask, atol=1e-12, rtol=1e-12)


@NUMERICS
@given(case=cases(max_width=8), gamma=st.floats(0, 1))
def test_gae_at_lambda_zero_is_the_error_of_one_step(case: Case, gamma: float):
    values = evidence(case).tensors["values"]
    advantages, _ = gae(case.rewards, case.mask, case.group, values, gamma=gamma, lam=0, whiten=False)
    for row, on in enumerate(case.mask):
        steps = [*on.nonzero().flatten().tolist(), None]
        for t, after in itertools.pairwise(steps):
            ahead = 0.0 if after is None else values[row, after].item()
            error = case.rewards[row, t] + gamma * ahead - values[row, t]
            assert advantages[row, t].item() == pytest.approx(error.item(), abs=1e-12)


def test_gae_of_a_perfect_critic_is_nothing():
    """Values that satisfy Bellman's equation leave no error, whatever lambda."""
    mask = torch.tensor([[1.0, 1, 0, 1, 1, 0]], dtype=torch.float64)
    rewards = torch.tensor([[0.5, 0, 9, 1, 2, 9]], dtype=torch.float64)
    values = discounted_returns(rewards, mask, 0.9)
    advantages, returns = gae(rewards, mask, torch.tensor([0]), values, gamma=0.9, lam=0.7, whiten=False)
    torch.testing.assert_close(advantages, torch.zeros_like(mask), atol=1e-15, rtol=0)
    torch.testing.assert_close(returns, values)


# --- of what the expected update is the gradient ------------------------------------------------------------


def expected_update(name: str, n: int, p: float, **options: object) -> float:
    """E[sum_i A_i d log pi(answer_i)/d theta] over all outcomes of n answers, each right with p = sigmoid(theta)."""
    total = 0.0
    for outcome in itertools.product([0.0, 1.0], repeat=n):
        rewards = torch.tensor(outcome, dtype=torch.float64)[:, None]
        one = {"rewards": rewards, "mask": torch.ones_like(rewards), "group": torch.zeros(n, dtype=torch.int64)}
        advantages = Variant(name, options)(Evidence(one)).advantages[:, 0]
        weight = math.prod(p if right else 1 - p for right in outcome)
        total += weight * sum(a * (right - p) for a, right in zip(advantages.tolist(), outcome, strict=True))
    return total


SLOPE = [(n, p) for n in (2, 3, 5) for p in (0.1, 0.5, 0.8)]


@pytest.mark.parametrize(("n", "p"), SLOPE)
def test_leaving_one_out_is_unbiased(n: int, p: float):
    """RLOO: the gradient of the success rate; with the group's own mean it is short by (n - 1) / n."""
    assert expected_update("rloo", n, p) / n == pytest.approx(p * (1 - p))
    assert expected_update("dr_grpo", n, p) / n == pytest.approx(p * (1 - p) * (n - 1) / n)
    assert expected_update("opo", n, p) / n == pytest.approx(p * (1 - p) * (n - 1) / n)


@pytest.mark.parametrize(("n", "p"), SLOPE)
def test_max_rl_climbs_the_likelihood(n: int, p: float):
    """The gradient of log p, cut after n - 1 terms: sum_k (1 - p)^(k-1), k = 1 .. n - 1, times that of p."""
    series = sum((1 - p) ** (k - 1) for k in range(1, n))
    assert expected_update("max_rl", n, p) / n == pytest.approx(series * p * (1 - p))


@pytest.mark.parametrize(("n", "p"), SLOPE)
def test_pass_at_k_climbs_the_chance_of_one_right_answer(n: int, p: float):
    """The gradient of 1 - (1 - p)^n."""
    slope = n * (1 - p) ** (n - 1) * p * (1 - p)
    assert expected_update("grpo_passk", n, p, scale="none") == pytest.approx(slope)


# --- options and errors ----------------------------------------------------------------------------------------


def test_errors_name_what_is_legal():
    x, group = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    for name in ("grpo", "rloo", "grpo_passk"):
        with pytest.raises(ValueError, match="scale 'std' is not one of group, batch, none"):
            ADVANTAGES[name].function(x, x, group, scale="std")
    with pytest.raises(ValueError, match="scale 'std' is not one of tokens, group, batch, none"):
        ADVANTAGES["reinforce_plus_plus_baseline"].function(x, x, group, scale="std")
    with pytest.raises(ValueError, match="count 'rows' is not one of scores, gradients"):
        ADVANTAGES["gpg"].function(x, x, group, count="rows")
    with pytest.raises(ValueError, match="1 weights for 2 reward parts"):
        ADVANTAGES["gdpo"].function(x, x, group, torch.zeros(2, 2), weights=[1.0])
    with pytest.raises(ValueError, match="whiten 'batch' is not one of rows, tokens, none"):
        ADVANTAGES["gdpo"].function(x, x, group, torch.zeros(2, 2), whiten="batch")


def test_a_negative_mean_is_never_turned_around():
    rewards = torch.tensor([[-1.0], [-3.0], [1.0], [3.0]])
    advantages, _ = ADVANTAGES["max_rl"].function(rewards, torch.ones(4, 1), torch.tensor([0, 0, 1, 1]))
    assert advantages[:, 0].tolist() == [0, 0, -0.5, 0.5]


def test_a_part_that_applies_to_nobody_adds_nothing():
    parts = torch.tensor([[1.0, math.nan], [0.0, math.nan], [2.0, 5.0]])
    arguments = (torch.zeros(3, 1), torch.ones(3, 1), torch.tensor([0, 0, 0]))
    both, _ = ADVANTAGES["gdpo"].function(*arguments, parts)
    first, _ = ADVANTAGES["gdpo"].function(*arguments, parts[:, :1])
    assert torch.equal(both, first)
    nothing, _ = ADVANTAGES["gdpo"].function(*arguments, parts * math.nan)
    assert torch.equal(nothing, torch.zeros(3, 1))
