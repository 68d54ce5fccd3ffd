"""What must not change an advantage: order of rows, names of groups, padding, whatever stands off the mask."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.group import group_statistics
from cohort.algorithms.registry import ADVANTAGES
from cohort.algorithms.shaping import place
from tests.numerics.cases import NUMERICS, Case, cases
from tests.numerics.estimators import VARIANTS, Evidence, Variant, built_in_advantages, evidence

TOKEN_LEVEL = {"gae", "reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline"}
# Pass@k raises the best and lowers no one; a weighted mean is 0 only with its weights.
UNCENTRED = {"grpo_passk", "optimal_token_baseline", "tir_optimal_token_baseline"}
FEW = settings(NUMERICS, max_examples=8)  # of each estimator under each of its options
GROUPED = [variant for variant in VARIANTS if ADVANTAGES[variant.name].group_baseline]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@FEW
@given(case=cases(), scores=st.sampled_from(["dense", "binary"]))
def test_advantages_follow_their_rows(variant: Variant, case: Case, scores: str):
    given_ = evidence(case, scores)
    order = torch.randperm(len(case.mask), generator=case.generator)
    before = variant(given_)
    after = variant(given_.rows(order))
    torch.testing.assert_close(after, type(before)(*(x[order] for x in before)), atol=1e-10, rtol=1e-10)
    renumbered = variant(Evidence(given_.tensors | {"group": 1000 - 7 * case.group}))
    torch.testing.assert_close(renumbered, before, atol=1e-12, rtol=1e-12)
    for x in variant(given_.padded(3, math.nan)):
        assert not x[:, case.mask.shape[1] :].any()
    narrow = type(before)(*(x[:, : case.mask.shape[1]] for x in variant(given_.padded(3, math.nan))))
    torch.testing.assert_close(narrow, before, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@FEW
@given(case=cases(), junk=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_what_stands_off_the_mask_reaches_no_advantage(variant: Variant, case: Case, junk: float):
    given_ = evidence(case)
    before = variant(given_)
    after = variant(given_.junk(junk, rewards=variant.name in TOKEN_LEVEL))
    assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True))
    assert not any(x[case.mask == 0].any() for x in before)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@FEW
@given(case=cases())
def test_advantages_carry_no_gradient_and_change_no_input(variant: Variant, case: Case):
    given_ = evidence(case)
    floats = {name: x.clone().requires_grad_(name not in ("group", "mask")) for name, x in given_.tensors.items()
              if x.is_floating_point()}  # fmt: skip
    result = variant(Evidence(given_.tensors | floats))
    assert not any(x.requires_grad for x in result)
    for name, x in floats.items():
        torch.testing.assert_close(x.detach(), given_.tensors[name], atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("variant", [v for v in GROUPED if v.name not in UNCENTRED], ids=str)
@FEW
@given(case=cases(max_width=1, full_mask=True), scores=st.sampled_from(["dense", "binary"]))
def test_advantages_of_a_group_add_up_to_nothing(variant: Variant, case: Case, scores: str):
    given_ = evidence(case, scores)
    if variant.name == "max_rl":
        given_ = Evidence(given_.tensors | {"rewards": given_.tensors["rewards"].abs()})  # means away from 0
    advantages, _ = variant(given_)
    for number in case.group.unique():
        rows = case.group == number
        assert advantages[rows].sum().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("variant", GROUPED, ids=str)
@FEW
@given(case=cases())
def test_a_group_of_one_learns_nothing(variant: Variant, case: Case):
    case.group[0] = 999
    assert not variant(evidence(case)).advantages[0].any()


@pytest.mark.parametrize("variant", GROUPED, ids=str)
@pytest.mark.parametrize("score", [0.1, 1 / 3, 0.7, -1e6 + 0.3, 0.0])
@pytest.mark.parametrize("lengths", [[5], [5, 5, 5], [1, 3, 3, 2, 3, 0]])
def test_equal_scores_give_exactly_no_advantage(variant: Variant, score: float, lengths: list[int]):
    """In float32 the mean of three times 0.1 is not 0.1; divided by a tiny deviation that would be an advantage."""
    B, T = len(lengths), 6
    mask = (torch.arange(T) < torch.tensor(lengths)[:, None]).float()
    p = torch.full((B, T), 0.3)
    same = {
        "rewards": place(torch.full((B,), score), mask)
        if "token_baseline" in variant.name
        else score * torch.eye(T)[:B],
        "mask": mask,
        "group": torch.zeros(B, dtype=torch.int64),
        "parts": torch.full((B, 3), score),
        "old_log_probs": p.log(),
        "sum_pi_squared": p,
        "rollout_is_weights": p,
    }
    advantages = variant(Evidence(same)).advantages
    assert torch.equal(advantages, torch.zeros_like(advantages))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7])
def test_equal_returns_whiten_to_exactly_nothing(value: float):
    mask = torch.ones(3, 5)
    rewards = torch.zeros(3, 5)
    rewards[:, -1] = value
    group = torch.zeros(3, dtype=torch.int64)
    assert not ADVANTAGES["reinforce_plus_plus"].function(rewards, mask, group).advantages.any()
    assert not ADVANTAGES["gae"].function(rewards, mask, group, torch.zeros(3, 5)).advantages.any()


@NUMERICS
@given(case=cases(max_width=1, full_mask=True), shift=st.floats(-10, 10), factor=st.floats(0.5, 10))
def test_grpo_does_not_see_the_scale_of_a_reward(case: Case, shift: float, factor: float):
    before = ADVANTAGES["grpo"].function(case.rewards, case.mask, case.group, epsilon=0.0).advantages
    after = ADVANTAGES["grpo"].function(shift + factor * case.rewards, case.mask, case.group, epsilon=0.0).advantages
    torch.testing.assert_close(after, before, atol=1e-9, rtol=1e-9, equal_nan=True)


@NUMERICS
@given(case=cases(max_width=1), factor=st.floats(0.5, 10))
def test_max_rl_does_not_see_the_unit_of_a_reward(case: Case, factor: float):
    rewards = case.rewards.abs()
    before = ADVANTAGES["max_rl"].function(rewards, case.mask, case.group).advantages
    after = ADVANTAGES["max_rl"].function(factor * rewards, case.mask, case.group).advantages
    torch.testing.assert_close(after, before, atol=1e-9, rtol=1e-9)


def test_one_group_with_a_nan_score_spoils_no_other():
    scores = torch.tensor([1.0, math.nan, 1.0, 0.0])
    statistics = group_statistics(scores, torch.tensor([5, 5, 2, 2]))
    assert statistics.deviation[:2].isnan().all()
    assert statistics.deviation[2:].tolist() == [0.5, -0.5]


def test_a_nan_score_is_seen_on_the_mask_and_nowhere_else():
    rewards, mask = torch.tensor([[math.nan, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    advantages, _ = ADVANTAGES["grpo"].function(rewards, mask, torch.tensor([0, 0]))
    assert advantages[:, 0].isnan().all() and not advantages[:, 1].any()


def test_group_baselines_are_declared():
    """Whatever compares within the group is refused with one sample per prompt; the rest runs with one."""
    assert {name for name in built_in_advantages() if not ADVANTAGES[name].group_baseline} == {
        "gae",
        "reinforce_plus_plus",
        "remax",
    }
