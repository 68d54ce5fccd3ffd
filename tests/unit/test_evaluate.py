"""Every row exactly once, for any batch size, with a fake sampler that draws by its key alone."""

import asyncio
import random

import pytest

from cohort.protocols import Completion, Request, Sampling, SeedKey
from cohort.trainer.evaluate import Evaluation, Result, evaluate
from cohort.types import Author, FinishReason, Group, Prompt, Rollout, Score, Segment


class FakeSampler:
    """Answers with a digit that is a function of the key; greedy answers do not depend on the key."""

    def __init__(self):
        self.requests: list[Request] = []

    async def complete(self, request):
        self.requests.append(request)
        key = request.key
        draw = random.Random(f"{key.seed}/{key.step}/{key.prompt}/{key.sample}").random()
        token = 48 + (int(10 * draw) if request.sampling.temperature else key.prompt % 10)
        return Completion(
            ids=(token, 257), log_probs=(-1.0, -0.1), policy_versions=(3, 3), finish_reason=FinishReason.STOP
        )

    def load(self, weights, version):
        raise AssertionError("validation loads no weights")


class OneTurn:
    async def rollout(self, prompt, sample, sampler, sampling, key):
        got = await sampler.complete(Request(ids=prompt.ids, sampling=sampling, key=key))
        segment = Segment(
            ids=got.ids, author=Author.MODEL, log_probs=got.log_probs, policy_versions=got.policy_versions
        )
        text = chr(got.ids[0])
        return Rollout(prompt=prompt, sample=sample, segments=(segment,), finish_reason=got.finish_reason, text=text)


class LastDigit:
    async def score(self, rollout):
        if rollout.prompt.ground_truth is None:
            return Score(value=None, reason="no answer key")
        right = float(rollout.text == rollout.prompt.ground_truth)
        return Score(value=right, parts={"acc": right, "pred": rollout.text})

    def close(self): ...


async def fake_collect(prompts, *, n, environment, sampler, sampling, reward, seed, step):
    groups = []
    for prompt in prompts:
        rollouts = []
        for sample in range(n):
            key = SeedKey(seed=seed, step=step, prompt=prompt.row, sample=sample)
            rollout = await environment.rollout(prompt, sample, sampler, sampling, key)
            rollouts.append(Rollout(**{**vars(rollout), "score": await reward.score(rollout)}))
        groups.append(Group(prompt=prompt, rollouts=tuple(rollouts)))
    return groups


def prompts(count, **changes):
    return [
        Prompt(**{"row": i, "ids": (1, 2), "text": f"q{i}", "ground_truth": str(i % 10), **changes})
        for i in range(count)
    ]


def run(rows, *, n=1, batch_size=None, temperature=1.0, collect=fake_collect, sampler=None):
    work = evaluate(
        rows,
        n=n,
        environment=OneTurn(),
        sampler=sampler or FakeSampler(),
        sampling=Sampling(temperature=temperature),
        reward=LastDigit(),
        seed=5,
        collect=collect,
        batch_size=batch_size,
    )
    return asyncio.run(work)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 7, 64, 5000])
def test_every_row_exactly_once(size, batch_size):
    sampler = FakeSampler()
    evaluation = run(prompts(size), batch_size=batch_size, sampler=sampler)
    assert [(r.prompt, r.sample) for r in evaluation.results] == [(i, 0) for i in range(size)]
    assert [r.prompt.row for r in evaluation.rollouts] == list(range(size))
    assert sorted(r.key.prompt for r in sampler.requests) == list(range(size))
    assert evaluation.summaries[0].answers == size


def test_no_rows():
    assert run([]) == Evaluation(results=(), rollouts=(), metrics={})


def test_batch_size_changes_no_result():
    one, many = (run(prompts(50), n=4, batch_size=size) for size in (1, 17))
    assert one.results == many.results
    assert one.metrics == many.metrics


def test_draws_belong_to_no_training_step():
    sampler = FakeSampler()
    run(prompts(2), n=2, sampler=sampler)
    assert {request.key.step for request in sampler.requests} == {0}


def test_a_repeated_row_is_two_prompts():
    row = prompts(1)[0]
    assert [r.prompt for r in run([row, row], n=2).results] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "spoil",
    [lambda groups: groups[1:], lambda groups: groups[::-1], lambda groups: [groups[0], *groups]],
    ids=["lost", "reordered", "repeated"],
)
def test_a_lost_row_is_an_error(spoil):
    async def spoiled(batch, **settings):
        return spoil(await fake_collect(batch, **settings))

    with pytest.raises(RuntimeError, match="asked for 4 rows x 1 answers"):
        run(prompts(4), collect=spoiled)


def test_unscorable_rows_are_counted():
    evaluation = run([*prompts(3), *prompts(1, ground_truth=None)], temperature=0.0)
    summary = evaluation.summaries[0]
    assert (summary.prompts, summary.answers, summary.unscorable) == (3, 4, 1)
    assert evaluation.metrics["val-core/unknown/acc/mean@1"] == 1.0
    assert evaluation.results[3].reason == "no answer key"


def test_summary_is_the_metric():
    evaluation = run(prompts(40), n=4)
    summary = evaluation.summaries[0]
    assert summary.variable == "acc"
    assert summary.binary
    assert summary.interval.mean == pytest.approx(evaluation.metrics["val-core/unknown/acc/mean@4"])
    assert summary.interval.low == evaluation.metrics["val-aux/unknown/acc/ci95/low"]
    assert (summary.length, summary.ended, summary.parsed) == (2, 1, 1)


def test_greedy_beside_sampled():
    sampled, greedy = run(prompts(20), n=2), run(prompts(20), temperature=0.0)
    both = sampled.beside(greedy)
    assert both.greedy is greedy
    assert both.metrics["val-aux/unknown/greedy_acc/mean"] == 1.0
    assert both.metrics["val-core/unknown/acc/mean@2"] == sampled.metrics["val-core/unknown/acc/mean@2"]
    assert not any("greedy" in name for name in sampled.metrics)


@pytest.mark.parametrize(
    ("parts", "share"),
    [
        ({"parsed": 0.0}, 0.0),
        ({"format": 1.0, "pred": ""}, 1.0),
        ({"pred": "12"}, 1.0),
        ({"pred": ""}, 0.0),
        ({}, None),
    ],
)
def test_parse_share(parts, share):
    evaluation = Evaluation(results=(Result(data_source="d", prompt=0, score=1.0, parts=parts),))
    assert evaluation.summaries[0].parsed == share
