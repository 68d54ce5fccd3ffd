"""The plug-ins of docs/design.md, run as they stand there: each trains a tiny model for a step."""

import asyncio
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch

from cohort.data.dataset import build_prompts
from cohort.data.tasks import TASKS, register_task, task_rows
from cohort.metrics import read
from cohort.rewards.custom import load_custom
from cohort.rewards.runner import RewardRunner
from cohort.trainer.advantage import Advantage
from cohort.trainer.measure import Stopwatch
from cohort.types import Author, FinishReason, Rollout
from tests.pages import ROOT, blocks, file_of
from tests.rig import build_parts, build_trainer

PAGE = "docs/design.md"
TITLES = ["brief.py", "reverse.py", "median.py", "reinforce.py", "second_try.py"]


def plugin(title: str) -> ModuleType:
    module = ModuleType(title.removesuffix(".py"))
    exec(compile(file_of(PAGE, title), title, "exec"), vars(module))
    return module


def step(trainer) -> dict[str, float]:
    """One training step, and that it changed the model."""
    before = {name: tensor.detach().clone() for name, tensor in trainer.actor.weights()}
    metrics = read(trainer.step().metrics)
    trainer.close()
    assert metrics["actor/skipped_updates"] == 0
    assert any(not torch.equal(before[name], tensor) for name, tensor in trainer.actor.weights())
    return metrics


def test_every_plug_in_is_short_and_tested_here():
    assert [block.title for block in blocks(ROOT / PAGE) if block.title] == TITLES
    assert all(file_of(PAGE, title).count("\n") < 30 for title in TITLES)


def test_reward(tmp_path, tokenizer):
    (tmp_path / "brief.py").write_text(file_of(PAGE, "brief.py"))
    prompts = build_prompts([{"prompt": "2+3=", "answer": "5"}], tokenizer)
    runner = RewardRunner([load_custom(tmp_path / "brief.py", reward_kwargs={"limit": 5})], num_workers=0, say=str)
    runner.check(prompts)

    def score(text: str) -> float | None:
        rollout = Rollout(prompt=prompts[0], sample=0, text=text, finish_reason=FinishReason.STOP)
        return asyncio.run(runner.score(rollout)).value

    assert [score("5"), score("6"), score("well, it is 5")] == [1.0, 0.0, 0.0]
    runner.close()


def test_task(tokenizer, monkeypatch):
    rows = plugin("reverse.py").rows
    made = rows("train", 50, 1)
    assert made == rows("train", 50, 1) != rows("test", 50, 1)
    assert all(row["prompt"] == f"reverse {row['answer'][::-1]}" for row in made)
    assert build_prompts(made, tokenizer)[3].ground_truth == made[3]["answer"]

    monkeypatch.setitem(TASKS, "reverse", "")  # taken back after the test
    monkeypatch.setitem(sys.modules, "reverse", plugin("reverse.py"))
    register_task("reverse", "reverse:rows")
    assert task_rows("reverse")("train", 50, 1) == made


@pytest.mark.parametrize("n", [3, 4])
def test_advantage(n):
    median = plugin("median.py").median
    found = median(torch.tensor([[0.0, 1], [0, 0], [0, 0]]), torch.tensor([[1.0, 1], [1, 0], [1, 1]]), torch.zeros(3))
    assert found.advantages.tolist() == [[1, 1], [0, 0], [0, 0]]
    trainer = build_trainer(build_parts(), n=n)
    trainer.advantage = Advantage(function=partial(median, scale=0.5))
    assert step(trainer)["critic/advantages/max"] > 0


def test_loss():
    parts = build_parts()
    parts.actor.objective = replace(parts.actor.objective, policy_loss=plugin("reinforce.py").reinforce)
    trainer = build_trainer(parts)
    assert step(trainer)["actor/ppo_kl"] == 0

    # With one update the clipped loss has the same gradient: the same seed reaches the same weights.
    clipped = build_trainer(build_parts())
    step(clipped)
    pairs = zip(trainer.actor.weights(), clipped.actor.weights(), strict=True)
    assert max((ours - theirs).abs().max() for (_, ours), (_, theirs) in pairs) < 1e-5


def test_environment(tokenizer):
    trainer = build_trainer(build_parts(), tokens=26)
    trainer.environment = environment = plugin("second_try.py").SecondTry(tokenizer)
    groups = trainer.collect(trainer.prompts.batch(0, 2))
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        first, told, second = rollout.segments
        assert (first.author, told.author, second.author) == (Author.MODEL, Author.ENVIRONMENT, Author.MODEL)
        assert told.ids == environment.words and len(rollout.response_ids) <= 26
    record = trainer.learn(groups, Stopwatch())
    batch = record.experience.batch
    assert (batch.mask.sum(1) == batch.response_lengths - len(environment.words)).all()
    trainer.close()
