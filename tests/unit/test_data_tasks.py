import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cohort.cli import data as command
from cohort.data.dataset import build_prompts, load_rows
from cohort.data.tasks import TASKS, gsm8k, reasoning_gym, register_task, task_rows
from cohort.errors import UserError

SAMPLE = Path(__file__).parents[1] / "data" / "gsm8k_sample"


def run(*argv):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(item) for item in argv]))


def test_gsm8k_rows_are_verl_s():
    row = gsm8k.row({"question": "How many?", "answer": "40*1000 = 40,000\n#### 40,000"}, "train", 5)
    assert row == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": 'How many? Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "40000"},
        "extra_info": {
            "split": "train",
            "index": 5,
            "answer": "40*1000 = 40,000\n#### 40,000",
            "question": "How many?",
        },
    }


def test_gsm8k_command_converts_the_original_files(tmp_path, capsys, tokenizer):
    assert run("gsm8k", "--from", SAMPLE, "--to", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert f"wrote {tmp_path}/out/train.parquet: 64 problems" in said
    files = f"data.train_files={tmp_path}/out/train.parquet data.val_files={tmp_path}/out/test.parquet"
    assert f"next: cohort train --config-name grpo actor_rollout_ref.model.path=MODEL {files}" in said
    for split in ("train", "test"):
        rows = load_rows(tmp_path / "out" / f"{split}.parquet")
        originals = load_rows(SAMPLE / f"{split}.jsonl")
        for i, (row, original) in enumerate(zip(rows, originals, strict=True)):
            assert row == gsm8k.row(original, split, i)
            assert re.fullmatch(r"-?[0-9.]+", row["reward_model"]["ground_truth"])
        assert len(build_prompts(rows, tokenizer)) == 64


def test_gsm8k_subsets_and_errors(tmp_path):
    some = gsm8k.rows("train", 10, 1, folder=SAMPLE)
    assert len(some) == 10
    assert some == gsm8k.rows("train", 10, 1, folder=SAMPLE) != gsm8k.rows("train", 10, 2, folder=SAMPLE)
    with pytest.raises(UserError, match=r"--from .*: no train.jsonl there"):
        gsm8k.rows("train", folder=tmp_path)
    with pytest.raises(UserError, match=r"row 3: the answer has no `#### NUMBER`"):
        gsm8k.row({"question": "q", "answer": "18"}, "train", 2)
    with pytest.raises(UserError, match=r"needs `question` and `answer`, has q"):
        gsm8k.row({"q": 1}, "train", 2)


def test_gsm8k_without_the_hub_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'cohort-rl\[hub\]'"):
        gsm8k.rows("train")


@pytest.mark.parametrize("name", ["chain_sum", "countdown", "arc_1d", "rearc", "knights_knaves"])
def test_reasoning_gym_answers_score_full_marks(name, tmp_path):
    from cohort.data.files import write_rows
    from cohort.rewards.registry import by_data_source

    made = reasoning_gym.rows(name, "train", 3, 7)
    rows = load_rows(write_rows(tmp_path / "a.parquet", made))
    grade = by_data_source({row["data_source"] for row in rows}).function
    for row in rows:
        key = row["reward_model"]["ground_truth"]
        right = grade(row["data_source"], f"so <answer>{key}</answer>", key, row["extra_info"])
        wrong = grade(row["data_source"], "<answer>nonsense</answer>", key, row["extra_info"])
        assert right == 1.0
        assert wrong < 0.1
        assert grade(row["data_source"], str(key), key, row["extra_info"]) == 0.0
    assert made == reasoning_gym.rows(name, "train", 3, 7) != reasoning_gym.rows(name, "test", 3, 7)


def test_reasoning_gym_errors(monkeypatch):
    with pytest.raises(UserError, match=r"no task 'chain_sums'; near it are chain_sum"):
        reasoning_gym.rows("chain_sums", "train", 3, 0)
    assert len(reasoning_gym.rows("chain_sum", "train", 1, 0, min_terms=9, max_terms=9)[0]["prompt"][0]["content"]) > 60
    with pytest.raises(UserError, match="unexpected keyword argument 'terms'"):
        reasoning_gym.rows("chain_sum", "train", 3, 0, terms=1)
    with pytest.raises(UserError, match="at least one dataset"):
        reasoning_gym.rows("composite", "train", 3, 0)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"pip install 'cohort-rl\[reasoning-gym\]'"):
        reasoning_gym.rows("chain_sum", "train", 3, 0)


def test_reasoning_gym_command_keeps_test_problems_unseen(tmp_path, capsys):
    assert run("reasoning-gym", "coin_flip", "--to", tmp_path, "--size", 40, "--test-size", 40, "--seed", 2) == 0
    train, test = (load_rows(tmp_path / f"{split}.parquet") for split in ("train", "test"))
    seen = {json.dumps(row["prompt"]) for row in train}
    assert len(train) == 40
    assert not any(json.dumps(row["prompt"]) in seen for row in test)
    said = capsys.readouterr().out
    assert (f"{40 - len(test)} test problems also occur in training" in said) == (len(test) < 40)


def test_a_task_can_be_added_and_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cohort.data.tasks.TASKS", dict(TASKS))
    (tmp_path / "my_task_for_cohort.py").write_text(
        "def rows(split, size, seed):\n    return [{'prompt': f'{split} {seed} {i}'} for i in range(size)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    register_task("arithmetic", "my_task_for_cohort:rows")
    assert run("arithmetic", "--to", tmp_path, "--size", 3, "--test-size", 2, "--seed", 9) == 0
    assert [row["prompt"] for row in load_rows(tmp_path / "test.parquet")] == ["test 9 0", "test 9 1"]
    with pytest.raises(UserError, match=r"unknown task 'nope'; there are arithmetic, gsm8k and reasoning-gym/NAME"):
        task_rows("nope")


def test_every_test_problem_seen_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("cohort.cli.data._splits", lambda args: ([{"prompt": "a"}], [{"prompt": "a"}]))
    with pytest.raises(UserError, match="too few problems"):
        run("arithmetic", "--to", tmp_path)


def test_making_data_imports_no_torch(tmp_path):
    code = (
        "import argparse, sys; from cohort.cli import data; p = argparse.ArgumentParser(); data.add_arguments(p)\n"
        f"data.run(p.parse_args(['gsm8k', '--from', {str(SAMPLE)!r}, '--to', {str(tmp_path)!r}]))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SAMPLE.parents[2], stdout=subprocess.DEVNULL)
