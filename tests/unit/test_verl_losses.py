"""Policy losses written for verl: called, judged, and cut into micro-batches."""

from typing import Any

import pytest
import torch

from cohort.algorithms.registry import TokenLoss
from cohort.algorithms.registry import register_policy_loss as register_our_loss
from cohort.assemble.learner import build_objective
from cohort.assemble.plugins import settle
from cohort.errors import UserError
from cohort.metrics import read
from cohort.models.micro import Budget
from cohort.models.objective import ScalarLoss
from cohort.models.optim import OptimSettings
from cohort.models.policy import LocalPolicy
from cohort.protocols import TokenStats
from cohort.verl_api import (
    agg_loss,
    register_policy_loss,
)
from cohort.verl_api import torch_functional as verl_F
from tests.batches import UNEVEN, make_batch, make_experience
from tests.family import ACTOR, MODE, clean, config
from tests.tiny import tiny_model

__all__ = ["clean"]

# --- losses ------------------------------------------------------------------------------------------------


def with_agg_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config: Any = None,
                  rollout_is_weights=None):  # fmt: skip
    """As people write them: verl's clipped loss."""
    ratio = torch.exp((log_prob - old_log_prob).clamp(-20, 20))
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    loss = torch.maximum(free, held)
    loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * config.get("clip_ratio_c", 3.0)), loss)
    if rollout_is_weights is not None:
        loss = loss * rollout_is_weights
    loss = agg_loss(loss_mat=loss, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    clipfrac = verl_F.masked_mean((held > free).float(), response_mask)
    return loss, {"actor/pg_clipfrac": clipfrac.detach().item()}


def of_five(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    """verl 0.5: no counts, four results, a mask to subtract from 1."""
    loss, seen = with_agg_loss(old_log_prob, log_prob, advantages, 1 - (1 - response_mask), loss_agg_mode, config)
    return loss, torch.tensor(seen["actor/pg_clipfrac"]), torch.tensor(0.0), torch.tensor(0)


def by_hand(old, new, advantages, mask, mode, config):
    """Other names of arguments, and a division by the counts that are there."""
    return -(advantages * (new - old).exp() * mask).sum() / config.global_batch_info["batch_num_tokens"], {}


def opaque(old_log_prob, log_prob, advantages, response_mask, **kwargs):
    ratio = torch.exp(log_prob - old_log_prob)
    return verl_F.masked_mean(-advantages * ratio, response_mask), {}


def standardised(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
    """It averages with agg_loss, and yet looks at all rows."""
    advantages = verl_F.masked_whiten(advantages, response_mask)
    return agg_loss(-advantages * (log_prob - old_log_prob).exp(), response_mask, loss_agg_mode), {}


def objective_of(function, **more):
    register_policy_loss("mine")(function)
    return build_objective(config({MODE: "mine", **more}))


@pytest.mark.parametrize(
    ("function", "whole"),
    [(with_agg_loss, False), (of_five, False), (by_hand, False), (opaque, True), (standardised, True)],
)
def test_whether_parts_add_up_is_measured(function, whole):
    objective = objective_of(function)
    assert isinstance(objective.policy_loss, ScalarLoss)
    assert objective.whole is whole
    said = []
    settle(config({MODE: "mine"}), say=said.append)
    assert [("one piece" in line) for line in said] == [True] * whole
    if whole:
        with pytest.raises(UserError, match="trainer.n_gpus_per_node=1"):
            settle(config({MODE: "mine", "trainer.n_gpus_per_node": 2, "algorithm.plugins": [__file__]}), say=print)


def updated(objective, budget, *, weights=False):
    policy = LocalPolicy(
        tiny_model(dtype=torch.float64), objective=objective, optim=OptimSettings(lr=1e-2, optimizer="SGD"),
        budget=budget,
    )  # fmt: skip
    experience = make_experience(make_batch(UNEVEN), dtype=torch.float64)
    if weights:
        factor = 0.5 + torch.rand(experience.mask.shape, generator=torch.Generator().manual_seed(1))
        experience = type(experience)(**{**vars(experience), "weights": factor.double()})
    update = policy.update(experience)
    return read(update.metrics), dict(policy.weights())


def assert_alike(one, other):
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("function", [with_agg_loss, of_five])
def test_a_scalar_loss_is_the_built_in_one_at_every_micro_batch(function, mode):
    objective = objective_of(function, **{f"{ACTOR}.loss_agg_mode": mode})
    expected, weights = updated(build_objective(config({f"{ACTOR}.loss_agg_mode": mode})), Budget())
    for budget in (Budget(max_rows=1), Budget(max_rows=3), Budget(max_tokens=60), Budget()):
        seen, found = updated(objective, budget)
        for name in ("actor/pg_loss", "actor/grad_norm", "actor/pg_clipfrac"):
            assert seen[name] == pytest.approx(expected[name], rel=1e-5), (name, budget)
        assert_alike(found, weights)


def test_weights_reach_a_scalar_loss():
    expected, weights = updated(build_objective(config()), Budget(), weights=True)
    seen, found = updated(objective_of(with_agg_loss), Budget(max_rows=2), weights=True)
    assert seen["actor/pg_loss"] == pytest.approx(expected["actor/pg_loss"], rel=1e-5)
    assert_alike(found, weights)
    with pytest.raises(UserError, match="no parameter rollout_is_weights"):
        updated(objective_of(of_five), Budget(), weights=True)


def test_an_opaque_loss_does_not_see_the_micro_batch_size():
    objective = objective_of(standardised)
    first, weights = updated(objective, Budget())
    second, found = updated(objective, Budget(max_rows=1))
    assert first == second
    assert_alike(found, weights)


BROKEN_LOSSES = {
    "per token": (lambda o, n, a, m, mode, config: (-a * n, {}), r"a tensor \(5, 6\); average it"),
    "no gradient": (lambda o, n, a, m, mode, config: ((-a * n.detach()).sum(), {}), "no gradient"),
    "a float": (lambda o, n, a, m, mode, config: ((-a * n).sum().item(), {}), "its loss is a float"),
    "alone": (lambda o, n, a, m, mode, config: (-a * n).sum(), "returned a Tensor; expects"),
    "three": (lambda o, n, a, m, mode, config: ((-a * n).sum(), 0, 0), "returned 3 values; expects"),
    "nothing": (lambda o, n, a, m, mode, config: None, "returned nothing"),
    "logs text": (lambda o, n, a, m, mode, config: ((-a * n).sum(), {"x": "y"}), "x in what it logs is a str"),
    "logs no dict": (lambda o, n, a, m, mode, config: ((-a * n).sum(), [1]), "what it logs is 1 values"),
    "not finite": (lambda o, n, a, m, mode, config: ((-a * n / 0).sum(), {}), "not finite"),
    "no such key": (lambda o, n, a, m, mode, config: (n.sum() * config.alpha, {}), "has no alpha.*plugins.py line"),
    "too many": (lambda o, n, a, m, mode, config, w, x: ((-a * n).sum(), {}), "TypeError"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_LOSSES)
def test_a_loss_that_returns_something_else_is_told_before_the_run(name):
    function, says = BROKEN_LOSSES[name]
    register_policy_loss("mine")(function)
    with pytest.raises(UserError, match=says) as caught:
        settle(config({MODE: "mine"}), say=print)
    assert "loss_mode=mine" in str(caught.value) and "\n" not in str(caught.value)


def test_settings_of_ones_own_reach_the_loss():
    seen = {}

    def curious(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
        seen.update(alpha=config.policy_loss.get("alpha"), top=config.alpha, low=config["clip_ratio_low"],
                    nothing=config.get("nothing", 7), mode=loss_agg_mode, inside="alpha" in config)  # fmt: skip
        with pytest.raises(AttributeError):
            config.alpha = 3
        return by_hand(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)

    objective_of(curious, **{f"{ACTOR}.policy_loss.kwargs": {"alpha": 2}})
    assert seen == {"alpha": 2, "top": 2, "low": 0.2, "nothing": 7, "mode": "token-mean", "inside": True}


def test_our_kind_of_loss_is_judged_too():
    stats = TokenStats(log_probs=torch.zeros(2, 3, requires_grad=True))
    batch = make_batch([(3, [3, 3])])
    experience = make_experience(batch, old=False)
    for function, says in {
        lambda log_probs, old, a, mask: log_probs.sum(): "returned a Tensor",
        lambda log_probs, old, a, mask: TokenLoss(log_probs.sum(1), {}): r"a loss \(2,\)",
        lambda log_probs, old, a, mask: TokenLoss(log_probs.detach(), {}): "no gradient",
    }.items():
        register_our_loss("ours", function, replace=True)
        with pytest.raises(UserError, match=says):
            build_objective(config({MODE: "ours"}))(stats, experience, torch.tensor([6.0, 2.0]))
