"""Numbers of policy and value losses computed by the reference implementations of the field, values and gradients."""

import pytest
import torch

from cohort.algorithms.kl import kl_penalty
from cohort.algorithms.masking import aggregate, counts, masked_mean
from cohort.algorithms.ppo_loss import clipped
from cohort.algorithms.registry import POLICY_LOSSES
from cohort.algorithms.token_choice import entropy_threshold, off_policy_rows, top_entropy_mask
from cohort.algorithms.value_loss import clipped_value_loss
from tests.numerics.losses import Variant
from tests.numerics.test_golden import mask_of, matrix
from tests.numerics.test_oracles import built_in

# --- verl's table --------------------------------------------------------------------------------------

OLD = matrix([-1, -1, -1, -1], [-2, -0.5, -1, -1])
NEW = matrix([-0.9, -0.5, -1.8, -1], [-0.4, -0.6, -1, -1])
A = matrix([1, 1, 1, 0], [-1, -1, 0, 0])
LOSS_MASK = mask_of([3, 2], 4)
TOKEN_MEAN, ROW_MEAN = "token-mean", "seq-mean-token-mean"
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
VERL_CAP = {**CLIP, "ratio_cap": 3.0}


def metrics(clipfrac: float, ppo_kl: float, lower: float | None = None) -> dict[str, float]:
    return {"pg_clipfrac": clipfrac, "ppo_kl": ppo_kl} | ({} if lower is None else {"pg_clipfrac_lower": lower})


GSPO = (
    CLIP,
    ROW_MEAN,
    0.590747,
    [[-0.155918, -0.155918, -0.155918, 0], [0.529250, 0.529250, 0, 0]],
    metrics(0, -0.26, 0),
)
PLAIN = (TOKEN_MEAN, 0.44, [[-0.2, -0.2, -0.2, 0], [0.2, 0.2, 0, 0]])

# name: options, aggregation, loss, gradient, diagnostics
LOSS_GOLDEN = {
    "vanilla": (
        {},
        TOKEN_MEAN,
        0.230067,
        [[-0.221034, 0, -0.089866, 0], [0, 0.180967, 0, 0]],
        metrics(0.2, -0.26, 0.2),
    ),
    "dppo_tv": (
        VERL_CAP,
        TOKEN_MEAN,
        0.012109,
        [[-0.221034, 0, -0.089866, 0], [0.6, 0.180967, 0, 0]],
        metrics(0.2, -0.26, 0.2),
    ),
    "dppo_kl": (
        VERL_CAP,
        TOKEN_MEAN,
        0.176981,
        [[-0.221034, -0.329744, -0.089866, 0], [0.6, 0.180967, 0, 0]],
        metrics(0, -0.26, 0.2),
    ),
    "gspo": GSPO,
    "gspo_token": GSPO,
    "sapo": (
        {},
        ROW_MEAN,
        0.357564,
        [[-0.183687, -0.247790, -0.069486, 0], [0.075627, 0.225646, 0, 0]],
        metrics(0, -0.26, 0),
    ),
    "gpg": ({}, *PLAIN, {}),
    "reinforce": ({}, *PLAIN, {"ppo_kl": -0.26}),  # the same loss; verl has it as a helper without a table
    "clip_cov": (
        CLIP,
        TOKEN_MEAN,
        0.620674,
        [[-0.221034, 0, -0.089866, 0], [0.990606, 0.180967, 0, 0]],
        metrics(0, -0.26),
    ),
    "kl_cov": (
        {"ppo_kl_coef": 0.1},
        TOKEN_MEAN,
        0.540930,
        [[-0.221034, -0.309744, -0.089866, 0], [0.990606, 0.180967, 0, 0]],
        {"ppo_kl": 0.62},
    ),
    "geo_mean": (
        CLIP,
        ROW_MEAN,
        0.635259,
        [[-0.141080, 0, -0.141080, 0], [0.529250, 0.529250, 0, 0]],
        metrics(0.4, -0.26, 0.2),
    ),
    "dro": (
        {"beta": 0.1},
        TOKEN_MEAN,
        0.474700,
        [[-0.198, -0.190, -0.216, 0], [0.232, 0.198, 0, 0]],
        {"ppo_kl": -0.26},
    ),
    "cispo": (
        CLIP,
        TOKEN_MEAN,
        0.402350,
        [[-0.221034, -0.24, -0.16, 0], [0.24, 0.180967, 0, 0]],
        metrics(0.6, -0.26, 0),
    ),
}


@pytest.mark.parametrize("name", LOSS_GOLDEN)
def test_policy_losses(name):
    options, mode, value, gradient, diagnostics = LOSS_GOLDEN[name]
    variant = Variant(name, options)
    log_probs = NEW.clone().requires_grad_()
    token_loss = variant(
        log_probs, OLD, A, LOSS_MASK, **variant.select(log_probs, OLD, A, LOSS_MASK, torch.rand_like(A))
    )
    loss = aggregate(token_loss.loss, LOSS_MASK, mode, counts(LOSS_MASK))
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-6)
    torch.testing.assert_close(log_probs.grad, matrix(*gradient), atol=1e-6, rtol=0)
    means = {key: masked_mean(x, LOSS_MASK).item() for key, x in token_loss.diagnostics.items()}
    assert means == pytest.approx(diagnostics, abs=1e-6)
    assert POLICY_LOSSES[name].aggregation == mode


def test_the_token_that_costs_most_entropy_is_picked():
    uniforms = torch.zeros_like(A)
    picked = Variant("kl_cov", {}).select(NEW, OLD, A, LOSS_MASK, uniforms)["selected"]
    assert picked.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]
    assert not Variant("clip_cov", {}).select(NEW, OLD, A, LOSS_MASK, uniforms)["selected"].any()


# --- ms-swift's table ----------------------------------------------------------------------------------

SWIFT_NEW = matrix([-1, -0.5, -2, -0.1], [-0.7, -1.2, 0, 0])
SWIFT_OLD = matrix([-1.3, -0.4, -1.5, -0.1], [-1.2, -1, 0, 0])
SWIFT_REF = matrix([-1.1, -0.6, -1.8, -0.2], [-0.9, -1.1, 0, 0])
SWIFT_MASK = mask_of([4, 2], 4)
SWIFT_A = matrix([1, 1, 1, 1], [-1, -1, -1, -1])


@pytest.mark.parametrize(
    ("mode", "beta", "value", "gradient"),
    [
        (ROW_MEAN, 0.0, 0.152942, [[0, -0.1131, -0.07582, -0.125], [0.41218, 0.20468, 0, 0]]),
        (TOKEN_MEAN, 0.0, -0.207319, [[0, -0.15081, -0.10109, -0.16667], [0.27479, 0.13646, 0, 0]]),
        ("seq-mean-token-sum-norm", 0.0, -0.077745, [[0, -0.05655, -0.03791, -0.0625], [0.10305, 0.05117, 0, 0]]),
        (ROW_MEAN, 0.04, 0.153361, [[0.00048, -0.11263, -0.07692, -0.12452], [0.41399, 0.20363, 0, 0]]),
    ],
)
def test_objectives(mode, beta, value, gradient):
    log_probs = SWIFT_NEW.clone().requires_grad_()
    per_token = clipped(log_probs, SWIFT_OLD, SWIFT_A, SWIFT_MASK).loss
    per_token = per_token + beta * kl_penalty(log_probs, SWIFT_REF, "low_var_kl")
    loss = aggregate(per_token, SWIFT_MASK, mode, counts(SWIFT_MASK), horizon=8)
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-6)
    torch.testing.assert_close(log_probs.grad, matrix(*gradient), atol=6e-6, rtol=0)


OF_ANSWER = (ROW_MEAN, 0.117045, [[-0.11597] * 4, [0.29046, 0.29046, 0, 0]])


@pytest.mark.parametrize(
    ("name", "options", "mode", "value", "gradient"),
    [
        (
            "vanilla",
            {"clip_high": 0.28, "delta": 1.3, "dual_clip": None},
            ROW_MEAN,
            0.055762,
            [[0, -0.1131, -0.07582, -0.125], [0, 0.20468, 0, 0]],
        ),
        (
            "cispo",
            {"ratio_cap": 1.2},
            TOKEN_MEAN,
            0.190500,
            [[-0.2, -0.15081, -0.10109, -0.16667], [0.2, 0.13646, 0, 0]],
        ),
        ("sapo", {}, ROW_MEAN, 0.080541, [[-0.16367, -0.11285, -0.07296, -0.125], [0.36784, 0.20284, 0, 0]]),
        ("gspo", CLIP, *OF_ANSWER),
        ("gspo_token", CLIP, *OF_ANSWER),
    ],
)
def test_policy_losses_of_the_second_source(name, options, mode, value, gradient):
    log_probs = SWIFT_NEW.clone().requires_grad_()
    per_token = Variant(name, options)(log_probs, SWIFT_OLD, SWIFT_A, SWIFT_MASK).loss
    loss = aggregate(per_token, SWIFT_MASK, mode, counts(SWIFT_MASK))
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-6)
    torch.testing.assert_close(log_probs.grad, matrix(*gradient), atol=6e-6, rtol=0)


def test_the_denominator_is_the_callers():
    """Rows dropped from the numerator alone: counts of the unfiltered mask go in."""
    per_token = clipped(SWIFT_NEW, SWIFT_OLD, SWIFT_A, SWIFT_MASK).loss
    kept = SWIFT_MASK * torch.tensor([[1.0], [0.0]])
    value = aggregate(per_token, kept, ROW_MEAN, counts(SWIFT_MASK))
    assert value.item() == pytest.approx(-0.463921, abs=1e-6)


# --- values and choices of tokens ------------------------------------------------------------------------


def test_value_loss():
    mask = mask_of([3], 4)
    loss, diagnostics = clipped_value_loss(
        matrix([1, 2, 3, 9]), matrix([0, 1.8, 2, 9]), matrix([0.5, 2.5, 3.5, 0]), mask, 0.5
    )
    assert aggregate(loss, mask, TOKEN_MEAN, counts(mask)).item() == pytest.approx(0.25)
    assert masked_mean(diagnostics["vf_clipfrac"], mask).item() == pytest.approx(1 / 3)
    assert masked_mean(diagnostics["vpred_mean"], mask).item() == pytest.approx(2)


def test_top_entropy():
    entropy, mask = matrix([0.1, 0.9, 0.5, 0.3], [0.7, 0.2, 9, 9]), mask_of([4, 2], 4)
    assert entropy_threshold(entropy, mask, 0.5).item() == pytest.approx(0.4)
    assert top_entropy_mask(entropy, mask, 0.5).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
    assert torch.equal(top_entropy_mask(entropy, mask, 1.0), mask)
    assert top_entropy_mask(entropy, mask, 0.2).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_off_policy_rows():
    """Worked by hand: the mean log-ratios are 0.5, 0.1, 0.5 and -2."""
    old = matrix([-1, -1], [-1, -1], [-1, -1], [-3, -3])
    new = matrix([-1.2, -1.8], [-1.2, -1], [-1.5, 5], [-1, -1])
    mask = mask_of([2, 2, 1, 2], 2)
    advantages = matrix([-1, 2], [-1, -1], [-1, -1], [-1, -1])
    assert off_policy_rows(new, old, advantages, mask, 0.2).tolist() == [[0, 1], [1, 1], [0, 0], [1, 1]]
    assert torch.equal(off_policy_rows(new, old, advantages, mask, 0.6), mask)


# --- nothing built in goes without -----------------------------------------------------------------------


def test_every_built_in_policy_loss_has_golden_numbers():
    assert set(built_in(POLICY_LOSSES)) == set(LOSS_GOLDEN)
