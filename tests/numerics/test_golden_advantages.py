"""Advantages computed by the reference implementations of the field, and by hand where we decide otherwise."""

import pytest
import torch

from cohort.algorithms.masking import whiten
from cohort.algorithms.registry import ADVANTAGES
from cohort.algorithms.shaping import kl_in_reward, place
from tests.numerics.estimators import built_in_advantages
from tests.numerics.test_golden import mask_of, matrix

# --- verl's table: five rows, three groups, of which two have one row ---------------------------------------

SCORES = torch.tensor([1, 0, 0.5, 1, 2], dtype=torch.float64)
GROUP = torch.tensor([0, 0, 0, 1, 2])
MASK = mask_of([3, 2, 4, 1, 3], 4)
OLD = matrix([0.5, 0.6, 0.7, 1], [0.4, 0.9, 1, 1], [0.3, 0.5, 0.6, 0.8], [0.5, 1, 1, 1], [0.9, 0.8, 0.7, 1]).log()
VALUES = matrix(
    [0.1, 0.2, 0.3, 0.9], [0.1, 0.1, 0.9, 0.9], [0, 0.1, 0.2, 0.3], [0.5, 0.9, 0.9, 0.9], [0.4, 0.3, 0.2, 0.9]
)
NEEDS = {
    "values": VALUES,
    "parts": SCORES[:, None],
    "baseline": torch.tensor([0.5, 0, 0.5, 0, 1], dtype=torch.float64),
    "old_log_probs": OLD,
    "sum_pi_squared": torch.full_like(OLD, 0.4),
    "rollout_is_weights": None,
}
TOKEN_BASELINE = matrix([0.55556, 0.4, 0.35, 0], [-0.44444, -0.6, 0, 0], [0.05556, -0.1, -0.15, 0.5], [0] * 4, [0] * 4)

# verl's values, a number per row or a row of numbers. Rows 3 and 4 are groups of one, to which verl's grpo, opo, gpg,
# rloo and token baselines give their raw score (its rloo_vectorized 0) and we give 0; the two that whiten take them
# into mean and variance in verl and not here, so those are worked by hand (and verl's own numbers below).
GOLDEN = {
    "grpo": ({}, [0.999998, -0.999998, 0, 0, 0]),
    "dr_grpo": ({}, [0.5, -0.5, 0, 0, 0]),
    "rloo": ({}, [0.75, -0.75, 0, 0, 0]),
    "opo": ({}, [0.444444, -0.555556, -0.055556, 0, 0]),
    "gpg": ({}, [0.625, -0.625, 0, 0, 0]),
    "max_rl": ({}, [1, -1, 0, 0, 0]),
    "reinforce_plus_plus_baseline": ({}, [1.137070, -1.421338, -0.142134, 0, 0]),
    "gdpo": ({}, [0.999999, -0.999999, 0, 0, 0]),
    "grpo_passk": ({}, [0.999998, 0, 0, 0, 0]),
    "reinforce_plus_plus": (
        {"gamma": 0.9},
        matrix(
            [-0.037979, 0.101099, 0.255630, 0],
            [-1.289682, -1.289682, 0, 0],
            [-0.726416, -0.663831, -0.594292, -0.517026],
            [0.255630, 0, 0, 0],
            [1.213724, 1.491881, 1.800943, 0],
        ),
    ),
    "remax": ({}, matrix([0.5, 0.5, 0.5, 0], [0] * 4, [0] * 4, [1, 0, 0, 0], [1, 1, 1, 0])),
    "gae": (
        {"gamma": 0.9, "lam": 0.95},
        matrix(
            [0.106855, 0.136936, 0.192896, 0],
            [-1.220319, -1.228313, 0, 0],
            [-0.456282, -0.542482, -0.622523, -0.695360],
            [-0.162406, 0, 0, 0],
            [0.873734, 1.470207, 2.147058, 0],
        ),
    ),
    "optimal_token_baseline": ({}, TOKEN_BASELINE),
    "tir_optimal_token_baseline": ({}, TOKEN_BASELINE),
}
RETURNS = {
    "reinforce_plus_plus": matrix(
        [0.81, 0.9, 1, 0], [0] * 4, [0.3645, 0.405, 0.45, 0.5], [1, 0, 0, 0], [1.62, 1.8, 2, 0]
    ),
    "gae": matrix(
        [0.751568, 0.8685, 1, 0],
        [0.0045, 0, 0, 0],
        [0.334577, 0.386055, 0.441, 0.5],
        [1, 0, 0, 0],
        [1.483245, 1.7190, 2, 0],
    ),
    "remax": SCORES[:, None] * MASK,
    "optimal_token_baseline": SCORES[:, None] * MASK,
    "tir_optimal_token_baseline": SCORES[:, None] * MASK,
}


def estimate(name, rewards, mask, group, **options):
    needs = {need: NEEDS[need] for need in ADVANTAGES[name].needs}
    return ADVANTAGES[name].function(rewards=rewards, mask=mask, group=group, **needs, **options)


@pytest.mark.parametrize("name", GOLDEN)
def test_advantages(name):
    options, golden = GOLDEN[name]
    expected = golden if isinstance(golden, torch.Tensor) else torch.tensor(golden, dtype=torch.float64)[:, None] * MASK
    advantages, returns = estimate(name, place(SCORES, MASK), MASK, GROUP, **options)
    tolerance = 6e-6 if "token_baseline" in name else 1e-6  # as many digits as were printed
    torch.testing.assert_close(advantages, expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(returns, RETURNS.get(name, advantages), atol=1e-6, rtol=0)


def test_pass_at_k_in_two_groups():
    advantages, _ = estimate("grpo_passk", place(SCORES, MASK), MASK, torch.tensor([0, 0, 0, 1, 1]))
    # verl divides by std + 1e-6 of each group: 0.5 / 0.5 and 1 / 0.7071; the score 0.5 is second best in the first.
    torch.testing.assert_close(advantages[:, 0], matrix([0.999998, 0, 0, 0, 1.414212])[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "divisor", "golden"),
    [
        ("dr_grpo", 1.0, [-0.084591, -1.184274, -0.634432, 0.465250, 1.564933]),
        ("grpo", 1 + 1e-6, [0.368437, -1.547439, -0.589501, 0.368438, 1.326378]),
    ],
)
def test_verls_own_whitening_with_raw_scores_of_groups_of_one(name, divisor, golden):
    """verl's reinforce_plus_plus_baseline and gdpo on the same rows: ours before whitening, raw scores put back."""
    values = estimate(name, place(SCORES, MASK), MASK, GROUP).advantages + place(SCORES, MASK).sum(1, True) * MASK * (
        torch.tensor([0, 0, 0, 1, 1])[:, None] / divisor
    )
    expected = torch.tensor(golden, dtype=torch.float64)[:, None] * MASK
    torch.testing.assert_close(whiten(values, MASK) * MASK, expected, atol=1.5e-6, rtol=0)


def test_gdpo_weighted_by_tokens_is_verls_on_groups_with_siblings():
    """Rows 0 to 2 by hand: z-scores 1, -1, 0 on 3, 2 and 4 tokens."""
    advantages, _ = estimate("gdpo", place(SCORES, MASK), MASK, GROUP, whiten="tokens")
    expected = torch.tensor([1.137070, -1.421338, -0.142134, 0, 0], dtype=torch.float64)[:, None] * MASK
    torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=0)


def test_the_classic_example_uses_the_unbiased_deviation():
    mask = torch.ones(3, 1)
    advantages, _ = ADVANTAGES["grpo"].function(
        rewards=torch.tensor([[1.0], [0.0], [1.0]]), mask=mask, group=torch.zeros(3, dtype=torch.int64)
    )
    torch.testing.assert_close(advantages[:, 0], torch.tensor([0.577349, -1.154699, 0.577349]), atol=2e-6, rtol=0)


# --- ms-swift's table: two groups of four, two reward functions ------------------------------------------------

PARTS = matrix([1, 1], [0, 1], [0, 0], [1, 0], [0, 1], [0, 1], [0, 0], [1, float("nan")])
WEIGHTS = (1.0, 0.5)
MIXED = torch.tensor([1.5, 0.5, 0, 1, 0.5, 0.5, 0, 1], dtype=torch.float64)[:, None]
FOURS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
CENTRED = [0.75, -0.25, -0.75, 0.25, 0, 0, -0.5, 0.5]
SWIFT = {
    "grpo/group": ("grpo", {"scale": "group"}, [1.16172, -0.38724, -1.16172, 0.38724, 0, 0, -1.22444, 1.22444]),
    "grpo/batch": ("grpo", {"scale": "batch"}, [1.44886, -0.48295, -1.44886, 0.48295, 0, 0, -0.96591, 0.96591]),
    "grpo/none": ("grpo", {"scale": "none"}, CENTRED),
    "rloo/none": ("rloo", {"scale": "none"}, [1.0, -0.33333, -1.0, 0.33333, 0, 0, -0.66667, 0.66667]),
    "rloo/group": ("rloo", {"scale": "group"}, [1.54895, -0.51632, -1.54895, 0.51632, 0, 0, -1.63259, 1.63259]),
    "r++/batch": (
        "reinforce_plus_plus_baseline",
        {"scale": "batch"},
        [1.4997, -0.4999, -1.4997, 0.4999, 0, 0, -0.9998, 0.9998],
    ),
    # Not printed there, but the same formula as grpo's: the deviation of centred scores within a group.
    "r++/group": (
        "reinforce_plus_plus_baseline",
        {"scale": "group"},
        [1.16172, -0.38724, -1.16172, 0.38724, 0, 0, -1.22444, 1.22444],
    ),
    "r++/none": ("reinforce_plus_plus_baseline", {"scale": "none"}, CENTRED),
}


@pytest.mark.parametrize("row", SWIFT)
def test_scales(row):
    name, options, golden = SWIFT[row]
    epsilon = {} if options["scale"] == "none" else {"epsilon": 1e-4}
    advantages, _ = ADVANTAGES[name].function(MIXED, torch.ones_like(MIXED), FOURS, **options, **epsilon)
    tolerance = 6e-5 if row == "r++/batch" else 6e-6  # as many digits as were printed
    torch.testing.assert_close(advantages[:, 0], matrix(golden)[0], atol=tolerance, rtol=0)


def test_gdpo_with_a_reward_that_does_not_apply():
    advantages, _ = ADVANTAGES["gdpo"].function(
        torch.zeros_like(MIXED), torch.ones_like(MIXED), FOURS, PARTS, weights=WEIGHTS, epsilon=1e-8
    )
    golden = [1.27644, -0.42548, -1.27644, 0.42548, -0.20765, -0.20765, -1.05861, 1.47391]
    torch.testing.assert_close(advantages[:, 0], matrix(golden)[0], atol=6e-6, rtol=0)


def test_rloo_with_kl_in_the_reward():
    kl = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64)[:, None]
    mask = torch.ones_like(kl)
    rewards, _ = kl_in_reward(MIXED, kl, torch.zeros_like(kl), mask, 0.5, "kl")
    golden = [1.1, -0.3, -1.03333, 0.23333, 0, 0, -0.66667, 0.66667]
    torch.testing.assert_close(
        ADVANTAGES["rloo"].function(rewards, mask, FOURS).advantages[:, 0], matrix(golden)[0], atol=6e-6, rtol=0
    )


def test_uneven_groups_of_requests():
    """ms-swift's request-aware path, rewards of the unique requests a to d: the duplicate of a is not counted twice."""
    rewards = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)[:, None]
    advantages, _ = ADVANTAGES["grpo"].function(
        rewards, torch.ones_like(rewards), torch.tensor([0, 0, 1, 1]), epsilon=1e-4
    )
    torch.testing.assert_close(advantages[:, 0], 0.70701 * matrix([1, -1, 1, -1])[0], atol=6e-6, rtol=0)


# --- tool output between the model's tokens ---------------------------------------------------------------------

ONE = torch.tensor([0])


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
@pytest.mark.parametrize(
    ("mask", "expected"),
    [([1, 1, 0, 0, 1, 1], [1, 1, 0, 0, 1, 1]), ([1, 1, 1, 0, 0, 0], [0] * 6)],
    ids=["carried over tool output", "a reward on a masked column is dropped"],
)
def test_returns_in_many_turns(name, mask, expected):
    mask, rewards = matrix(mask), matrix([0, 0, 0, 0, 0, 1])
    needs = {"values": torch.full_like(mask, 0.1)} if name == "gae" else {}
    _, returns = ADVANTAGES[name].function(rewards, mask, ONE, **needs)
    torch.testing.assert_close(returns, matrix(expected))


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "opo", "gpg", "max_rl", "reinforce_plus_plus_baseline"])
def test_outcomes_count_a_reward_on_a_token_the_model_did_not_write(name):
    rewards = torch.zeros(2, 6)
    rewards[0, 5] = 1.0
    mask = torch.tensor([[1.0, 1, 1, 0, 0, 0]]).repeat(2, 1)
    advantages, _ = ADVANTAGES[name].function(rewards=rewards, mask=mask, group=torch.zeros(2, dtype=torch.int64))
    assert (advantages[0, :3] > 0).all() and (advantages[1, :3] < 0).all() and not advantages[:, 3:].any()


def test_discount_is_not_spent_on_tool_output():
    mask, rewards = matrix([1, 1, 0, 0, 1, 0]), matrix([0, 0, 0, 0, 1, 0])
    _, returns = ADVANTAGES["reinforce_plus_plus"].function(rewards, mask, ONE, gamma=0.5)
    torch.testing.assert_close(returns, matrix([0.25, 0.5, 0, 0, 1, 0]))
    values = matrix([0, 0, 7, 7, 0, 7])
    advantages, _ = ADVANTAGES["gae"].function(rewards, mask, ONE, values, gamma=0.5, lam=0.5, whiten=False)
    torch.testing.assert_close(advantages, matrix([0.0625, 0.25, 0, 0, 1, 0]))


def test_the_tool_integrated_baseline_compares_the_tth_tokens_the_model_wrote():
    """Row 0 writes at columns 0, 1, row 1 at 0, 3: by columns they share one position, by tokens two."""
    mask = matrix([1, 1, 0, 0], [1, 0, 0, 1])
    scores, group = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0, 0])
    half = torch.full_like(mask, 0.5)
    arguments = (place(scores, mask), mask, group, half.log(), half)  # w = 0.5 for each token, so means are plain
    by_token, _ = ADVANTAGES["tir_optimal_token_baseline"].function(*arguments)
    torch.testing.assert_close(by_token, matrix([0.5, 0.5, 0, 0], [-0.5, 0, 0, -0.5]), atol=1e-7, rtol=0)
    by_column, _ = ADVANTAGES["optimal_token_baseline"].function(*arguments)
    torch.testing.assert_close(by_column, matrix([0.5, 0, 0, 0], [-0.5, 0, 0, 0]), atol=1e-7, rtol=0)


def test_the_end_of_the_longest_answer():
    mask = mask_of([3, 2, 4], 4)
    scores = torch.tensor([1, 0, 0.5], dtype=torch.float64)
    arguments = (place(scores, mask), mask, GROUP[:3], OLD[:3], torch.full_like(mask, 0.4))
    for name in ("optimal_token_baseline", "tir_optimal_token_baseline"):
        on, _ = ADVANTAGES[name].function(*arguments)
        off, _ = ADVANTAGES[name].function(*arguments, handle_zero_tail=False)
        assert on[2, 3].item() == 0.5 and off[2, 3].item() == 0
        assert torch.equal(on[:, :3], off[:, :3])


def test_every_built_in_advantage_has_golden_numbers():
    assert set(built_in_advantages()) == set(GOLDEN)
