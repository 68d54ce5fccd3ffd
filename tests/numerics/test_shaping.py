"""Reference blend and alignment bonus: golden numbers, loops, and what must not change."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cohort.algorithms.registry import ADVANTAGES
from cohort.algorithms.shaping import (
    ALLOCATIONS,
    DISTRIBUTIONS,
    NORM_SCOPES,
    SIM_TRANSFORMS,
    alignment_bonus,
    entropy_gate,
    gold_similarity,
    kl_in_reward,
    place,
    reference_blend,
)
from tests.numerics.cases import NUMERICS, Case, cases
from tests.numerics.test_golden import mask_of, matrix

INF, NAN = math.inf, math.nan
every_way = pytest.mark.parametrize(
    ("scope", "distribute"), [(scope, how) for scope in NORM_SCOPES for how in DISTRIBUTIONS]
)


def totals(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=1)


# --- reference blend --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribute", "expected"),
    [("token", [0, 0.2, 1.0]), ("mean", [0, 0.066667, 0.8]), ("last", [0, 0, 0.866667])],
)
def test_golden_blend(distribute, expected):
    blended, stats = reference_blend(
        matrix([0, 0, 1]), matrix([-2, -1, -0.5]), torch.ones(1, 3).double(), 0.3, distribute=distribute
    )
    torch.testing.assert_close(blended, matrix(expected), atol=1e-6, rtol=0)
    assert stats.norm_mean.item() == pytest.approx(5 / 9)
    assert stats.degenerate_frac.item() == 0
    assert stats.delta_seq_mean.item() == pytest.approx(sum(expected) - 1, abs=1e-6)
    assert set(stats.named()) == {f"actor/ref_blend/{name}" for name in stats._fields}


def blend_by_loops(case: Case, weight: float, scope: str, distribute: str) -> list[list[float]]:
    rewards, x, mask = case.rewards.tolist(), case.ref_log_probs.tolist(), case.mask.tolist()
    written = [[t for t, m in enumerate(row) if m] for row in mask]
    everything = [x[i][t] for i, row in enumerate(written) for t in row]
    for i, row in enumerate(written):
        if not row:
            continue
        pool = [x[i][t] for t in row] if scope == "sequence" else everything
        lo, hi = min(pool), max(pool)
        n = {t: (x[i][t] - lo) / (hi - lo) if hi - lo >= 1e-8 else 0.5 for t in row}
        mean = math.fsum(n.values()) / len(row)
        for t in row:
            term = {"token": n[t], "mean": n[t] / len(row), "last": mean if t == row[-1] else 0.0}[distribute]
            rewards[i][t] = (1 - weight) * rewards[i][t] + weight * term
    return rewards


@every_way
@NUMERICS
@given(case=cases(), weight=st.floats(0, 1))
def test_blend_against_loops(scope: str, distribute: str, case: Case, weight: float):
    blended, _ = reference_blend(
        case.rewards, case.ref_log_probs, case.mask, weight, norm_scope=scope, distribute=distribute
    )
    expected = torch.tensor(blend_by_loops(case, weight, scope, distribute), dtype=torch.float64)
    torch.testing.assert_close(blended, expected, atol=1e-12, rtol=1e-12)


@every_way
@NUMERICS
@given(case=cases(), junk=st.sampled_from([NAN, INF, 1e30]))
def test_a_blend_sees_nothing_off_the_mask(scope: str, distribute: str, case: Case, junk: float):
    options: dict = dict(norm_scope=scope, distribute=distribute)
    dirty = case.ref_log_probs.masked_fill(case.mask == 0, junk).requires_grad_()
    rewards = case.rewards.clone().requires_grad_()
    blended, stats = reference_blend(rewards, dirty, case.mask, 0.4, **options)
    clean, clean_stats = reference_blend(case.rewards, case.ref_log_probs, case.mask, 0.4, **options)
    torch.testing.assert_close((blended, stats), (clean, clean_stats), atol=0, rtol=0)
    assert not blended.requires_grad
    assert torch.equal(blended[case.mask == 0], case.rewards[case.mask == 0])
    assert 0 <= stats.norm_mean.item() <= 1
    unchanged, _ = reference_blend(case.rewards, case.ref_log_probs, case.mask, 0.0, **options)
    assert torch.equal(unchanged, case.rewards)


def test_rows_that_have_no_range():
    x = matrix([-1, -1, -1], [-3, 9, 9], [9, 9, 9], [-INF, -2, -1], [-INF, NAN, -INF], [-1, INF, -2])
    mask = matrix([1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1])
    rewards = torch.full((6, 3), 2.0, dtype=torch.float64)
    blended, stats = reference_blend(rewards, x, mask, 0.5)
    half, same = 1.25, 2.0  # (2 + 0.5) / 2 where the answer says nothing, and no change off the mask
    expected = [[half] * 3, [half, same, same], [same] * 3, [1, 1, 1.5], [half] * 3, [1.5, 1, 1]]
    torch.testing.assert_close(blended, matrix(*expected))
    assert stats.degenerate_frac.item() == pytest.approx(3 / 5)
    fined, _ = reference_blend(rewards, x, mask, 0.5, degenerate_value=0.0)
    assert fined[0].tolist() == [1, 1, 1]


def test_one_range_for_the_batch_keeps_the_level():
    x, mask = matrix([-1, -2], [-9, -10]), torch.ones(2, 2).double()
    zero = torch.zeros(2, 2).double()
    shape, _ = reference_blend(zero, x, mask, 1.0)
    level, stats = reference_blend(zero, x, mask, 1.0, norm_scope="batch")
    assert torch.equal(shape[0], shape[1])
    torch.testing.assert_close(level, matrix([1, 8 / 9], [1 / 9, 0]))
    assert stats.degenerate_frac.item() == 0
    assert reference_blend(zero, zero, mask, 1.0, norm_scope="batch")[1].degenerate_frac.item() == 1


@pytest.mark.parametrize("distribute", DISTRIBUTIONS)
def test_only_one_way_pays_for_length(distribute):
    """Two right answers, alike but for their length: ``token`` makes the long one better, the others do not."""
    pattern = torch.tensor([-3.0, -1.0, -2.0, -1.0], dtype=torch.float64)
    x = torch.stack([pattern.repeat(10), torch.cat([pattern, torch.zeros(36, dtype=torch.float64)])])
    mask = mask_of([40, 4], 40)
    rewards = place(torch.ones(2, dtype=torch.float64), mask)
    blended, _ = reference_blend(rewards, x, mask, 0.6, distribute=distribute)
    long, short = totals(blended).tolist()
    if distribute == "token":
        assert long - short == pytest.approx(0.6 * 36 * 0.625)
    else:
        assert long == pytest.approx(short)
        assert long == pytest.approx(0.4 + 0.6 * 0.625)


@NUMERICS
@given(case=cases(), weight=st.floats(0.05, 0.95))
def test_blending_before_or_after_the_kl_differs_by_the_weighted_kl(case: Case, weight: float):
    kl = (case.log_probs, case.ref_log_probs, case.mask, 0.3, "k1")
    after, _ = reference_blend(kl_in_reward(case.rewards, *kl)[0], case.ref_log_probs, case.mask, weight)
    before, _ = kl_in_reward(reference_blend(case.rewards, case.ref_log_probs, case.mask, weight)[0], *kl)
    penalty = 0.3 * (case.log_probs - case.ref_log_probs) * case.mask
    torch.testing.assert_close(after - before, weight * penalty, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(weight=1.2), "its weight is 0 to 1, got 1.2"),
        (dict(weight=0.5, norm_scope="row"), "norm_scope 'row' is not one of sequence, batch"),
        (dict(weight=0.5, distribute="sum"), "distribute 'sum' is not one of token, mean, last"),
    ],
)
def test_impossible_blends(options, message):
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=message):
        reference_blend(x, x, torch.ones(1, 2), **options)


# --- similarity and gate --------------------------------------------------------------------------------


def test_similarity_to_the_nearest_gold():
    answers = matrix([3, 4], [1, 0], [0, 0], [1, 1], [2, 0])
    golds = torch.stack(
        [
            matrix([6, 8], [0, 0]),
            matrix([0, 5], [-1, 0]),
            matrix([1, 0], [1, 0]),
            matrix([1, 0], [0, 9]),
            matrix([1, 0], [0, 0]),
        ]
    )
    gold_mask = matrix([1, 0], [1, 1], [1, 1], [1, 1], [0, 0])
    expected = torch.tensor([1, 0, 0, 2**-0.5, 0], dtype=torch.float64)
    torch.testing.assert_close(gold_similarity(answers, golds, gold_mask), expected)
    torch.testing.assert_close(gold_similarity(answers, golds.flip(1), gold_mask.flip(1)), expected)


@NUMERICS
@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 1e3))
def test_similarity_is_a_cosine(seed: int, scale: float):
    generator = torch.Generator().manual_seed(seed)
    answers = torch.randn(4, 16, generator=generator)
    golds = torch.randn(4, 3, 16, generator=generator)
    everywhere = torch.ones(4, 3)
    similarity = gold_similarity(answers, golds, everywhere)
    pairwise = torch.nn.functional.cosine_similarity(answers[:, None], golds, dim=-1)
    torch.testing.assert_close(similarity, pairwise.amax(dim=1))
    torch.testing.assert_close(gold_similarity(scale * answers, golds, everywhere), similarity, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gold_similarity(answers, answers[:, None], everywhere[:, :1]), torch.ones(4))
    assert gold_similarity(answers, -answers[:, None], everywhere[:, :1]).min() >= -1
    half = gold_similarity(answers.bfloat16(), golds.bfloat16(), everywhere)
    assert half.dtype == torch.float32


@NUMERICS
@given(case=cases(), threshold=st.floats(0, 2))
def test_the_gate_is_the_mean_over_the_tokens(case: Case, threshold: float):
    entropy = case.rewards.abs().masked_fill(case.mask == 0, NAN)
    is_open, average = entropy_gate(entropy, case.mask, threshold)
    values = entropy[case.mask > 0].tolist()
    mean = math.fsum(values) / len(values) if values else 0.0
    assert average.item() == pytest.approx(mean, abs=1e-12)
    assert is_open.item() == (bool(values) and mean >= threshold)


def test_reaching_the_threshold_opens_the_gate():
    ones = torch.ones(2, 3)
    assert entropy_gate(ones, ones, 1.0).is_open
    assert not entropy_gate(ones, ones, 1.0001).is_open
    assert not entropy_gate(ones, torch.zeros(2, 3), 0.0).is_open  # an empty batch decides nothing


# --- alignment bonus --------------------------------------------------------------------------------------


def shares(row: list[float], entropy: list[float], allocation: str) -> list[float]:
    written = [t for t, m in enumerate(row) if m]
    if not written:
        return [0.0] * len(row)
    weights = {
        "uniform": dict.fromkeys(written, 1.0),
        "last": {t: float(t == written[-1]) for t in written},
        "linear_tail": {t: float(k) for k, t in enumerate(written, start=1)},
        "entropy": {t: entropy[t] for t in written}
        if any(entropy[t] for t in written)
        else dict.fromkeys(written, 1.0),
    }[allocation]
    return [weights.get(t, 0.0) / math.fsum(weights.values()) for t in range(len(row))]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("transform", SIM_TRANSFORMS)
@NUMERICS
@given(case=cases(), weight=st.floats(0.01, 2), centre=st.booleans())
def test_bonus_against_loops(allocation: str, transform: str, case: Case, weight: float, centre: bool):
    similarity = torch.tanh(case.advantages[:, 0])
    entropy = case.rewards.clamp(min=0).masked_fill(case.mask == 0, NAN)
    shaped, stats = alignment_bonus(
        case.rewards,
        similarity,
        case.mask,
        weight,
        allocation=allocation,
        entropy=entropy,
        sim_transform=transform,
        group=case.group if centre else None,
    )
    values = [{"none": s, "relu": max(s, 0.0), "shifted": (1 + s) / 2}[transform] for s in similarity.tolist()]
    group = case.group.tolist()
    if centre:
        means = {g: math.fsum(v for v, h in zip(values, group, strict=True) if h == g) / group.count(g) for g in group}
        values = [v - means[g] for v, g in zip(values, group, strict=True)]
    expected = case.rewards.tolist()
    for i, row in enumerate(case.mask.tolist()):
        for t, share in enumerate(shares(row, entropy[i].tolist(), allocation)):
            expected[i][t] += weight * values[i] * share
    torch.testing.assert_close(shaped, torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=1e-10)
    assert torch.equal(shaped[case.mask == 0], case.rewards[case.mask == 0])
    # Whatever the length, with or without holes, the answer's total moves by weight * similarity.
    rows = (case.mask > 0).any(1)
    gained = totals(shaped - case.rewards)[rows]
    torch.testing.assert_close(gained, weight * torch.tensor(values, dtype=torch.float64)[rows], atol=1e-9, rtol=1e-9)
    if rows.any():
        assert stats.bonus_mean.item() == pytest.approx(gained.mean().item(), abs=1e-9)
        assert stats.sim_mean.item() == pytest.approx(similarity[rows].mean().item())
        assert stats.sim_max.item() == pytest.approx(similarity[rows].max().item())
        assert stats.sim_min.item() == pytest.approx(similarity[rows].min().item())
    if rows.sum() > 1:
        assert stats.sim_std.item() == pytest.approx(similarity[rows].std().item())
    assert set(stats.named()) == {f"actor/repr/ref_gold_align/{name}" for name in stats._fields}


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@NUMERICS
@given(case=cases())
def test_no_weight_no_change(allocation: str, case: Case):
    similarity = case.advantages[:, 0].clone().requires_grad_()
    entropy = case.rewards.abs()
    same, _ = alignment_bonus(case.rewards, similarity, case.mask, 0.0, allocation=allocation, entropy=entropy)
    assert torch.equal(same, case.rewards)
    moved, _ = alignment_bonus(case.rewards, similarity, case.mask, 0.5, allocation=allocation, entropy=entropy)
    assert not moved.requires_grad


def test_outcome_estimators_see_no_allocation_and_no_centre():
    generator = torch.Generator().manual_seed(1)
    mask = mask_of([3, 1, 5, 2], 5)
    group = torch.tensor([0, 0, 1, 1])
    rewards = place(torch.randn(4, generator=generator).double(), mask)
    similarity, entropy = torch.rand(4, generator=generator).double(), torch.rand(4, 5, generator=generator).double()

    def advantages(**options):
        shaped, _ = alignment_bonus(rewards, similarity, mask, 0.3, entropy=entropy, **options)
        return ADVANTAGES["dr_grpo"].function(rewards=shaped, mask=mask, group=group).advantages

    plain = advantages()
    for allocation in ALLOCATIONS:
        torch.testing.assert_close(advantages(allocation=allocation), plain)
    torch.testing.assert_close(advantages(group=group), plain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(weight=-0.1), "must not be negative"),
        (dict(weight=0.1, allocation="first"), "allocation 'first' is not one of uniform"),
        (dict(weight=0.1, allocation="entropy"), "needs the entropy of each token"),
        (dict(weight=0.1, sim_transform="abs"), "sim_transform 'abs' is not one of none, relu, shifted"),
    ],
)
def test_impossible_bonuses(options, message):
    with pytest.raises(ValueError, match=message):
        alignment_bonus(torch.zeros(1, 2), torch.zeros(1), torch.ones(1, 2), **options)
