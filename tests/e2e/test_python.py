"""Training from Python: a lambda reward, a list of dicts, also inside a running event loop."""

import asyncio

import cohort
from cohort.protocols import Request, Sampling, SeedKey

ROWS = [{"prompt": f"say {word}", "wanted": word[0]} for word in ("cat", "dog", "bird", "fish")]
SMALL = {
    "n": 3, "train_batch_size": 4, "ppo_mini_batch_size": 4, "max_response_length": 6, "max_prompt_length": 64,
    "total_training_steps": 2, "optim__lr": 1e-3, "num_workers": 1,
}  # fmt: skip


def train(workplace, tmp_path, reward, **more):
    settings = {"trainer.default_local_dir": str(tmp_path / "run"), **more.pop("settings", {})}
    return cohort.train(str(workplace / "M"), ROWS, reward, settings=settings, **{**SMALL, **more})


def test_a_lambda_and_a_list_of_dicts(workplace, tmp_path):
    run = train(workplace, tmp_path, lambda text, wanted: float(wanted in text) + len(text) / 100)
    assert run.outcome.steps == 2
    assert run.outcome.history[1]["training/groups"] == 4
    assert (run.folder / "config.yaml").is_file()


def test_inside_a_running_event_loop(workplace, tmp_path):
    async def notebook_cell():
        return train(workplace, tmp_path, lambda text: len(set(text)) / 10, num_workers=0)

    run = asyncio.run(notebook_cell())
    assert run.outcome.steps == 2


def test_an_async_reward_may_ask_the_model(workplace, tmp_path):
    asked = []

    async def judge(text, ids, sampler):
        key = SeedKey(seed=0, step=0, prompt=0, sample=0)
        verdict = await sampler.complete(Request(ids=(1, 2, 3), sampling=Sampling(max_tokens=2), key=key))
        asked.append(verdict.ids)
        return len(text) / 10

    run = train(workplace, tmp_path, judge)
    assert run.outcome.steps == 2
    assert len(asked) == 2 * 12
