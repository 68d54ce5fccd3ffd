"""Which keys an estimator or loss reads, and how functions of a person are found."""

from functools import partial
from typing import Any, get_args

import pytest
import torch

from cohort.algorithms.correction import Bypass
from cohort.algorithms.gradient_loss import reinforce
from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES, Advantages
from cohort.algorithms.registry import register_advantage as register_ours
from cohort.assemble.learner import build_advantage, build_objective, build_selection
from cohort.assemble.options import advantage_options, loss_options
from cohort.assemble.plugins import settle
from cohort.config import build
from cohort.config.family import ESTIMATORS, LOSSES
from cohort.config.tree import keys
from cohort.errors import UserError
from cohort.verl_api import (
    ADV_ESTIMATOR_REGISTRY,
    register_adv_est,
)
from tests.family import ACTOR, ARR, ESTIMATOR, MODE, clean, config

__all__ = ["clean"]


def keywords(bound: object) -> dict[str, Any]:
    """The options of a partial."""
    assert isinstance(bound, partial)
    return bound.keywords


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
    base = {"algorithm.gdpo_reward_keys": ["a"], ESTIMATOR: name}

    def bound(**changes):
        algorithm = config({**base, **{f"algorithm.{k}": v for k, v in changes.items()}}).algorithm
        options = advantage_options(algorithm, ADVANTAGES[name].function)
        return options, algorithm.gdpo_reward_keys if "parts" in ADVANTAGES[name].needs else None

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
    assert selection and keywords(selection.select)["kl_cov_ratio"] == 0.5
    assert build_objective(config({MODE: "kl_cov"})).needs == ("selected",)
    sure = build_selection(config({f"{ACTOR}.top_entropy_quantile": 0.2}))
    assert sure and keywords(sure.token_mask) == {"quantile": 0.2}


def test_bypass_mode_brings_its_loss():
    base = "algorithm.rollout_correction"
    clip = build_objective(config({f"{base}.bypass_mode": True})).policy_loss
    assert isinstance(clip, Bypass) and keywords(clip.policy_loss)["clip_low"] == 0.2
    plain = build_objective(config({f"{base}.preset": "bypass_pg_is"})).policy_loss
    assert isinstance(plain, Bypass) and plain.policy_loss is reinforce


def test_further_arguments():
    assert keywords(build_advantage(config({"algorithm.adv_kwargs": {"epsilon": 0.5}})).function) == {
        "scale": "group", "epsilon": 0.5,
    }  # fmt: skip
    with pytest.raises(UserError, match="adv_kwargs.*grpo has no argument epsilo; did you mean epsilon?"):
        build_advantage(config({"algorithm.adv_kwargs": {"epsilo": 0.5}}))
    with pytest.raises(UserError, match="policy_loss.kwargs.*vanilla has no argument"):
        build_objective(config({f"{ACTOR}.policy_loss.kwargs": {"beta": 0.5}}))
    cispo = config({MODE: "cispo", f"{ACTOR}.policy_loss.kwargs": {"ratio_cap": 5.0}})
    assert keywords(build_objective(cispo).policy_loss)["ratio_cap"] == 5.0


# --- finding -----------------------------------------------------------------------------------------------

PLUGIN = """
from cohort import Advantages, register_advantage
from cohort.verl_api import agg_loss, register_policy_loss

def centred(rewards, mask, group, *, shift=0.5):
    advantages = (rewards.sum(1, keepdim=True) - shift) * mask
    return Advantages(advantages, advantages)

register_advantage("centred", centred)
open("runs", "a").write("x")

@register_policy_loss("plain")
def plain(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
          rollout_is_weights=None):
    return agg_loss(-advantages * log_prob, response_mask, loss_agg_mode), {"size": 2.0}
"""


def test_a_file_is_found_from_where_the_person_stands_and_runs_once(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    asked = config({"algorithm.plugins": ["mine.py"], ESTIMATOR: "centred", MODE: "plain"})
    settle(asked, say=pytest.fail)
    settled = settle(asked, say=pytest.fail)
    assert settled.algorithm.plugins == (str(tmp_path / "mine.py"),)
    assert (tmp_path / "runs").read_text() == "x"
    assert not build_objective(settled).whole
    rewards, mask = torch.tensor([[0.0, 1], [0, 0]]), torch.ones(2, 2)
    found = build_advantage(settled).function(rewards=rewards, mask=mask, group=torch.zeros(2))
    assert found.advantages.tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    shifted = config({"algorithm.plugins": ["mine.py"], ESTIMATOR: "centred", "algorithm.adv_kwargs": {"shift": 1.0}})
    assert keywords(build_advantage(shifted).function) == {"shift": 1.0}


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


def test_docstrings_of_the_names_list_them():
    meaning = keys()[ESTIMATOR].doc, keys()[MODE].doc
    assert all(name in meaning[0] for name in ESTIMATORS) and all(name in meaning[1] for name in LOSSES)
    assert get_args(keys()["algorithm.adv_scale"].hint)
