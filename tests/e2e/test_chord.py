"""CHORD from the outside: the preset on the starter model, with demonstrations that are worked out."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from cohort.data.demonstrations import build_demonstrations
from cohort.data.files import write_rows
from cohort.data.tasks import arithmetic
from cohort.data.tokenizer import load_tokenizer
from cohort.models.layout import Layout
from cohort.models.micro import Budget
from cohort.models.scoring import score
from cohort.types import Group, collate
from tests.e2e.conftest import cohort
from tests.starter import starter_folder


def worked(split: str, size: int, *, swapped: bool = False) -> list[dict]:
    """Conversations in which an expert adds column by column; swapped, with the second operand first.

    The reward likes both ways alike; the starter model has never seen the swapped one.
    """
    rows = []
    for row in arithmetic.rows(split, size, 5):
        question = row["prompt"][0]["content"]
        a, b = map(int, question.rstrip("=").split("+"))
        answer = arithmetic.worked_answer(b, a) if swapped else arithmetic.worked_answer(a, b)
        rows.append({"messages": [*row["prompt"], {"role": "assistant", "content": answer}]})
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("chord")
    starter_folder()
    write_rows(place / "expert.parquet", worked("train", 300))
    write_rows(place / "swapped.parquet", worked("train", 300, swapped=True))
    return place


def command(name: str, *more: str) -> list[str]:
    return [
        "train", "--config-name=chord", "algorithm.chord.files=[expert.parquet]", "data.task=arithmetic",
        "actor_rollout_ref.model.path=starter", "data.train_size=200", "data.val_size=100", "data.max_prompt_length=64",
        "data.max_response_length=40", "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "algorithm.chord.batch_size=8", "trainer.val_before_train=False", "trainer.logger=[console,jsonl]",
        f"trainer.experiment_name={name}", "reward.num_workers=0", *more,
    ]  # fmt: skip


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


SETTINGS = ("trainer.save_freq=1", "algorithm.chord.mu_decay_steps=4", "trainer.test_freq=-1")


@pytest.fixture(scope="module")
def whole(folder) -> list[dict]:
    """The metrics of three steps."""
    whole = cohort(command("whole", "trainer.total_training_steps=3", *SETTINGS), folder)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    said = " ".join(whole.stdout.split())
    assert "each update learns from 8 demonstrations too; their weight mu falls from 0.9 to 0.05 over 4 updates" in said
    return metrics(folder / "runs" / "cohort" / "whole")


def test_the_preset_mixes_by_its_schedule(whole):
    mu = [row["actor/chord_mu"] for row in whole]
    assert mu == pytest.approx([(0.9 + 0.77552) / 2, (0.475 + 0.17448) / 2, 0.05], abs=1e-5)
    assert all(row["training/updates"] == 2 and 100 < row["actor/sft_tokens"] < 8 * 27 for row in whole)
    assert all(0 < row["actor/sft_nll"] < 1 and row["actor/skipped_updates"] == 0 for row in whole)


def test_without_files_it_says_which(folder):
    arguments = [word for word in command("none") if not word.startswith("algorithm.chord.files")]
    done = cohort(arguments, folder)
    assert done.returncode == 2
    assert "algorithm.chord.files=[]" in done.stderr and "Traceback" not in done.stderr


def held_out_nll(model_folder: Path, *, swapped: bool) -> float:
    """Cross-entropy per token of demonstrations that no run sees."""
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    shown = build_demonstrations(worked("test", 200, swapped=swapped), load_tokenizer(starter_folder()))
    batch = collate([Group(prompt=rollout.prompt, rollouts=(rollout,)) for rollout in shown])
    stats = score(model, batch, temperature=1.0, layout=Layout(), budget=Budget(max_tokens=4096))
    return float(-stats.log_probs.sum() / batch.mask.sum())


def learn(folder: Path, name: str, *more: str) -> tuple[list[dict], Path]:
    """Twenty-five updates: the metrics, and the model."""
    done = cohort(
        command(
            name, "trainer.total_training_steps=25", "trainer.test_freq=25", "trainer.save_freq=25",
            "trainer.val_before_train=True", "data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16",
            "algorithm.chord.mu_decay_steps=20", "algorithm.chord.batch_size=32", "actor_rollout_ref.actor.optim.lr=5e-4",
            *more,
        ),
        folder, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = folder / "runs" / "cohort" / name
    return metrics(run), run / "checkpoints" / "step_25" / "hf"


def validated(row: dict) -> float:
    return row[next(key for key in row if key.startswith("val-core/cohort/arithmetic/") and "/mean@" in key)]


@pytest.mark.slow
def test_it_takes_up_what_rewards_alone_do_not_teach(folder):
    """Held-out demonstrations of another way become likely. (Its answers are wrong for a while: a shift of style.)"""
    _, alone = learn(folder, "alone", "algorithm.chord.enable=False")
    _, mixed = learn(folder, "swapped", "algorithm.chord.files=[swapped.parquet]")
    before, after, without = (held_out_nll(model, swapped=True) for model in (starter_folder(), mixed, alone))
    print(f"nll {before:.3f} -> {after:.3f}, by rewards alone {without:.3f}")
    assert after < 0.5 * before
    assert after < 0.5 * without


@pytest.mark.slow
@pytest.mark.parametrize("phi", [False, True], ids=["mu", "phi"])
def test_both_terms_pull_together_where_the_expert_writes_as_the_policy_may(folder, phi):
    """Held-out demonstrations become likelier, and held-out answers better."""
    rows, mixed = learn(folder, f"phi-{phi}", f"algorithm.chord.phi={phi}")
    before, after = (held_out_nll(model, swapped=False) for model in (starter_folder(), mixed))
    print(f"nll {before:.4f} -> {after:.4f}; reward {validated(rows[0])} -> {validated(rows[-1])}")
    assert after < 0.5 * before
    assert validated(rows[-1]) > validated(rows[0])
    assert rows[-1]["critic/score/mean"] > rows[1]["critic/score/mean"]
