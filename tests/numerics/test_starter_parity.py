"""Sampler and trainer mean the same by a log-prob, on a model that was trained and is sure of itself."""

import asyncio

import pytest
import torch

from cohort.assemble.learner import load_model
from cohort.data.tasks.arithmetic import rows
from cohort.data.tokenizer import eos_ids, load_tokenizer, render
from cohort.models.forward import token_stats
from cohort.models.layout import Layout
from cohort.protocols import Sampling
from cohort.rollout.collect import collect
from cohort.rollout.environment import SingleTurn
from cohort.rollout.native import NativeSampler
from cohort.types import Prompt, collate
from tests.starter import starter_folder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_sampled_log_probs_are_the_trainers(temperature):
    folder = str(starter_folder())
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, device="cpu")
    prompts = []
    for i, row in enumerate(rows("test", 64, 0)):
        ids, text = render(tokenizer, row["prompt"])
        prompts.append(Prompt(row=i, ids=ids, text=text))
    sampler = NativeSampler(model, eos_ids=eos_ids(tokenizer, model.config, model.generation_config), slots=96)
    sampling = Sampling(temperature=temperature, max_tokens=40)
    groups = asyncio.run(
        collect(
            prompts,
            n=4,
            environment=SingleTurn(tokenizer),
            sampler=sampler,
            sampling=sampling,
            reward=None,
            seed=0,
            step=1,
        )
    )
    batch = collate(groups)
    with torch.no_grad():
        stats = token_stats(model, batch, temperature=temperature, layout=Layout())
    difference = (stats.log_probs - batch.rollout_log_probs)[batch.mask > 0].abs()
    assert len(difference) > 2000
    assert float(difference.mean()) < 1e-5
    assert float(difference.max()) < 1e-4
