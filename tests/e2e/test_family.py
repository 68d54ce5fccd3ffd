"""Every method of the family through the whole program, by its key alone: two steps of a tiny model each."""

import math

import pytest

from cohort.algorithms.correction_settings import PRESETS
from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES
from tests.e2e.test_python import train

ACTOR = "actor_rollout_ref.actor"


def graded(text: str, wanted: str) -> dict[str, float]:
    share = sum(c.isascii() for c in text) / max(len(text), 1)
    return {"score": share, "found": float(wanted in text), "brief": 1 / (1 + len(text))}


def steps(workplace, tmp_path, settings: dict, **more) -> list[dict[str, float]]:
    """The numbers of two training steps; both are finite and change the model."""
    quick = {"trainer.logger": ["jsonl"], "trainer.save_freq": -1, f"{ACTOR}.use_kl_loss": False}
    run = train(workplace, tmp_path, graded, settings={**quick, **settings}, num_workers=0, **more)
    history = run.outcome.history
    assert len(history) == 2
    for numbers in history:
        assert math.isfinite(numbers["actor/loss"]) and numbers["actor/grad_norm"] > 0
        assert numbers["actor/skipped_updates"] == 0
    return history


@pytest.mark.parametrize("name", ADVANTAGES)
def test_every_estimator(workplace, tmp_path, name):
    settings: dict = {"algorithm.adv_estimator": name}
    if name == "gdpo":
        settings["algorithm.gdpo_reward_keys"] = ["found", "brief", "score"]
    numbers = steps(workplace, tmp_path, settings)[-1]
    assert numbers["critic/advantages/max"] > numbers["critic/advantages/min"]
    assert ("critic/vf_loss" in numbers) == (name == "gae")


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_every_policy_loss(workplace, tmp_path, name):
    settings: dict = {f"{ACTOR}.policy_loss.loss_mode": name}
    if name == "clip_cov":
        settings |= {f"{ACTOR}.policy_loss.clip_cov_lb": -9.0, f"{ACTOR}.policy_loss.clip_cov_ub": 9.0}
    numbers = steps(workplace, tmp_path, settings, ppo_mini_batch_size=2)[-1]
    assert numbers["training/updates"] == 2
    assert ("timing_s/select" in numbers) == (name in ("clip_cov", "kl_cov"))


@pytest.mark.parametrize(
    "name",
    ["decoupled_token_icepop", "decoupled_seq_is_rs", "bypass_ppo_clip", "bypass_ppo_clip_k3_rs", "bypass_pg_is"],
)
def test_corrections_by_name(workplace, tmp_path, name):
    correction = PRESETS[name]
    settings = {"algorithm.rollout_correction.preset": name}
    numbers = steps(workplace, tmp_path, settings, ppo_mini_batch_size=2)[-1]
    assert ("timing_s/old_log_prob" in numbers) == (not correction.bypass)
    where = "actor" if correction.bypass else "rollout_corr"
    assert (f"{where}/rollout_is_mean" in numbers) == (correction.is_level is not None)
    assert numbers["training/rollout_probs_diff_max"] < 1e-3


def test_shaping_terms_together(workplace, tmp_path):
    settings = {
        "algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": "k1", "algorithm.kl_ctrl.type": "adaptive",
        "algorithm.ref_reward_blend.enable": True, "algorithm.ref_reward_blend.distribute": "mean",
        "algorithm.ref_reward_blend.warmup_steps": 1, "algorithm.repr_align.enable": True,
        "algorithm.repr_align.ref_alignment.warmup_steps": 1, "algorithm.repr_align.ref_alignment.gold_key": "wanted",
        "algorithm.repr_align.ref_alignment.allocation": "entropy",
    }  # fmt: skip
    first, second = steps(workplace, tmp_path, settings)
    assert first["actor/ref_blend/weight"] == first["actor/repr/ref_gold_align/weight"] == 0
    assert second["actor/ref_blend/weight"] == pytest.approx(0.6)
    assert second["actor/repr/ref_gold_align/weight"] == pytest.approx(0.2)
    assert -1 <= second["actor/repr/ref_gold_align/sim_mean"] <= 1
    assert second["actor/reward_kl_penalty_coeff"] > 0


@pytest.mark.parametrize("path", ["initial", "M"])
def test_alignment_by_a_frozen_encoder(workplace, tmp_path, path):
    path = str(workplace / "M") if path == "M" else path
    settings = {
        "algorithm.repr_align.enable": True, "algorithm.repr_align.ref_alignment.gold_key": "wanted",
        "algorithm.repr_align.ref_alignment.encoder.path": path, "algorithm.repr_align.ref_alignment.warmup_ratio": 0.0,
    }  # fmt: skip
    assert steps(workplace, tmp_path, settings)[0]["actor/repr/ref_gold_align/sim_max"] > 0


def test_the_most_uncertain_tokens_alone(workplace, tmp_path):
    settings = {f"{ACTOR}.top_entropy_quantile": 0.2}
    assert "timing_s/select" in steps(workplace, tmp_path, settings, ppo_mini_batch_size=2)[-1]
