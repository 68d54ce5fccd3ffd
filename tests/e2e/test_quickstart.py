"""The main job: a short quickstart stays inside the committed band, and what it starts from is honest."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import cohort
from tests.starter import starter_folder

pytestmark = pytest.mark.slow
EXPECTED = json.loads((Path(__file__).parents[1] / "golden" / "quickstart_curve.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("quickstart")
    starter_folder()
    done = cohort(["train", "trainer.total_training_steps=40", "trainer.test_freq=40"], folder, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held-out prompts" in done.stdout
    place = folder / "runs" / "cohort" / "quickstart"
    assert (place / "curves.png").stat().st_size > 10_000
    return [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]


def test_the_curve_is_inside_the_band(run):
    reward = {row["step"]: row["critic/score/mean"] for row in run if "critic/score/mean" in row}
    for window in EXPECTED["windows"]:
        steps = range(window["first_step"], window["last_step"] + 1)
        if steps[-1] > 40:
            break
        mean = sum(reward[step] for step in steps) / len(steps)
        assert window["low"] <= mean <= window["high"], (window, mean)


def test_reinforcement_learning_does_the_work(run):
    name = next(key for key in run[0] if key.startswith("val-core/cohort/arithmetic/") and "/mean@" in key)
    before, after = run[0][name], run[-1][name]
    assert 0.25 < before < 0.6
    assert after - before > 0.2


def test_format_is_not_the_gain():
    card = json.loads((starter_folder() / "starter.json").read_text())
    assert card["parsed"] >= 0.95, card
    assert card["greedy_accuracy"] > card["sampled_accuracy"], card
