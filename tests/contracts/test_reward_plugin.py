"""What a person writes to grade their own task, and that it needs nothing else."""

import asyncio

import pytest

from cohort.data.dataset import build_prompts, load_rows
from cohort.data.loader import PromptLoader
from cohort.errors import UserError
from cohort.rewards.custom import load_custom
from cohort.rewards.registry import built_in
from cohort.rewards.runner import RewardRunner
from cohort.types import FinishReason, Rollout

PLUGIN = '''
def capital(solution_str, ground_truth, country, partial=0.0):
    """1 for the right city, `partial` for an answer that at least names the country."""
    if ground_truth.lower() in solution_str.lower():
        return {"score": 1.0, "named": True}
    return {"score": partial if country in solution_str else 0.0, "named": False}
'''
DATA = '{"prompt": "Capital of France?", "answer": "Paris", "country": "France"}\n'


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_reward_in_a_file_grades_plain_data(tmp_path, tokenizer, num_workers):
    (tmp_path / "capital.py").write_text(PLUGIN)
    (tmp_path / "data.jsonl").write_text(DATA)
    prompts = build_prompts(load_rows(tmp_path / "data.jsonl"), tokenizer)
    function = load_custom(tmp_path / "capital.py", "capital", {"partial": 0.2})
    form = built_in("format", {"pattern": r"[A-Z].*\."}, weight=0.5)
    runner = RewardRunner([function, form], num_workers=num_workers, say=lambda text: None)
    runner.check(prompts)
    (prompt,) = PromptLoader(prompts, seed=1).batch(7, 1)

    def score(text):
        rollout = Rollout(prompt=prompt, sample=0, text=text, finish_reason=FinishReason.STOP)
        return asyncio.run(runner.score(rollout))

    assert score("It is Paris.").value == 1.5
    assert score("It is Paris.").parts == {"capital": 1.0, "capital/named": 1.0, "format": 1.0}
    assert score("france, no idea").value == 0.0
    assert score("In France").value == 0.2
    runner.close()


def test_a_missing_column_is_said_before_anything_is_sampled(tokenizer):
    prompts = build_prompts([{"prompt": "q", "question": "q", "gold": 1}], tokenizer)

    def reward(text, answer):
        return float(text == answer)

    with pytest.raises(UserError, match="reward `reward` needs `answer`; your data has: prompt, question, gold"):
        RewardRunner([reward], num_workers=1).check(prompts)
