"""Dynamic sampling, orders of prompts and groups over a column, from the command line."""

import json

import pytest
import torch

from tests.e2e.conftest import cohort, small_run
from tests.starter import starter_folder


def metrics(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(folder) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.startswith(("timing", "perf"))} for row in metrics(folder)]


def test_a_filtered_run_in_an_adaptive_order_goes_on_where_it_was(workplace):
    words = [
        "algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=found", "data.curriculum.order=adaptive",
        "algorithm.filter_groups.on_exhausted=train", "algorithm.overlong_filter=False", "trainer.save_freq=1",
        "trainer.total_training_steps=3", "trainer.val_before_train=False", "actor_rollout_ref.rollout.n=8",
        "data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    ]  # fmt: skip
    whole = small_run("whole_samples", *words)
    halves = [word.replace("whole_samples", "half_samples") for word in whole]
    done = cohort(whole, workplace)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dynamic sampling: draws until 2 groups differ in found" in done.stdout
    assert "prompts that are answered right sometimes come more often" in done.stdout
    assert cohort([*halves, "trainer.total_training_steps=2"], workplace).returncode == 0
    assert cohort(halves, workplace).returncode == 0
    runs = workplace / "runs" / "cohort"
    assert timeless(runs / "whole_samples") == timeless(runs / "half_samples")
    rows = metrics(runs / "whole_samples")
    assert sum(row["dynamic_sampling/groups_sampled"] for row in rows) > sum(
        row["dynamic_sampling/groups_kept"] for row in rows
    )
    states = [runs / name / "checkpoints" / "step_3" for name in ("whole_samples", "half_samples")]
    a, b = (torch.load(folder / "state.pt", weights_only=True)["parameters"] for folder in states)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert states[0].joinpath("prompts.json").read_text() == states[1].joinpath("prompts.json").read_text()


def test_hopeless_data_ends_with_its_cause(workplace):
    (workplace / "never.py").write_text("def compute_score(solution_str):\n    return 0.0\n")
    words = ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=2"]
    done = cohort(
        [*small_run("hopeless"), *words, "custom_reward_function.path=never.py", "trainer.val_before_train=False",
         "data.val_files=[]"],
        workplace,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (
        "step 1: algorithm.filter_groups: 0 of the 4 groups wanted differ in score after 8 prompts in 2 batches" in line
    )
    assert "all wrong" in line or "all truncated" in line
    assert "raise algorithm.filter_groups.max_num_gen_batches" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["algorithm.group_by=size"], "algorithm.group_by=size: data row 0 has no such column; it has: prompt, wanted"),
        (
            ["data.curriculum.order=mixed", "data.curriculum.column=wanted"],
            "has 'c' there; expects a number in every row",
        ),
        (["data.sampler.class_path=reward.py", "data.sampler.class_name=Mine"], "has no such class"),
    ],
)
def test_what_the_data_lacks_is_said_before_a_model_is_loaded(workplace, words, says):
    done = cohort([*small_run("bad_samples"), *words], workplace)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert says in line
    assert not (workplace / "runs" / "cohort" / "bad_samples").exists()


@pytest.mark.slow
def test_the_starter_model_trains_on_full_batches_of_groups_with_signal(tmp_path):
    starter_folder()
    words = [
        "algorithm.filter_groups.enable=True", "algorithm.filter_groups.max_num_gen_batches=20",
        "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "data.train_size=200",
        "data.val_size=20", "trainer.total_training_steps=3", "trainer.test_freq=-1", "trainer.save_freq=-1",
        "trainer.val_before_train=False", "trainer.experiment_name=dynamic",
    ]  # fmt: skip
    done = cohort(["train", *words], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in metrics(tmp_path / "runs" / "cohort" / "dynamic"):
        assert row["dynamic_sampling/groups_kept"] == 8
        assert row["training/groups_with_signal"] == 8 + row["dynamic_sampling/dropped_valid"]
        assert row["training/groups"] == row["dynamic_sampling/groups_sampled"] >= 8
