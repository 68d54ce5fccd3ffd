"""A file of a person, with an estimator and losses, through the training command: one process and two replicas."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import cohort, small_run

MINE = """
import torch
from cohort.verl_api import agg_loss, register_adv_est, register_policy_loss
from cohort.verl_api import torch_functional as verl_F


@register_adv_est("leave_one_out")
def leave_one_out(token_level_rewards, response_mask, index, config=None, **kwargs):
    assert config.get("norm_adv_by_std_in_grpo") is True and config.adv_estimator == "leave_one_out"
    assert kwargs["non_tensor_batch"]["wanted"].shape == (len(index),)
    scores = token_level_rewards.sum(dim=-1)
    with torch.no_grad():
        for name in set(index):
            rows = torch.as_tensor(index == name)
            n = int(rows.sum())
            scores[rows] = (scores[rows] - scores[rows].mean()) * n / (n - 1)
    advantages = scores.unsqueeze(-1) * response_mask
    return advantages, advantages


def clipped(old_log_prob, log_prob, advantages, response_mask, config):
    ratio = torch.exp(log_prob - old_log_prob)
    held = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return torch.maximum(-advantages * ratio, -advantages * held)


@register_policy_loss("of_0_9")
def of_0_9(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
           rollout_is_weights=None):
    per_token = clipped(old_log_prob, log_prob, advantages, response_mask, config)
    loss = agg_loss(per_token, response_mask, loss_agg_mode, **config.global_batch_info)
    return loss, {"actor/mine": 7.0}


@register_policy_loss("of_0_5")
def of_0_5(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    per_token = clipped(old_log_prob, log_prob, advantages, response_mask, config)
    zero = torch.tensor(0.0)
    return agg_loss(per_token, response_mask, loss_agg_mode), zero, zero, zero


@register_policy_loss("opaque")
def opaque(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
    return verl_F.masked_mean(clipped(old_log_prob, log_prob, advantages, response_mask, config), response_mask), {}
"""
ACTOR = "actor_rollout_ref.actor"


def run(folder: Path, name: str, mode: str, *more: str) -> list[dict]:
    (folder / "mine.py").write_text(MINE)
    done = cohort(
        small_run(
            name, "algorithm.plugins=[mine.py]", "algorithm.adv_estimator=leave_one_out",
            f"{ACTOR}.policy_loss.loss_mode={mode}", f"{ACTOR}.ppo_mini_batch_size=2",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", f"{ACTOR}.loss_agg_mode=token-mean",
            f"{ACTOR}.use_kl_loss=False", "trainer.val_before_train=False", *more,
        ),
        folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("one piece" in " ".join(done.stdout.split())) == (mode == "opaque")
    rows = (folder / "runs" / "cohort" / name / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, rows) if "actor/grad_norm" in row]


COMPARED = ("critic/score/mean", "actor/grad_norm", "actor/pg_loss", "critic/advantages/max")


@pytest.fixture(scope="module")
def built_in(workplace) -> list[dict]:
    return run(workplace, "built-in", "vanilla", f"{ACTOR}.clip_ratio_c=null")


@pytest.mark.parametrize("mode", ["of_0_9", *(pytest.param(m, marks=pytest.mark.slow) for m in ("of_0_5", "opaque"))])
def test_every_kind_of_loss_gives_the_run_of_the_built_in_one(workplace, built_in, mode):
    own = run(workplace, mode, mode)
    assert len(own) == 2
    for mine, theirs in zip(own, built_in, strict=True):
        for name in COMPARED:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-7), name
        assert mine.get("actor/mine") == (7.0 if mode == "of_0_9" else None)


@pytest.mark.slow
def test_replicas_run_the_file_too(workplace):
    one, two = run(workplace, "p1", "of_0_9"), run(workplace, "p2", "of_0_9", "trainer.n_gpus_per_node=2")
    for mine, theirs in zip(two, one, strict=True):
        for name in (*COMPARED, "actor/mine"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-7), name


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("x = 1 / 0", [], "mine.py line 1: x = 1 / 0"),
        ("", ["algorithm.adv_estimator=leave_on_out"], "algorithm.adv_estimator=leave_on_out: expects one of"),
        (MINE, [f"{ACTOR}.policy_loss.loss_mode=of_0_8"], "(did you mean of_0_9?)"),
        (
            MINE.replace("per_token = clipped", "per_token = advantages * 0 or clipped"),
            [f"{ACTOR}.policy_loss.loss_mode=of_0_5"],
            "mine.py line",
        ),
    ],
)
def test_a_broken_file_is_one_line_and_exit_code_2(workplace, text, arguments, says):
    (workplace / "mine.py").write_text(text)
    done = cohort([*small_run("broken"), "algorithm.plugins=[mine.py]", *arguments], workplace)
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and says in errors[0], done.stderr
    assert "Traceback" not in done.stderr
