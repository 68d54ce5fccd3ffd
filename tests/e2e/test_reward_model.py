"""Training commands whose reward is a model: a classifier, a judge of its own, the policy as its own judge."""

import json
from pathlib import Path

import pytest
import torch

from cohort.errors import UserError
from tests.e2e.conftest import cohort, small_run
from tests.starter import starter_folder
from tests.tiny import byte_tokenizer, tiny_classifier, tiny_model

JUDGE = {
    "reward_model.kind": "judge",
    "reward_model.judge.template": "Grade: {answer}",
    "reward_model.judge.pattern": r"(\d)",
    "reward_model.judge.best": 9,
    "reward_model.judge.n": 4,
    "reward_model.judge.max_tokens": 64,
}
"""A random model judges by any digit that it happens to write."""

ROWS = [{"prompt": f"say {word}", "wanted": word[0]} for word in ("cat", "dog", "bird", "fish")]


@pytest.fixture(scope="module")
def models(workplace) -> Path:
    """The workplace with a classifier C and a judge J."""
    for name, model in (("C", tiny_classifier(pad_token_id=257)), ("J", tiny_model(scale=1.0, seed=3))):
        model.save_pretrained(workplace / name)
        byte_tokenizer().save_pretrained(workplace / name)
    return workplace


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow  # the starter model may have to be made first
def test_the_starter_trains_on_a_classifier(models):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen3Config

    config = Qwen3Config.from_pretrained(starter_folder(), num_labels=1)
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(models / "S")
    AutoTokenizer.from_pretrained(starter_folder()).save_pretrained(models / "S")
    command = [
        "train", "reward_model.enable=True", "reward_model.model.path=S", "reward_model.max_length=60",
        "trainer.total_training_steps=2", "trainer.val_before_train=False", "trainer.test_freq=-1",
        "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=4",
        "trainer.experiment_name=starter_rm",
    ]  # fmt: skip
    done = cohort(command, models)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reward model: classifier S, 0.13 M parameters, float32, weight 1" in done.stdout
    folder = next((models / "runs").glob("*/starter_rm"))
    rows = metrics(folder)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["reward/reward_model/mean"] == pytest.approx(row["critic/score/mean"])
        assert 0 <= row["reward/reward_model/truncated/mean"] <= 1
        assert row["training/groups_with_signal"] == 4
        assert row["actor/grad_norm"] > 0
    import pyarrow.parquet as pq

    table = pq.read_table(next((folder / "rollouts").glob("*.parquet"))).to_pylist()
    assert all("reward_model" in json.loads(row["reward_parts"]) for row in table)


def train(models: Path, name: str, reward=None, **settings) -> list[dict]:
    """Two steps in this process, with a validation at the end; the scalars of each."""
    import cohort as package

    run = package.train(
        str(models / "M"),
        ROWS,
        reward,
        val_data=ROWS,
        settings={
            "reward_model.enable": True,
            "trainer.default_local_dir": str(models / "runs" / name),
            "trainer.logger": ["jsonl"],
            "trainer.val_before_train": False,
            **settings,
        },
        n=3, train_batch_size=4, ppo_mini_batch_size=4, max_response_length=8, max_prompt_length=64,
        total_training_steps=2, num_workers=0, test_freq=2, optim__lr=1e-3,
    )  # fmt: skip
    return metrics(run.folder)


def timeless(row: dict) -> dict:
    return {name: value for name, value in row.items() if not name.startswith(("timing", "perf"))}


def test_a_classifier_and_a_function_add_up_and_the_run_repeats_exactly(models):
    def rule(text, wanted):
        return {"score": float(len(text)), "found": wanted in text}

    settings = {"model.path": str(models / "C"), "weight": 0.5, "activation": "sigmoid"}
    settings = {f"reward_model.{name}": value for name, value in settings.items()}
    first, again = (train(models, name, rule, **settings) for name in ("mixed", "mixed_again"))
    assert len(first) == 2
    for row, other in zip(first, again, strict=True):
        expected = row["reward/rule/mean"] + 0.5 * row["reward/reward_model/mean"]
        assert row["critic/score/mean"] == pytest.approx(expected, abs=1e-5)
        assert 0 < row["reward/reward_model/mean"] < 1
        assert 0 <= row["reward/rule/found/mean"] <= 1
        assert timeless(row) == timeless(other)
    assert 0 < first[-1]["val-aux/unknown/reward_model/mean@1"] < 1


@pytest.mark.parametrize("path", [None, "J"])
def test_a_judge_grades_and_the_run_repeats_exactly(models, path):
    settings = {**JUDGE, "reward_model.model.path": path and str(models / path)}
    first, again = (train(models, f"judge_{path}_{number}", **settings) for number in (1, 2))
    for row, other in zip(first, again, strict=True):
        assert 0 <= row["reward/reward_model/mean"] <= 1
        assert row["critic/score/mean"] == pytest.approx(row["reward/reward_model/mean"])
        assert 0 < row["reward/reward_model/unparsed/mean"] < 1
        assert row["training/groups_with_signal"] > 0
        assert timeless(row) == timeless(other)


@pytest.mark.slow
def test_the_command_with_a_judge(models):
    words = [word for word in small_run("judged") if not word.startswith("custom_reward_function")]
    judge = [f"{name}={value}" for name, value in JUDGE.items()]
    done = cohort([*words, "reward_model.enable=True", *judge, "trainer.val_before_train=False"], models)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reward model: the policy judges, weight 1" in done.stdout
    assert len(metrics(models / "runs" / "cohort" / "judged")) == 2


def test_eval_grades_with_a_model(models):
    command = ["eval", "--model", "M", "--data", "rows.jsonl", "--max-tokens", "6", "--out", "graded.jsonl",
               "--reward", "reward.py", "--reward-model", "model.path=C", "activation=sigmoid", "weight=2"]  # fmt: skip
    done = cohort(command, models)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weight 2" in done.stdout
    for line in (models / "graded.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["score"] == pytest.approx(row["compute_score"] + 2 * row["reward_model"])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model.path": "M"}, "no trained sequence classifier"),
        ({"model.path": "./nowhere"}, "reward_model.model.path=./nowhere: no such folder"),
        ({"model.path": "C", "label": "good"}, "reward_model.label=good"),
        ({"model.path": "C", "max_length": 9999}, "reads at most 512"),
        ({"kind": "judge", "judge.template": "nofile"}, "reward_model.judge.template=nofile"),
        ({"kind": "judge", "judge.template": "{question}"}, "no {answer} in it"),
        ({"kind": "judge", "judge.apply_chat_template_kwargs": {"x": 1}}, "judge.apply_chat_template_kwargs.x"),
        ({"kind": "judge", "judge.pattern": "Score"}, "reward_model.judge.pattern=Score"),
        ({"model.path": "C", "weight": 0}, "reward_model.weight=0"),
    ],
)
def test_bad_settings_are_one_line(models, monkeypatch, settings, says):
    monkeypatch.chdir(models)
    with pytest.raises(UserError) as caught:
        train(models, "bad", **{f"reward_model.{name}": value for name, value in settings.items()})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (models / "runs" / "bad").exists()
