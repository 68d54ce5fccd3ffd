"""The same command on one CUDA device, in bfloat16."""

import json

import pytest
import torch

from tests.e2e.conftest import cohort, small_run, workplace  # noqa: F401 - a fixture

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_the_small_run_on_a_gpu(workplace):  # noqa: F811
    done = cohort(
        small_run("cuda", "trainer.device=cuda", "actor_rollout_ref.actor.dtype=bfloat16", "trainer.save_freq=2"),
        workplace,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bfloat16 compute, float32 weights" in done.stdout
    lines = (workplace / "runs" / "cohort" / "cuda" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[-1]["training/rollout_probs_diff_max"] < 0.1
    assert rows[-1]["actor/grad_norm"] > 0
