"""Estimators and losses of a person: how they are found, called, judged, and cut into micro-batches."""

from typing import get_args

import numpy as np
import pytest
import torch

from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES, Advantages, TokenLoss
from cohort.algorithms.registry import register_advantage as register_ours
from cohort.algorithms.registry import register_policy_loss as register_our_loss
from cohort.assemble import plugins
from cohort.assemble.learner import build_advantage, build_objective, build_selection
from cohort.assemble.options import advantage_options, loss_options
from cohort.assemble.plugins import settle
from cohort.config import build
from cohort.config.family import ESTIMATORS, LOSSES
from cohort.config.tree import keys
from cohort.errors import UserError
from cohort.metrics import read
from cohort.models.micro import Budget
from cohort.models.objective import ScalarLoss
from cohort.models.optim import OptimSettings
from cohort.models.policy import LocalPolicy
from cohort.protocols import TokenStats
from cohort.trainer.evidence import Evidence
from cohort.types import Author, Group, Prompt, Rollout, Score, Segment, collate
from cohort.verl_api import (
    ADV_ESTIMATOR_REGISTRY,
    POLICY_LOSS_REGISTRY,
    agg_loss,
    register_adv_est,
    register_policy_loss,
)
from cohort.verl_api import torch_functional as verl_F
from cohort.verl_api.section import Section
from tests.batches import UNEVEN, make_batch, make_experience
from tests.tiny import tiny_model

ARR = "actor_rollout_ref"
ACTOR = f"{ARR}.actor"
MODE = f"{ACTOR}.policy_loss.loss_mode"
ESTIMATOR = "algorithm.adv_estimator"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """What a test registers is gone afterwards."""
    tables = (ADVANTAGES, POLICY_LOSSES, ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY)
    saved = [dict(table) for table in tables]
    monkeypatch.setattr(plugins, "_DONE", {})
    yield
    for table, before in zip(tables, saved, strict=True):
        table.clear()
        table.update(before)


def config(values=None, **more):
    return build({f"{ARR}.model.path": "M", f"{ARR}.rollout.n": 4, **(values or {}), **more}, note=lambda line: None)


# --- keys -------------------------------------------------------------------------------------------------

OTHER = {
    "gamma": 0.5, "lam": 0.5, "norm_adv_by_std_in_grpo": False, "adv_scale": "batch", "gdpo_reward_keys": ["b"],
    "gdpo_reward_weights": [2.0], "clip_ratio": 0.1, "clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "clip_ratio_c": 7.0,
    "policy_loss.delta": 2.5, "policy_loss.clip_cov_ratio": 0.5, "policy_loss.clip_cov_lb": 2.0,
    "policy_loss.clip_cov_ub": 7.0, "policy_loss.kl_cov_ratio": 0.5, "policy_loss.ppo_kl_coef": 3.0,
    "policy_loss.dro_beta": 3.0, "tau_pos": 3.0, "tau_neg": 3.0,
}  # fmt: skip
"""Another value for each key of the family."""


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_reads_the_keys_that_config_says(name):
    base = {"algorithm.gdpo_reward_keys": ["a"], ESTIMATOR: name} if name != "gae" else {}

    def bound(**changes):
        algorithm = config({**base, **{f"algorithm.{k}": v for k, v in changes.items()}}).algorithm
        options = advantage_options(algorithm, ADVANTAGES[name].function)
        return options, algorithm.gdpo_reward_keys if "parts" in ADVANTAGES[name].needs else None

    if name == "gae":
        pytest.skip("it needs the critic's keys")
    known = {key for entry in ESTIMATORS.values() for key in entry.keys}
    read_keys = {key for key in known if bound(**{key: OTHER[key]}) != bound()}
    assert read_keys == set(ESTIMATORS[name].keys)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_reads_the_keys_that_config_says(name):
    def bound(**changes):
        actor = config({MODE: name, **{f"{ACTOR}.{k}": v for k, v in changes.items()}}).actor_rollout_ref.actor
        return loss_options(actor, POLICY_LOSSES[name].function)

    known = {key for entry in LOSSES.values() for key in entry.keys}
    assert known <= set(OTHER)
    read_keys = {key for key in known if bound(**{key: OTHER[key]}) != bound()}
    assert read_keys == set(LOSSES[name].keys)


def test_keys_of_another_method_are_named():
    notes = []
    build({f"{ARR}.model.path": "M", MODE: "gpg", f"{ACTOR}.tau_pos": 2.0, "algorithm.gamma": 0.9,
           f"{ARR}.rollout.n": 2}, note=notes.append)  # fmt: skip
    assert f"no effect: {ACTOR}.tau_pos (the loss gpg does not read it)" in notes
    assert "no effect: algorithm.gamma (grpo does not read it)" in notes


def test_notes_of_a_sequence_loss():
    notes = []
    changes = {f"{ARR}.model.path": "M", f"{ARR}.rollout.n": 2, MODE: "gspo"}
    build({**changes, f"{ACTOR}.loss_agg_mode": "token-mean"}, note=notes.append)
    assert any("seq-mean-token-mean" in line for line in notes)
    assert any("3e-4" in line for line in notes)
    notes.clear()
    build({**changes, f"{ACTOR}.clip_ratio_low": 3e-4, f"{ACTOR}.clip_ratio_high": 4e-4}, note=notes.append)
    assert notes == []


def test_the_papers_aggregation_is_taken_where_none_is_given():
    assert build_objective(config({MODE: "gspo"})).aggregation == "seq-mean-token-mean"
    assert build_objective(config()).aggregation == "token-mean"
    assert build_objective(config({MODE: "gspo", f"{ACTOR}.loss_agg_mode": "token-sum"})).aggregation == "token-sum"


def test_verls_second_spellings():
    notes = []
    made = build({f"{ARR}.model.path": "M", f"{ARR}.rollout.n": 2, ESTIMATOR: "rloo_vectorized"}, note=notes.append)
    assert made.algorithm.adv_estimator == "rloo"
    assert notes == [f"renamed: {ESTIMATOR}=rloo_vectorized is read as rloo"]


def test_one_answer_is_enough_without_a_group():
    config({ESTIMATOR: "reinforce_plus_plus", f"{ARR}.rollout.n": 1})
    with pytest.raises(UserError, match="opo compares"):
        config({ESTIMATOR: "opo", f"{ARR}.rollout.n": 1})
    config({ESTIMATOR: "opo", f"{ARR}.rollout.n": 1, "algorithm.group_by": "level"})


def test_choices_over_the_minibatch():
    assert build_selection(config()) is None
    selection = build_selection(config({MODE: "kl_cov", f"{ACTOR}.policy_loss.kl_cov_ratio": 0.5}))
    assert selection.select.keywords["kl_cov_ratio"] == 0.5
    assert build_objective(config({MODE: "kl_cov"})).needs == ("selected",)
    assert build_selection(config({f"{ACTOR}.top_entropy_quantile": 0.2})).token_mask.keywords == {"quantile": 0.2}


def test_further_arguments():
    assert build_advantage(config({"algorithm.adv_kwargs": {"epsilon": 0.5}})).function.keywords == {
        "scale": "group", "epsilon": 0.5,
    }  # fmt: skip
    with pytest.raises(UserError, match="adv_kwargs.*grpo has no argument epsilo; did you mean epsilon?"):
        build_advantage(config({"algorithm.adv_kwargs": {"epsilo": 0.5}}))
    with pytest.raises(UserError, match="policy_loss.kwargs.*vanilla has no argument"):
        build_objective(config({f"{ACTOR}.policy_loss.kwargs": {"beta": 0.5}}))
    cispo = config({MODE: "cispo", f"{ACTOR}.policy_loss.kwargs": {"ratio_cap": 5.0}})
    assert build_objective(cispo).policy_loss.keywords["ratio_cap"] == 5.0


# --- finding -----------------------------------------------------------------------------------------------

PLUGIN = """
from cohort import Advantages, register_advantage
from cohort.verl_api import agg_loss, register_policy_loss

def centred(rewards, mask, group, *, shift=0.5):
    advantages = (rewards.sum(1, keepdim=True) - shift) * mask
    return Advantages(advantages, advantages)

register_advantage("centred", centred)
RUNS.append(1) if "RUNS" in globals() else None

@register_policy_loss("plain")
def plain(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
          rollout_is_weights=None):
    return agg_loss(-advantages * log_prob, response_mask, loss_agg_mode), {"size": 2.0}
"""


def test_a_file_is_found_from_where_the_person_stands_and_runs_once(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PLUGIN + "import builtins\nbuiltins.RUNS_OF_MINE = getattr(builtins, "
                                      "'RUNS_OF_MINE', 0) + 1\n")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    asked = config({"algorithm.plugins": ["mine.py"], ESTIMATOR: "centred", MODE: "plain"})
    for _ in range(2):
        settled = settle(asked, say=pytest.fail)
    assert settled.algorithm.plugins == (str(tmp_path / "mine.py"),)
    import builtins

    assert builtins.RUNS_OF_MINE == 1
    del builtins.RUNS_OF_MINE
    assert not build_objective(settled).whole
    rewards, mask = torch.tensor([[0.0, 1], [0, 0]]), torch.ones(2, 2)
    found = build_advantage(settled).function(rewards=rewards, mask=mask, group=torch.zeros(2))
    assert found.advantages.tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    shifted = config({"algorithm.plugins": ["mine.py"], ESTIMATOR: "centred", "algorithm.adv_kwargs": {"shift": 1.0}})
    assert build_advantage(shifted).function.keywords == {"shift": 1.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("def f(:\n", "line 1"),
        ("import math\nx = math.nothing\n", r"AttributeError: .*mine.py line 2: x = math.nothing"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("", "did you mean"),
        ("from cohort.verl_api import register_adv_est\nregister_adv_est('grpo')(lambda: 0)", "choose another name"),
    ],
)
def test_a_file_that_cannot_work_is_one_line(tmp_path, text, says):
    place = tmp_path / "mine.py"
    if text is not None:
        place.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        settle(config({"algorithm.plugins": [str(place)], ESTIMATOR: "grop"}), say=print)
    assert "\n" not in str(caught.value)


def test_what_a_notebook_registers_is_known_to_config_at_once():
    with pytest.raises(UserError, match="expects one of"):
        config({ESTIMATOR: "halved"})
    register_ours("halved", lambda rewards, mask, group: Advantages(mask, mask), group_baseline=True)
    made = config({ESTIMATOR: "halved"})
    settle(made, say=pytest.fail)
    with pytest.raises(UserError, match="algorithm.plugins"):
        settle(config({ESTIMATOR: "halved", "trainer.n_gpus_per_node": 2}), say=print)
    with pytest.raises(UserError, match="halved compares"):
        settle(config({ESTIMATOR: "halved", f"{ARR}.rollout.n": 1}), say=print)


def test_a_function_defined_again_takes_its_own_place():
    for shift in (1.0, 2.0):
        source = f"def again(**kwargs):\n    return {shift}\nregister_adv_est('again')(again)"
        exec(source, {"register_adv_est": register_adv_est, "__name__": "cell"})
    assert ADV_ESTIMATOR_REGISTRY["again"]() == 2.0


# --- losses ------------------------------------------------------------------------------------------------


def with_agg_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
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


# --- estimators ---------------------------------------------------------------------------------------------


def evidence(**more) -> Evidence:
    groups = []
    for row, scores in enumerate([[1.0, 0.0], [0.5, 2.0, 0.0]]):
        prompt = Prompt(row=row, ids=(1, 2), text="q", data_source="d", columns={"level": f"l{row}"})
        segment = Segment(ids=(5, 6), author=Author.MODEL, log_probs=(-1.0, -1.0), policy_versions=(0, 0))
        rollouts = tuple(
            Rollout(prompt=prompt, sample=i, segments=(segment,), score=Score(value=s, parts={"form": s / 2}))
            for i, s in enumerate(scores)
        )
        baseline = Rollout(prompt=prompt, sample=0, score=Score(value=0.25))
        groups.append(Group(prompt=prompt, rollouts=rollouts, baseline=baseline))
    batch = collate(groups)
    scores = torch.tensor([[0, 1.0], [0, 0], [0, 0.5], [0, 2], [0, 0]])
    return Evidence(groups=groups, batch=batch, step=0, scores=scores, **more)


def estimated(function, found=None, **more):
    register_adv_est("mine")(function)
    advantage = build_advantage(config({ESTIMATOR: "mine", **more}))
    found = found or evidence()
    return advantage, advantage(found.scores, found)[0]


def test_an_estimator_of_verl_gets_what_it_knows():
    seen = {}

    def mine(token_level_rewards, response_mask, index, config=None, reward_baselines=None, **kwargs):
        seen.update(kwargs, index=index, config=config, reward_baselines=reward_baselines)
        scores = token_level_rewards.sum(-1)
        for name in set(index):
            rows = torch.as_tensor(index == name)
            scores[rows] = scores[rows] - scores[rows].mean()
        scores = scores.unsqueeze(-1) * response_mask * config.get("alpha", 1.0)
        return scores, scores

    advantage, found = estimated(mine, evidence(values=torch.ones(5, 2)), **{"algorithm.adv_kwargs": {"alpha": 2.0}})
    assert advantage.reads == () and not advantage.reads_baseline
    expected = 2 * torch.tensor([0.5, -0.5, -1 / 3, 7 / 6, -5 / 6])
    torch.testing.assert_close(found.advantages, expected[:, None].expand(5, 2))
    assert isinstance(seen["index"], np.ndarray) and seen["index"].dtype == object
    assert [type(name) for name in seen["index"]] == [str] * 5
    assert seen["reward_baselines"] is None
    assert seen["config"].norm_adv_by_std_in_grpo is True
    assert seen["config"].kl_ctrl.kl_coef == 0.001
    assert seen["alpha"] == 2.0
    assert seen["values"].sum() == 10
    assert list(seen["non_tensor_batch"]["form"]) == [0.5, 0.0, 0.25, 1.0, 0.0]
    assert list(seen["non_tensor_batch"]["level"]) == ["l0"] * 2 + ["l1"] * 3
    assert set(seen["batch"]) >= {"token_level_scores", "response_mask", "responses", "rollout_log_probs"}


def test_what_a_parameter_without_a_default_costs():
    def greedy(token_level_rewards, reward_baselines, response_mask):
        return (token_level_rewards - reward_baselines[:, None]) * response_mask, token_level_rewards

    advantage, found = estimated(greedy)
    assert advantage.reads_baseline
    assert found.advantages[0].tolist() == [-0.25, 0.75]

    def of_critic(token_level_rewards, values, response_mask, gamma, lam):
        assert (gamma, lam) == (0.5, 1.0)
        return token_level_rewards - values, values

    register_adv_est("critical")(of_critic)
    advantage = build_advantage(config({ESTIMATOR: "critical", "algorithm.gamma": 0.5}))
    assert advantage.reads == ("values",)
    found = evidence(values=torch.ones(5, 2))
    assert advantage(found.scores, found)[0].returns.sum() == 10

    def uses_entropy(token_level_rewards, response_mask, entropy_of_mine):
        return token_level_rewards, token_level_rewards

    register_adv_est("unsure")(uses_entropy)
    with pytest.raises(UserError, match="entropy_of_mine has no default"):
        settle(config({ESTIMATOR: "unsure"}), say=print)


def test_grouping_by_a_column():
    register_adv_est("names")(lambda token_level_rewards, response_mask, index, config: (
        torch.full_like(response_mask, len(set(index))), response_mask))  # fmt: skip
    found = evidence()
    for column, groups in {"level": 2, None: 2}.items():
        advantage = build_advantage(config({ESTIMATOR: "names", "algorithm.group_by": column}))
        assert advantage(found.scores, found)[0].advantages[0, 0] == groups


BROKEN_ESTIMATORS = {
    "per row": (lambda token_level_rewards, **k: (token_level_rewards.sum(1),) * 2, r"are a tensor \(5,\)"),
    "alone": (lambda token_level_rewards, **k: token_level_rewards, "returned a Tensor; expects"),
    "nothing": (lambda token_level_rewards, **k: None, "returned nothing"),
    "not finite": (lambda token_level_rewards, **k: (token_level_rewards / 0,) * 2, "row 0 are not finite"),
    "no tensor": (lambda token_level_rewards, **k: (token_level_rewards, 1.0), "its returns are a float"),
}


@pytest.mark.parametrize("name", BROKEN_ESTIMATORS)
def test_an_estimator_that_returns_something_else_is_told(name):
    function, says = BROKEN_ESTIMATORS[name]
    with pytest.raises(UserError, match=says) as caught:
        estimated(function)
    assert f"{ESTIMATOR}=mine" in str(caught.value)


def test_our_kind_of_estimator_is_judged_too():
    found = evidence()
    for function, says in {
        lambda rewards, mask, group: rewards: "expects Advantages",
        lambda rewards, mask, group: Advantages(rewards.sum(1), rewards): r"\(5,\)",
        lambda rewards, mask, group: Advantages(rewards / 0, rewards): "not finite",
    }.items():
        register_ours("ours", function, replace=True)
        with pytest.raises(UserError, match=says):
            build_advantage(config({ESTIMATOR: "ours"}))(found.scores, found)


def test_a_section_is_read_in_every_way():
    section = Section({"a": 1, "b": {"c": 2}, "n": None}, "here")
    assert (section.a, section["a"], section.get("a"), section.b.c, section.b.get("c")) == (1, 1, 1, 2, 2)
    assert section.n is None and section.get("x", 3) == 3 and dict(**section.b) == {"c": 2}
    with pytest.raises(AttributeError, match="here has no x; it has: a, b, n"):
        _ = section.x


def test_docstrings_of_the_names_list_them():
    meaning = keys()[ESTIMATOR].doc, keys()[MODE].doc
    assert all(name in meaning[0] for name in ESTIMATORS) and all(name in meaning[1] for name in LOSSES)
    assert get_args(keys()["algorithm.adv_scale"].hint)
