"""Folders that whole-command tests work in: a tiny model, and GSM8K rows it cannot answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import byte_tokenizer, tiny_model

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "data" / "gsm8k_sample"


@pytest.fixture(scope="session")
def workplace(tmp_path_factory) -> Path:
    """A folder with a model M, GSM8K data D, and rows whose reward a random model can earn."""
    folder = tmp_path_factory.mktemp("workplace")
    tiny_model().save_pretrained(folder / "M")
    byte_tokenizer().save_pretrained(folder / "M")
    done = cohort(["data", "gsm8k", "--from", str(SAMPLE), "--to", "D"], folder)
    assert done.returncode == 0, done.stderr
    rows = [{"prompt": f"say {word}", "wanted": word[0]} for word in ("cat", "dog", "bird", "fish", "cow", "hen")]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(
        "def compute_score(solution_str, wanted):\n"
        "    share = sum(c.isascii() for c in solution_str) / max(len(solution_str), 1)\n"
        "    return {'score': share, 'found': float(wanted in solution_str)}\n"
    )
    return folder


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def cohort(
    arguments: list[str], folder: Path, *, timeout: float = 240, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m cohort ...`` in ``folder``."""
    command = [sys.executable, "-m", "cohort", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=timeout)


def small_run(name: str, *more: str) -> list[str]:
    """Arguments of a training command that takes seconds."""
    return [
        "train", "--config-name", "grpo", "data.train_files=rows.jsonl", "data.val_files=rows.jsonl",
        "actor_rollout_ref.model.path=M", "data.train_batch_size=4", "data.max_prompt_length=64",
        "data.max_response_length=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.optim.lr=1e-3",
        "custom_reward_function.path=reward.py", f"trainer.experiment_name={name}", "trainer.total_training_steps=2",
        "reward.num_workers=1", "trainer.logger=[console]", *more,
    ]  # fmt: skip
