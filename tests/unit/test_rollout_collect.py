"""Collecting scored groups: order, failures as data, several turns, cancellation."""

import asyncio
import random
import signal

import pytest
import torch

from cohort.errors import UserError
from cohort.protocols import Completion, Request, Sampling
from cohort.rollout.collect import collect
from cohort.rollout.environment import SingleTurn
from cohort.rollout.event_loop import EventLoop
from cohort.rollout.hf import HFSampler
from cohort.rollout.native import NativeSampler
from cohort.types import Author, FinishReason, Prompt, Rollout, Score, Segment, collate
from tests.tiny import tiny_model

EOS = 257


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen3", dtype=torch.float64)


@pytest.fixture
def loop():
    event_loop = EventLoop()
    yield event_loop
    event_loop.close()


def prompts(tokenizer, count=3):
    texts = [f"{'what is ' * i}{i}+{i}=" for i in range(count)]
    return [Prompt(row=10 + i, ids=tuple(tokenizer.encode(t)), text=t) for i, t in enumerate(texts)]


def work(tokenizer, sampler, **changes):
    settings = dict(
        prompts=prompts(tokenizer),
        n=4,
        environment=SingleTurn(tokenizer),
        sampler=sampler,
        sampling=Sampling(max_tokens=12),
        reward=None,
        seed=0,
        step=1,
    )
    settings.update(changes)
    return collect(settings.pop("prompts"), **settings)


class Length:
    """A reward that awaits, and notes in which order it was called."""

    def __init__(self):
        self.called = []

    async def score(self, rollout):
        await asyncio.sleep(0)
        self.called.append((rollout.prompt.row, rollout.sample))
        return Score(value=float(len(rollout.response_ids)))

    def close(self):
        pass


class Calculator:
    """Two turns with a tool's answer between them; waits a random while, to shuffle arrivals."""

    def __init__(self, tokenizer, wait):
        self.tokenizer, self.wait = tokenizer, wait

    async def rollout(self, prompt, sample, sampler, sampling, key):
        rollout = Rollout(prompt=prompt, sample=sample, turns=4)
        for turn in range(2):
            await self.wait()
            got = await sampler.complete(Request(ids=rollout.ids, sampling=sampling, key=key))
            rollout = rollout.extended(
                Segment(
                    ids=got.ids,
                    author=Author.MODEL,
                    log_probs=got.log_probs,
                    policy_versions=got.policy_versions,
                )
            )
            if turn == 0:
                await self.wait()
                tool = tuple(self.tokenizer.encode(" tool: 42 "))
                rollout = rollout.extended(Segment(ids=tool, author=Author.ENVIRONMENT))
        text = self.tokenizer.decode(rollout.response_ids, skip_special_tokens=True)
        return Rollout(**{**rollout.__dict__, "text": text, "finish_reason": got.finish_reason})


async def at_once():
    pass


def ids_of(groups):
    return [[rollout.response_ids for rollout in group.rollouts] for group in groups]


@pytest.mark.parametrize("sampler", [NativeSampler, HFSampler])
def test_groups_come_back_in_order_with_their_scores(model, loop, tokenizer, sampler):
    reward = Length()
    groups = loop.run(work(tokenizer, sampler(model, eos_ids=[EOS], slots=5), reward=reward))
    assert [g.prompt.row for g in groups] == [10, 11, 12]
    for group in groups:
        assert [r.sample for r in group.rollouts] == [0, 1, 2, 3]
        assert len({r.response_ids for r in group.rollouts}) == 4
        for rollout in group.rollouts:
            assert rollout.prompt is group.prompt
            assert rollout.score == Score(value=float(len(rollout.response_ids)))
            assert rollout.text == tokenizer.decode(rollout.response_ids, skip_special_tokens=True)
            assert rollout.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert rollout.turns == 2
    assert len(reward.called) == 12
    assert collate(groups).rows == 12


def test_the_same_call_gives_the_same_rollouts_and_another_step_does_not(model, loop, tokenizer):
    sampler = NativeSampler(model, eos_ids=[EOS])
    first = loop.run(work(tokenizer, sampler))
    assert loop.run(work(tokenizer, sampler)) == first
    assert ids_of(loop.run(work(tokenizer, sampler, step=2))) != ids_of(first)
    assert ids_of(loop.run(work(tokenizer, sampler, seed=1))) != ids_of(first)


def test_it_works_inside_a_running_loop(model, loop, tokenizer):
    sampler = NativeSampler(model, eos_ids=[EOS])
    expected = loop.run(work(tokenizer, sampler))

    async def notebook():
        return loop.run(work(tokenizer, sampler))

    assert asyncio.run(notebook()) == expected


def test_a_prompt_that_occurs_twice_gets_other_draws(model, loop, tokenizer):
    twice = prompts(tokenizer, 1) * 2
    first, second = loop.run(work(tokenizer, NativeSampler(model, eos_ids=[EOS]), prompts=twice))
    assert not {r.response_ids for r in first.rollouts} & {r.response_ids for r in second.rollouts}


def test_rewards_overlap_with_sampling(model, loop, tokenizer):
    """The short answer is graded while the others are still sampled."""
    sampler = NativeSampler(model, eos_ids=())
    steps = []

    class Watch(Length):
        async def score(self, rollout):
            steps.append(sampler.counters.steps)
            return Score(value=0.0)

    class Uneven(SingleTurn):
        async def rollout(self, prompt, sample, sampler, sampling, key):
            return await super().rollout(prompt, sample, sampler, Sampling(max_tokens=2 + 10 * sample), key)

    loop.run(work(tokenizer, sampler, environment=Uneven(tokenizer), reward=Watch()))
    assert sorted(set(steps)) == [1, 11, 21, 31]


def test_several_turns_go_through_the_same_collect(model, loop, tokenizer):
    sampler = NativeSampler(model, eos_ids=[EOS])
    groups = loop.run(work(tokenizer, sampler, environment=Calculator(tokenizer, at_once), reward=Length()))
    for rollout in (r for g in groups for r in g.rollouts):
        answer, tool, conclusion = rollout.segments
        assert [s.author for s in rollout.segments] == [Author.MODEL, Author.ENVIRONMENT, Author.MODEL]
        start = len(rollout.prompt.ids) + len(answer.ids) + len(tool.ids)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([rollout.ids])).logits[0, start - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(conclusion.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(conclusion.log_probs, dtype=torch.float64), expected)


def test_arrival_order_does_not_matter(model, tokenizer):
    """Environments that wait for random times, slots for a few: the tokens stay the same."""

    def run(seed, reverse=False):
        chance, event_loop = random.Random(seed), EventLoop()

        async def jitter():
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.004)))

        asked = prompts(tokenizer)[:: -1 if reverse else 1]
        environment = Calculator(tokenizer, jitter if seed else at_once)
        sampler = NativeSampler(model, eos_ids=[EOS], slots=3)
        got = event_loop.run(work(tokenizer, sampler, prompts=asked, environment=environment))
        event_loop.close()
        return ids_of(got[:: -1 if reverse else 1])

    expected = run(0)
    assert run(0, reverse=True) == expected
    assert [run(seed) for seed in (1, 2, 3)] == [expected] * 3


def test_a_failed_rollout_is_data(model, loop, tokenizer):
    class Fragile(SingleTurn):
        async def rollout(self, prompt, sample, sampler, sampling, key):
            if (prompt.row, sample) == (11, 2):
                raise ZeroDivisionError("the tool broke")
            return await super().rollout(prompt, sample, sampler, sampling, key)

    sampler = NativeSampler(model, eos_ids=[EOS])
    groups = loop.run(work(tokenizer, sampler, environment=Fragile(tokenizer), reward=Length()))
    failed = groups[1].rollouts[2]
    assert failed.finish_reason is FinishReason.ABORT
    assert failed.response_ids == ()
    assert failed.score.value is None
    assert "the tool broke" in failed.score.reason
    assert "Traceback" in failed.score.reason
    rest = [r for g in groups for r in g.rollouts if r is not failed]
    assert len(rest) == 11
    assert all(r.score.value for r in rest)


def test_a_failed_reward_keeps_the_rollout(model, loop, tokenizer):
    class Broken(Length):
        async def score(self, rollout):
            if rollout.sample == 1:
                raise KeyError("no ground truth")
            return await super().score(rollout)

    groups = loop.run(work(tokenizer, NativeSampler(model, eos_ids=[EOS]), reward=Broken()))
    for group in groups:
        assert group.rollouts[1].score.value is None
        assert "no ground truth" in group.rollouts[1].score.reason
        assert group.rollouts[1].response_ids
        assert group.rollouts[0].score.value


def test_what_is_addressed_to_the_user_goes_through(model, loop, tokenizer):
    sampler = NativeSampler(model, eos_ids=[EOS])
    with pytest.raises(UserError, match="stop strings"):
        loop.run(work(tokenizer, sampler, sampling=Sampling(stop=("x",))))
    assert len(loop.run(work(tokenizer, sampler))) == 3


class Endless:
    """A sampler that never answers, and counts who gave up waiting."""

    def __init__(self):
        self.given_up = 0

    async def complete(self, request) -> Completion:
        try:
            await asyncio.sleep(60)
        finally:
            self.given_up += 1
        raise AssertionError("never")

    def load(self, weights, version):
        pass


def test_ctrl_c_cancels_every_rollout(model, loop, tokenizer):
    sampler = Endless()

    async def interrupted():
        asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
        return await work(tokenizer, sampler)

    with pytest.raises(KeyboardInterrupt):
        loop.run(interrupted())
    assert sampler.given_up == 12


def test_ctrl_c_in_the_middle_of_a_decode_step_leaves_the_sampler_usable(model, loop, tokenizer, monkeypatch):
    sampler = NativeSampler(model, eos_ids=[EOS])
    expected = loop.run(work(tokenizer, sampler))
    forward, calls = model.forward, iter(range(100))

    def interrupted(*args, **kwargs):
        if next(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return forward(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(work(tokenizer, sampler))
    assert loop.run(work(tokenizer, sampler)) == expected


def test_cancelling_the_collection_cancels_every_rollout(tokenizer):
    sampler = Endless()

    async def cancelled():
        task = asyncio.create_task(work(tokenizer, sampler))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert sampler.given_up == 12
