"""The classifier as a reward: rendering, truncation, labels, and the sum with functions."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch

from cohort.errors import UserError
from cohort.models.classifier import Classifier
from cohort.models.micro import Budget
from cohort.protocols import GroupReward, Sampling
from cohort.rewards.base import Graded, RewardFunction
from cohort.rewards.mixed import MixedReward
from cohort.rewards.model import ClassifierReward
from cohort.rewards.runner import RewardRunner
from cohort.rollout.collect import collect
from cohort.rollout.environment import SingleTurn
from cohort.rollout.native import NativeSampler
from cohort.types import FinishReason, Group, Prompt, Rollout, Score
from tests.tiny import byte_tokenizer, tiny_classifier, tiny_model

TOKENIZER = byte_tokenizer()


def prompt(text: str = "2+3?", row: int = 0, **more) -> Prompt:
    ids = tuple(TOKENIZER(f"<user>{text}<eos><assistant>")["input_ids"])
    messages = ({"role": "user", "content": text},)
    return Prompt(row=row, ids=ids, text=f"<user>{text}<eos><assistant>", messages=messages, **more)


def answer(text: str, of: Prompt | None = None, sample: int = 0) -> Rollout:
    return Rollout(prompt=of or prompt(), sample=sample, text=text, finish_reason=FinishReason.STOP)


def reward(labels: int = 1, tokenizer=TOKENIZER, budget=Budget(), **options) -> ClassifierReward:
    return ClassifierReward(Classifier(tiny_classifier(labels=labels), budget=budget), tokenizer, **options)


def grade(grader, rollouts) -> list[Graded]:
    return asyncio.run(grader.grade(rollouts))


def logits(text: str, labels: int = 1) -> torch.Tensor:
    return Classifier(tiny_classifier(labels=labels)).logits([TOKENIZER(text)["input_ids"]])[0]


def test_the_conversation_is_rendered_by_the_models_own_template():
    (graded,) = grade(reward(), [answer("five")])
    assert graded.value == pytest.approx(float(logits("<user>2+3?<eos><assistant>five<eos>")), abs=1e-5)
    assert graded.parts == {"truncated": 0.0}

    other = byte_tokenizer()
    other.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    (graded,) = grade(reward(tokenizer=other), [answer("five")])
    assert graded.value == pytest.approx(float(logits("[user]2+3?[assistant]five")), abs=1e-5)


def test_an_answer_that_was_begun_in_the_prompt_is_continued():
    begun = replace(
        prompt(), messages=({"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "It is "})
    )
    (graded,) = grade(reward(), [answer("five", begun)])
    assert graded.value == pytest.approx(float(logits("<user>2+3?<eos><assistant>It is five<eos>")), abs=1e-5)


def test_without_a_template_question_and_answer_are_a_pair():
    plain = byte_tokenizer()
    plain.chat_template = None
    (graded,) = grade(reward(tokenizer=plain), [answer("five")])
    assert graded.value == pytest.approx(float(logits("2+3?five")), abs=1e-5)


def test_a_conversation_that_the_template_refuses_has_no_score():
    strict = byte_tokenizer()
    strict.chat_template = (
        "{% for m in messages %}{% if 'x' in m['content'] %}{{ raise_exception('no x') }}{% endif %}"
        "{{ m['content'] }}{% endfor %}"
    )
    good, bad = grade(reward(tokenizer=strict), [answer("five"), answer("x")])
    assert good.value is not None
    assert bad.value is None
    assert "no x" in bad.reason


@pytest.mark.parametrize("budget", [Budget(max_rows=1), Budget(max_tokens=60), Budget()])
def test_scores_do_not_depend_on_who_else_is_graded(budget):
    answers = [answer("a" * n) for n in (1, 40, 3, 7, 7, 100)]
    together = [g.value for g in grade(reward(budget=budget), answers)]
    alone = [grade(reward(), [a])[0].value for a in answers]
    assert together == pytest.approx(alone, abs=1e-6)
    backwards = [g.value for g in grade(reward(budget=budget), answers[::-1])]
    assert backwards[::-1] == pytest.approx(together, abs=1e-6)


def test_truncation_is_counted_and_said_once():
    said = []
    grader = reward(max_length=10, say=said.append)
    text = "<user>2+3?<eos><assistant>five hundred<eos>"
    short, long = prompt("?"), prompt()
    first, second = grade(grader, [answer("five hundred", long), answer("5", short)])
    assert first.value == pytest.approx(
        float(Classifier(tiny_classifier()).logits([TOKENIZER(text)["input_ids"][:10]]))
    )
    assert (first.parts["truncated"], second.parts["truncated"]) == (1.0, 0.0)
    grade(grader, [answer("five hundred", long)])
    assert len(said) == 1
    assert "1 of 2 conversations are longer than 10 tokens" in said[0]

    (left,) = grade(reward(max_length=10, truncation="left"), [answer("five hundred")])
    assert left.value == pytest.approx(
        float(Classifier(tiny_classifier()).logits([TOKENIZER(text)["input_ids"][-10:]]))
    )

    fits, none = grade(reward(max_length=10, truncation="unscorable"), [answer("5", short), answer("five hundred")])
    assert fits.value is not None
    assert (none.value, none.parts["truncated"]) == (None, 1.0)
    assert "max_length=10" in none.reason


def test_the_models_own_limit_holds_and_more_is_refused():
    assert reward().max_length == 512
    (graded,) = grade(reward(), [answer("x" * 600)])
    assert graded.parts["truncated"] == 1.0
    with pytest.raises(UserError, match="max_length=513: the reward model reads at most 512"):
        reward(max_length=513)


def test_labels_and_activations():
    values = logits("<user>2+3?<eos><assistant>five<eos>", labels=3)
    with pytest.raises(UserError, match="3 labels .*reward_model.label"):
        reward(labels=3)
    with pytest.raises(UserError, match="label=good: the reward model has LABEL_0"):
        reward(labels=3, label="good")

    def value(**options):
        return grade(reward(labels=3, **options), [answer("five")])[0].value

    assert value(label="LABEL_2") == pytest.approx(float(values[2]), abs=1e-5)
    assert value(label="1") == pytest.approx(float(values[1]), abs=1e-5)
    assert value(label="1", activation="sigmoid") == pytest.approx(1 / (1 + math.exp(-float(values[1]))), abs=1e-5)
    assert value(label="1", activation="softmax") == pytest.approx(float(values.softmax(0)[1]), abs=1e-5)
    assert value(label="1", scale=-2.0, shift=0.5) == pytest.approx(0.5 - 2 * float(values[1]), abs=1e-5)


def test_a_number_that_is_none_is_no_score():
    broken = reward()
    with torch.no_grad():
        broken.classifier.model.score.weight.fill_(math.nan)
    (graded,) = grade(broken, [answer("five")])
    assert (graded.value, graded.reason) == (None, "the reward model gave nan")


# --- mixed with functions ---------------------------------------------------------------------


class Lengths:
    """A grader that is asked once per step and remembers in which order."""

    together = True

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def grade(self, rollouts):
        self.asked.append([r.text for r in rollouts])
        return [Graded(float(len(r.text)), {"truncated": 0.0}) for r in rollouts]


class OneByOne(Lengths):
    together = False

    async def grade(self, rollouts):
        if rollouts[0].text == "boom":
            raise KeyError("boom")
        return await super().grade(rollouts)


def functions(*rewards) -> RewardRunner:
    return RewardRunner(rewards, num_workers=0, say=lambda line: None)


def graded_groups(mixed: MixedReward, groups) -> list[Group]:
    async def work():
        scored = [
            replace(g, rollouts=tuple([replace(r, score=await mixed.score(r)) for r in g.rollouts])) for g in groups
        ]
        return await mixed.score_groups(scored)

    return asyncio.run(work())


def test_a_sum_of_named_parts():
    mixed = MixedReward(
        Lengths(),
        functions=functions(RewardFunction(function=lambda text: {"score": 2.0, "acc": 1.0}, name="rule", weight=0.5)),
        weight=-3.0,
    )
    assert isinstance(mixed, GroupReward)
    (group,) = graded_groups(mixed, [Group(prompt=prompt(), rollouts=(answer("four"),))])
    score = group.rollouts[0].score
    assert score.value == 0.5 * 2 - 3 * 4
    assert score.parts == {"rule": 2.0, "rule/acc": 1.0, "reward_model": 4.0, "reward_model/truncated": 0.0}


@pytest.mark.parametrize("grader", [Lengths, OneByOne])
def test_where_no_function_applies_the_model_decides(grader):
    mixed = MixedReward(grader(), functions=functions(lambda text: {"applies": False}))
    (group,) = graded_groups(mixed, [Group(prompt=prompt(), rollouts=(answer("four"),))])
    assert group.rollouts[0].score.value == 4.0


@pytest.mark.parametrize("grader", [Lengths, OneByOne])
def test_alone_the_model_is_the_reward(grader):
    (group,) = graded_groups(MixedReward(grader()), [Group(prompt=prompt(), rollouts=(answer("four"), answer("")))])
    assert [r.score.value for r in group.rollouts] == [4.0, 0.0]
    assert group.rollouts[0].score.parts == {"reward_model": 4.0, "reward_model/truncated": 0.0}


def test_answers_without_a_score_are_not_asked_about_and_order_is_that_of_prompts():
    grader = Lengths()

    def rule(text):
        return None if text == "bad" else 1.0

    mixed = MixedReward(grader, functions=functions(rule))
    failed = replace(answer("lost"), score=Score(value=None, reason="the environment failed"))
    groups = [
        Group(prompt=prompt(), rollouts=(answer("b"), answer("bad"), answer("a"))),
        Group(
            prompt=prompt(row=1), rollouts=(answer("c"),), baseline=replace(answer("greedy"), score=Score(value=1.0))
        ),
    ]
    first, second = graded_groups(mixed, groups)
    (kept,) = asyncio.run(mixed.score_groups([Group(prompt=prompt(), rollouts=(failed,))]))
    assert grader.asked == [["b", "a", "c", "greedy"], []]
    assert [r.score.value for r in first.rollouts] == [2.0, None, 2.0]
    assert "the reward returned None" in first.rollouts[1].score.reason
    assert second.baseline.score.value == 7.0
    assert kept.rollouts[0].score.reason == "the environment failed"


def test_what_a_judge_raises_is_the_reason_and_keeps_the_other_parts():
    mixed = MixedReward(OneByOne(), functions=functions(lambda text: 1.0))
    (group,) = graded_groups(mixed, [Group(prompt=prompt(), rollouts=(answer("boom"),))])
    score = group.rollouts[0].score
    assert score.value is None
    assert "reward_model: " in score.reason and "KeyError: 'boom'" in score.reason
    assert score.parts == {"lambda": 1.0}


def test_the_model_sees_what_the_chat_template_wrote_into_the_answer():
    grader = Lengths()
    thinking = replace(prompt(), text="<user>q<eos><assistant><think>")
    graded_groups(MixedReward(grader, prefill="<think>"), [Group(prompt=thinking, rollouts=(answer("4", thinking),))])
    assert grader.asked == [["<think>4"]]


def test_collect_gives_final_scores():
    sampler = NativeSampler(tiny_model(), eos_ids=[257])
    mixed = MixedReward(reward(), functions=functions(lambda text: 1.0), weight=2.0)
    work = collect(
        [prompt("a", 0), prompt("bb", 1)],
        n=3,
        environment=SingleTurn(TOKENIZER),
        sampler=sampler,
        sampling=Sampling(max_tokens=6),
        reward=mixed,
        seed=1,
        step=1,
    )
    groups = asyncio.run(work)
    scores = [r.score for g in groups for r in g.rollouts]
    assert all(s.value == pytest.approx(1 + 2 * s.parts["reward_model"]) for s in scores)
    assert len({s.value for s in scores}) > 1
    alone = [grade(reward(), [r])[0].value for g in groups for r in g.rollouts]
    assert [s.parts["reward_model"] for s in scores] == pytest.approx(alone, abs=1e-6)
