"""verl's own numbers through ``cohort.verl_api``, by its names, argument orders and conventions."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cohort.verl_api as core_algos
from cohort.algorithms.group import grpo
from cohort.verl_api import torch_functional as verl_F
from tests.numerics.test_golden import mask_of, matrix

LENGTHS = [3, 2, 4, 1, 3]
MASK = mask_of(LENGTHS, 4)
SCORES = torch.tensor([1.0, 0, 0.5, 1, 2], dtype=torch.float64)
REWARDS = torch.zeros(5, 4, dtype=torch.float64).scatter(1, torch.tensor(LENGTHS)[:, None] - 1, SCORES[:, None])
INDEX = np.array(["a", "a", "a", "b", "c"], dtype=object)
TWO = np.array(["a", "a", "a", "b", "b"], dtype=object)
ALGORITHM = SimpleNamespace(gamma=0.9, norm_adv_by_std_in_grpo=True)
GDPO = {"gdpo_reward_keys": ["score"]}

OUTCOME = {
    "grpo": ([0.999998, -0.999998, 0, 0.999999, 1.999998], {}),
    "grpo_vectorized": ([0.999998, -0.999998, 0, 0.999999, 1.999998], {}),
    "rloo": ([0.75, -0.75, 0, 1, 2], {}),
    "rloo_vectorized": ([0.75, -0.75, 0, 0, 0], {}),
    "opo": ([0.444444, -0.555556, -0.055556, 1, 2], {}),
    "gpg": ([0.625, -0.625, 0, 1.25, 2.5], {}),
    "reinforce_plus_plus_baseline": ([-0.084591, -1.184274, -0.634432, 0.465250, 1.564933], {}),
    "gdpo": (
        [0.368437, -1.547439, -0.589501, 0.368438, 1.326378],
        {"config": GDPO, "non_tensor_batch": {"score": SCORES.numpy().astype(object)}, "batch": {}},
    ),
    "grpo_passk": ([0.999998, 0, 0, 0, 1.414212], {"index": TWO}),
}


def close(found, expected, atol=2e-6):
    expected = torch.as_tensor(expected, dtype=torch.float64).expand_as(found)
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("name", OUTCOME)
@pytest.mark.parametrize("mask", [MASK, MASK.long(), MASK.bool()])
def test_outcome_estimators(name, mask):
    expected, more = OUTCOME[name]
    function = core_algos.get_adv_estimator_fn(name)
    given = {"token_level_rewards": REWARDS, "response_mask": mask, "index": INDEX, "config": ALGORITHM, **more}
    advantages, returns = function(**given)
    close(advantages, torch.tensor(expected)[:, None] * MASK)
    assert torch.equal(advantages, returns)


def test_grpo_without_the_deviation():
    advantages, _ = core_algos.compute_grpo_outcome_advantage(REWARDS, MASK, INDEX, 1e-6, False)
    close(advantages, torch.tensor([0.5, -0.5, 0, 1, 2])[:, None] * MASK)


def test_reinforce_plus_plus():
    advantages, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(REWARDS, MASK, config=ALGORITHM)
    close(
        returns,
        matrix([0.81, 0.9, 1, 0], [0] * 4, [0.3645, 0.405, 0.45, 0.5], [1, 0, 0, 0], [1.62, 1.8, 2, 0]),
    )
    close(
        advantages,
        matrix(
            [-0.037979, 0.101099, 0.255630, 0], [-1.289682, -1.289682, 0, 0],
            [-0.726416, -0.663831, -0.594292, -0.517026], [0.255630, 0, 0, 0], [1.213724, 1.491881, 1.800943, 0],
        ),
    )  # fmt: skip


def test_remax():
    advantages, _ = core_algos.compute_remax_outcome_advantage(REWARDS, torch.tensor([0.5, 0, 0.5, 0, 1]), MASK)
    close(advantages, torch.tensor([0.5, 0, 0, 1, 1])[:, None] * MASK)


def test_gae():
    values = matrix(
        [0.1, 0.2, 0.3, 0.9], [0.1, 0.1, 0.9, 0.9], [0, 0.1, 0.2, 0.3], [0.5, 0.9, 0.9, 0.9], [0.4, 0.3, 0.2, 0.9]
    )
    advantages, returns = core_algos.compute_gae_advantage_return(REWARDS, values, MASK, 0.9, 0.95)
    close(
        returns,
        matrix(
            [0.751568, 0.8685, 1, 0], [0.0045, 0, 0, 0], [0.334577, 0.386055, 0.441, 0.5], [1, 0, 0, 0],
            [1.483245, 1.719, 2, 0],
        ),
    )  # fmt: skip
    close(
        advantages,
        matrix(
            [0.106855, 0.136936, 0.192896, 0], [-1.220319, -1.228313, 0, 0],
            [-0.456282, -0.542482, -0.622523, -0.695360], [-0.162406, 0, 0, 0], [0.873734, 1.470207, 2.147058, 0],
        ),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_optimal_token_baseline(name):
    pi = matrix(
        [0.5, 0.6, 0.7, 0.5], [0.4, 0.9, 0.5, 0.5], [0.3, 0.5, 0.6, 0.8], [0.5, 0.5, 0.5, 0.5], [0.9, 0.8, 0.7, 0.5]
    )
    function = core_algos.get_adv_estimator_fn(name)
    advantages, _ = function(REWARDS, MASK, INDEX, pi.log(), torch.full_like(pi, 0.4))
    close(
        advantages,
        matrix(
            [0.55556, 0.4, 0.35, 0], [-0.44444, -0.6, 0, 0], [0.05556, -0.1, -0.15, 0.5], [1, 0, 0, 0], [2, 2, 2, 0]
        ),
        atol=1e-5,
    )


def test_where_every_group_has_siblings_ours_and_verls_agree():
    group = torch.tensor([0, 0, 0, 1, 1])
    theirs, _ = core_algos.compute_grpo_outcome_advantage(REWARDS, MASK, TWO)
    assert torch.equal(theirs, grpo(REWARDS, MASK, group).advantages)


# --- losses ----------------------------------------------------------------------------------------------

OLD = matrix([-1, -1, -1, -1], [-2, -0.5, -1, -1])
NEW = matrix([-0.9, -0.5, -1.8, -1], [-0.4, -0.6, -1, -1])
A = matrix([1, 1, 1, 0], [-1, -1, 0, 0])
LOSS_MASK = mask_of([3, 2], 4)
ACTOR = SimpleNamespace(
    clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, global_batch_info={},
    policy_loss={"dro_beta": 0.1, "ppo_kl_coef": 0.1},
)  # fmt: skip
KL = {"actor/ppo_kl": -0.26}

LOSSES = {
    "vanilla": (0.230067, [[-0.221034, 0, -0.089866], [0, 0.180967]], (0.2, 0.2)),
    "dppo_tv": (0.012109, [[-0.221034, 0, -0.089866], [0.6, 0.180967]], (0.2, 0.2)),
    "dppo_kl": (0.176981, [[-0.221034, -0.329744, -0.089866], [0.6, 0.180967]], (0, 0.2)),
    "gspo": (0.590747, [[-0.155918] * 3, [0.529250] * 2], (0, 0)),
    "sapo": (0.357564, [[-0.183687, -0.247790, -0.069486], [0.075627, 0.225646]], (0, 0)),
    "gpg": (0.44, [[-0.2] * 3, [0.2] * 2], None),
    "clip_cov": (0.620674, [[-0.221034, 0, -0.089866], [0.990606, 0.180967]], (0,)),
    "kl_cov": (0.540930, [[-0.221034, -0.309744, -0.089866], [0.990606, 0.180967]], None),
    "geo_mean": (0.635259, [[-0.141080, 0, -0.141080], [0.529250] * 2], (0.4, 0.2)),
    "dro": (0.474700, [[-0.198, -0.190, -0.216], [0.232, 0.198]], None),
    "cispo": (0.402350, [[-0.221034, -0.24, -0.16], [0.24, 0.180967]], (0.6, 0)),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mask", [LOSS_MASK, LOSS_MASK.bool()])
def test_policy_losses(name, mask):
    value, gradient, fractions = LOSSES[name]
    log_prob = NEW.clone().requires_grad_()
    function = core_algos.get_policy_loss_fn(name)
    loss, seen = function(
        old_log_prob=OLD, log_prob=log_prob, advantages=A, response_mask=mask, loss_agg_mode="token-mean", config=ACTOR
    )
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-6)
    assert log_prob.grad is not None
    close(log_prob.grad[0, :3], gradient[0])
    close(log_prob.grad[1, :2], gradient[1])
    expected = {"gpg": {}, "kl_cov": {"actor/ppo_kl": 0.62}}.get(name, dict(KL))
    if fractions:
        names = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower")
        expected |= dict(zip(names, fractions, strict=False))
    assert seen == pytest.approx(expected, abs=1e-6)
    assert all(type(number) is float for number in seen.values())


def test_the_older_clipped_loss():
    found = core_algos.compute_policy_loss(OLD, NEW, A, LOSS_MASK, 0.2)
    assert [float(x) for x in found] == pytest.approx([0.230067, 0.2, -0.26, 0.2], abs=1e-6)


def test_weights_against_the_sampler_enter():
    weights = torch.full_like(A, 2.0)
    for name in LOSSES:
        if name in ("clip_cov", "kl_cov"):
            continue
        function = core_algos.get_policy_loss_fn(name)
        plain, _ = function(OLD, NEW, A, LOSS_MASK, "token-mean", ACTOR)
        doubled, _ = function(OLD, NEW, A, LOSS_MASK, "token-mean", ACTOR, weights)
        assert doubled.item() == pytest.approx(2 * plain.item(), rel=1e-5), name


def test_dro_needs_a_beta():
    with pytest.raises(ValueError, match="dro_beta"):
        core_algos.compute_policy_loss_dro(OLD, NEW, A, LOSS_MASK, "token-mean", SimpleNamespace(policy_loss={}))


def test_reinforce():
    loss, seen = core_algos.compute_policy_loss_reinforce(OLD, NEW, A, LOSS_MASK, "token-mean", ACTOR)
    assert loss.item() == pytest.approx(0.44)
    assert seen == pytest.approx(KL)


def test_value_loss():
    v, old, returns = matrix([1, 2, 3, 9]), matrix([0, 1.8, 2, 9]), matrix([0.5, 2.5, 3.5, 9])
    loss, clipfrac = core_algos.compute_value_loss(v, returns, old, mask_of([3], 4), 0.5)
    assert (loss.item(), clipfrac.item()) == pytest.approx((0.25, 1 / 3))


def test_entropy_loss():
    logits = torch.tensor([[[0.0, 0, 0, 0], [50, 0, 0, 0]]])
    assert core_algos.compute_entropy_loss(logits, torch.ones(1, 2)).item() == pytest.approx(np.log(4) / 2)


# --- aggregation, KL ---------------------------------------------------------------------------------------

MODES = {
    "token-mean": 2.4,
    "token-sum": 12.0,
    "seq-mean-token-sum": 6.0,
    "seq-mean-token-sum-norm": 1.5,
    "seq-mean-token-mean": 2.75,
}


@pytest.mark.parametrize("mode", MODES)
def test_agg_loss(mode):
    losses, mask = torch.arange(8.0).reshape(2, 4), mask_of([3, 2], 4).long()
    assert core_algos.agg_loss(losses, mask, mode).item() == pytest.approx(MODES[mode])
    parts = [
        core_algos.agg_loss(losses[i : i + 1], mask[i : i + 1], mode, 2, torch.tensor(5), torch.tensor(2), 4)
        for i in range(2)
    ]
    assert sum(float(part) for part in parts) == pytest.approx(2 * MODES[mode])  # dp_size 2


def test_agg_loss_refuses():
    with pytest.raises(ValueError, match="batch_num_tokens"):
        core_algos.agg_loss(A, LOSS_MASK, "token-mean", dp_size=2)
    with pytest.raises(ValueError, match="token-median"):
        core_algos.agg_loss(A, LOSS_MASK, "token-median")


def test_kl():
    x, y = torch.tensor([[-1.0, -2, -0.5, -30, -0.1]]), torch.tensor([[-1.5, -1, -0.5, -0.1, -30]])
    close(core_algos.kl_penalty(x, y, "k1"), [[0.5, -1, 0, -29.9, 29.9]], 1e-5)
    close(core_algos.kl_penalty(x, y, "low_var_kl"), [[0.106531, 0.718282, 0, 10, 10]])
    close(core_algos.kl_penalty_forward(x, y, "k3+"), [[0.106531, 0.718282, 0, 10, 10]])
    leaf = x.clone().requires_grad_()
    core_algos.kl_penalty(leaf, y, "k3+").sum().backward()
    close(leaf.grad, [[0.5, -1, 0, -29.9, 29.9]], 1e-5)
    close(core_algos.compute_rewards(torch.ones(1, 5), x, y, 0.1)[:, :2], [[0.95, 1.1]])


def test_controllers():
    adaptive = core_algos.get_kl_controller(
        SimpleNamespace(type="adaptive", kl_coef=0.1, target_kl=0.05, horizon=10000)
    )
    adaptive.update(current_kl=0.2, n_steps=1024)
    assert adaptive.value == pytest.approx(0.102048)
    fixed = core_algos.get_kl_controller({"type": "fixed", "kl_coef": 0.3})
    fixed.update(1.0, 5)
    assert fixed.value == 0.3
    for broken in ({"type": "other"}, {"type": "adaptive", "horizon": 0}):
        with pytest.raises(ValueError):
            core_algos.get_kl_controller(broken)


def test_masked_reductions():
    values, mask = torch.tensor([1.0, 2, 3, 9]), torch.tensor([1, 1, 1, 0])
    close(verl_F.masked_whiten(values, mask), [-1.0, 0, 1, 7])
    assert verl_F.masked_mean(values, mask.bool()).item() == 2
    assert verl_F.masked_sum(values, mask).item() == 6
    assert verl_F.masked_var(values, mask).item() == 1
    assert verl_F.masked_var(values, mask, unbiased=False).item() == pytest.approx(2 / 3)


# --- names and signatures -------------------------------------------------------------------------------------

SIGNATURES = {
    "compute_gae_advantage_return": "token_level_rewards values response_mask gamma lam",
    "compute_grpo_outcome_advantage":
        "token_level_rewards response_mask index epsilon norm_adv_by_std_in_grpo config",
    "compute_gdpo_outcome_advantage":
        "token_level_rewards response_mask index epsilon norm_adv_by_std_in_grpo config non_tensor_batch batch",
    "compute_rloo_outcome_advantage": "token_level_rewards response_mask index epsilon config",
    "compute_reinforce_plus_plus_outcome_advantage": "token_level_rewards response_mask config",
    "compute_remax_outcome_advantage": "token_level_rewards reward_baselines response_mask config",
    "compute_gpg_outcome_advantage": "token_level_rewards response_mask index epsilon f_norm alpha config",
    "compute_optimal_token_baseline_advantage":
        "token_level_rewards response_mask index old_log_probs sum_pi_squared rollout_is_weights handle_zero_tail "
        "epsilon",
    "compute_rewards": "token_level_scores old_log_prob ref_log_prob kl_ratio",
    "agg_loss": "loss_mat loss_mask loss_agg_mode dp_size batch_num_tokens global_batch_size loss_scale_factor",
    "compute_policy_loss":
        "old_log_prob log_prob advantages response_mask cliprange cliprange_low cliprange_high clip_ratio_c "
        "loss_agg_mode",
    "compute_policy_loss_reinforce":
        "rollout_log_prob log_prob advantages response_mask loss_agg_mode config rollout_is_weights",
    "compute_value_loss": "vpreds returns values response_mask cliprange_value loss_agg_mode",
    "compute_entropy_loss": "logits response_mask loss_agg_mode",
    "kl_penalty": "logprob ref_logprob kl_penalty",
    "kl_penalty_forward": "logprob ref_logprob kl_penalty",
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_in_verls_order(name):
    parameters = inspect.signature(getattr(core_algos, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.VAR_KEYWORD] == SIGNATURES[name].split()


def test_every_estimator_and_loss_of_verl_is_there():
    assert {member.value for member in core_algos.AdvantageEstimator} <= set(core_algos.ADV_ESTIMATOR_REGISTRY)
    order = ["old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config", "rollout_is_weights"]
    for name in LOSSES:
        assert list(inspect.signature(core_algos.get_policy_loss_fn(name)).parameters) == order
    assert core_algos.get_adv_estimator_fn(core_algos.AdvantageEstimator.GRPO) is (
        core_algos.compute_grpo_outcome_advantage
    )
    with pytest.raises(ValueError, match="grpo"):
        core_algos.get_adv_estimator_fn("grop")
    with pytest.raises(ValueError, match="vanilla"):
        core_algos.get_policy_loss_fn("vanila")
    with pytest.raises(ValueError, match="choose another name"):
        core_algos.register_adv_est("grpo")(lambda **_: None)
