"""Advantage estimators written for verl: what they are given, and what they must return."""

from typing import Any

import numpy as np
import pytest
import torch

from cohort.algorithms.registry import Advantages
from cohort.algorithms.registry import register_advantage as register_ours
from cohort.assemble.learner import build_advantage
from cohort.assemble.plugins import settle
from cohort.errors import UserError
from cohort.trainer.evidence import Evidence
from cohort.types import Author, Group, Prompt, Rollout, Score, Segment, collate
from cohort.verl_api import (
    register_adv_est,
)
from cohort.verl_api.section import Section
from tests.family import ESTIMATOR, clean, config

__all__ = ["clean"]

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

    def mine(token_level_rewards, response_mask, index, config: Any = None, reward_baselines=None, **kwargs):
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

    with pytest.raises(UserError, match="critic.enable=True"):
        settle(config({ESTIMATOR: "critical"}), say=print)
    settle(config({ESTIMATOR: "critical", "critic.enable": True}), say=pytest.fail)

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
