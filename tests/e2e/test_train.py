"""The training command from the outside: what it runs, writes, resumes and refuses."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.e2e.conftest import ROOT, cohort, environment, small_run
from tests.unit.verl_command import VERL_COMMAND


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_command_of_a_verl_user_runs_as_it_is(workplace):
    command = [sys.executable, "-m", "cohort.main_ppo", *VERL_COMMAND, "data.max_response_length=16"]
    done = subprocess.run(command, cwd=workplace, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 prompts x 5 answers = 80 rollouts a step" in done.stdout
    assert "2 updates a step: 2 of 8 prompts (40 rollouts)" in done.stdout
    assert "training passes of at most 16384 tokens and 4 answers" in done.stdout
    assert "Traceback" not in done.stderr
    run = workplace / "runs" / "p" / "e"
    rows = metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1]["training/updates"] == 2
    assert rows[1]["actor/kl_coef"] == 0.001
    assert rows[1]["actor/lr"] == 1e-6
    assert "val-core/openai/gsm8k/reward/mean@1" in rows[0] or "val-core/openai/gsm8k/acc/mean@1" in rows[0]
    assert list((run / "tensorboard").glob("events*"))
    assert len(list((run / "rollouts").glob("*.parquet"))) == 2
    assert (run / "checkpoints" / "step_2" / "hf" / "model.safetensors").is_file()
    assert (run / "curves.png").is_file()


def test_a_checkpoint_is_a_hugging_face_model_with_the_trainers_log_probs(workplace):
    assert cohort(small_run("hf", "trainer.save_freq=2"), workplace).returncode == 0
    run = workplace / "runs" / "cohort" / "hf"
    script = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
ids = tokenizer.apply_chat_template([{"role": "user", "content": "a probe"}], add_generation_prompt=True)["input_ids"]
with torch.no_grad():
    print(json.dumps([ids, model(torch.tensor([ids])).logits.log_softmax(-1)[0, -1].tolist()]))
"""
    folder = run / "checkpoints" / "step_2"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder / "hf")],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    ids, expected = json.loads(done.stdout)
    from tests.tiny import tiny_model

    model = tiny_model()
    model.load_state_dict(torch.load(folder / "state.pt", weights_only=True)["parameters"], strict=False)
    with torch.no_grad():
        ours = model(torch.tensor([ids])).logits.log_softmax(-1)[0, -1]
    torch.testing.assert_close(ours, torch.tensor(expected), atol=1e-5, rtol=0)


def test_a_stopped_run_goes_on_where_it_was_and_a_finished_one_is_left_alone(workplace):
    whole = small_run(
        "whole", "trainer.save_freq=1", "trainer.total_training_steps=4", "trainer.val_before_train=False"
    )
    halves = [word.replace("name=whole", "name=halves") for word in whole]
    assert cohort(whole, workplace).returncode == 0
    assert cohort([*halves, "trainer.total_training_steps=2"], workplace).returncode == 0
    second = cohort(halves, workplace)
    assert second.returncode == 0, second.stderr
    assert re.search(r"going on from \S*step_2", second.stdout)
    runs = workplace / "runs" / "cohort"
    a, b = (torch.load(runs / n / "checkpoints/step_4/state.pt", weights_only=True) for n in ("whole", "halves"))
    for name, tensor in a["parameters"].items():
        assert torch.equal(tensor, b["parameters"][name]), name
    timeless = [
        {k: v for k, v in row.items() if not k.startswith(("timing", "perf"))} for row in metrics(runs / "whole")
    ]
    assert timeless == [
        {k: v for k, v in row.items() if not k.startswith(("timing", "perf"))} for row in metrics(runs / "halves")
    ]
    assert cohort(halves, workplace).returncode == 0
    assert (runs / "halves-2" / "checkpoints" / "step_4").is_dir()


def test_ctrl_c_finishes_the_step_saves_and_says_so(workplace):
    command = small_run("stopped", "trainer.total_training_steps=100000", "trainer.val_before_train=False")
    process = subprocess.Popen(
        [sys.executable, "-m", "cohort", *command],
        cwd=workplace, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    log = workplace / "runs" / "cohort" / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.is_file() and log.read_text().count("\n") >= 2):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "saved, run the same command again to go on" in output
    assert "Traceback" not in output
    assert list((workplace / "runs" / "cohort" / "stopped" / "checkpoints").glob("step_*/hf/model.safetensors"))


def test_every_sample_is_in_the_parquet_file(workplace):
    from cohort.tracking.rollouts import read_step

    assert cohort(small_run("samples"), workplace).returncode == 0
    run = workplace / "runs" / "cohort" / "samples"
    for row in metrics(run)[1:]:
        samples = read_step(run / "rollouts", row["step"])
        assert len(samples) == 12
        scores = [sample.score for sample in samples]
        assert sum(scores) / len(scores) == pytest.approx(row["critic/score/mean"])


@pytest.mark.slow
def test_two_replicas_give_the_run_of_one(workplace):
    one = small_run("one", "trainer.total_training_steps=2", "trainer.val_before_train=False")
    two = small_run(
        "two", "trainer.total_training_steps=2", "trainer.val_before_train=False", "trainer.n_gpus_per_node=2"
    )
    for command in (one, two):
        done = cohort(command, workplace)
        assert done.returncode == 0, done.stdout + done.stderr
    runs = workplace / "runs" / "cohort"
    for a, b in zip(metrics(runs / "one"), metrics(runs / "two"), strict=True):
        for name in ("critic/score/mean", "actor/grad_norm", "response_length/mean"):
            assert a[name] == pytest.approx(b[name], rel=1e-4), name


def test_lora_trains_and_saves_a_merged_model_and_the_adapter(workplace):
    done = cohort(
        small_run("lora", "actor_rollout_ref.model.lora_rank=4", "trainer.save_freq=2",
                  "actor_rollout_ref.actor.use_kl_loss=True"),
        workplace,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    hf = workplace / "runs" / "cohort" / "lora" / "checkpoints" / "step_2" / "hf"
    assert (hf / "model.safetensors").is_file()
    assert (hf / "adapter" / "adapter_config.json").is_file()


def test_eval_and_generate_use_the_same_code(workplace):
    from cohort.tracking.dumps import to_json  # noqa: F401 - the file's format is its writer's

    done = cohort(
        [
            "eval",
            "--model",
            "M",
            "--data",
            "D/test.parquet",
            "--max-samples",
            "6",
            "--max-tokens",
            "8",
            "--out",
            "a.jsonl",
        ],
        workplace,
    )
    assert done.returncode == 0, done.stderr
    assert "6 answers to 6 prompts" in done.stdout
    assert len((workplace / "a.jsonl").read_text().splitlines()) == 6
    answered = cohort(["generate", "--model", "M", "--max-tokens", "4", "--n", "2", "hello"], workplace)
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.count("[length]") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data.train_files=nowhere.parquet"], "data.train_files=nowhere.parquet: no such file"),
        (["actor_rollout_ref.model.path=./nomodel"], "actor_rollout_ref.model.path=./nomodel: no such folder"),
        (["actor_rollout_ref.rollout.name=vllm"], "actor_rollout_ref.rollout.name"),
        (["actor_rollout_ref.rolout.n=3"], "actor_rollout_ref.rollout.n"),
        (["custom_reward_function.name=nope"], "compute_score"),
        (["data.prompt_key=question"], "no column `question`"),
        (["trainer.logger=[wandb]"], "wandb"),
        (["trainer.resume_mode=resume_path", "trainer.resume_from_path=x"], "trainer.resume_from_path"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(workplace, arguments, says):
    done = cohort([*small_run("bad"), *arguments], workplace)
    assert done.returncode == 2, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert says in errors[0]
    assert "Traceback" not in done.stderr
    assert not (workplace / "runs" / "cohort" / "bad").exists()


def test_a_reward_that_raises_stops_the_run_with_its_own_traceback(workplace):
    (workplace / "raises.py").write_text("def compute_score(solution_str):\n    return {}['missing']\n")
    done = cohort(
        [*small_run("raises"), "custom_reward_function.path=raises.py", "trainer.val_before_train=False"], workplace
    )
    assert done.returncode == 2
    assert "KeyError: 'missing'" in done.stderr
    assert "12 of 12" in done.stderr
    assert not list((workplace / "runs" / "cohort" / "raises" / "rollouts").glob("*.parquet"))


def test_the_python_example_is_short(workplace):
    lines = [line for line in (ROOT / "examples" / "python_api.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 25
