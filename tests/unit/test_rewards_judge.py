"""The judge: what it is asked, how its number is read, and that it judges the same again."""

import asyncio
from dataclasses import replace

import pytest

from cohort.errors import UserError
from cohort.protocols import Completion, Sampling, SeedKey
from cohort.rewards.judge import NAMES, TEMPLATE, Judge
from cohort.rollout.native import NativeSampler
from cohort.types import FinishReason, Rollout
from tests.tiny import byte_tokenizer, tiny_model
from tests.unit.test_rewards_model import answer, prompt

TOKENIZER = byte_tokenizer()


class Writes:
    """A sampler that writes these texts in turn and keeps the requests."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.requests = []

    async def complete(self, request):
        text = self.texts[len(self.requests) % len(self.texts)]
        self.requests.append(request)
        ids = tuple(TOKENIZER(text)["input_ids"])
        zeros = (0.0,) * len(ids), (0,) * len(ids)
        return Completion(ids=ids, log_probs=zeros[0], policy_versions=zeros[1], finish_reason=FinishReason.STOP)

    def load(self, weights, version): ...


def judge(sampler, **options) -> Judge:
    def render(messages):
        return TOKENIZER.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]

    def decode(ids):
        return TOKENIZER.decode(ids, skip_special_tokens=True)

    settings = {"sampling": Sampling(max_tokens=16), **options}
    return Judge(lambda: sampler, render=render, decode=decode, **settings)


def grade(asked: Judge, *rollouts: Rollout):
    return asyncio.run(asked.grade(rollouts))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It is right.\nScore: 7", 0.7),
        ("Score: 3 at first, then Score: 10", 1.0),
        ("Score: 2.5/10", 0.25),
        ("Score: 0", 0.0),
        ("Score: 11", None),
        ("Score: -1", None),
        ("a good answer", None),
        ("Score: many", None),
    ],
)
def test_the_number_is_read_from_the_last_match(text, value):
    (graded,) = grade(judge(Writes(text)), answer("five"))
    assert graded.value == (None if value is None else pytest.approx(value))
    if value is None:
        assert graded.reason.endswith(f"the judge wrote:\n{text}")
        assert graded.parts == {"unparsed": 1.0, "said": text}
    else:
        assert graded.parts == {"unparsed": 0.0, "said": text}


def test_judgements_are_averaged_and_the_unparsed_count_nowhere():
    sampler = Writes("Score: 4", "who knows", "Score: 8", "Score: 99")
    (graded,) = grade(judge(sampler, n=4, scale=10.0, shift=-1.0), answer("five"))
    assert graded.value == pytest.approx(10 * 0.6 - 1)
    assert graded.parts["unparsed"] == 0.5
    assert len(sampler.requests) == 4


def test_another_pattern_and_range():
    (graded,) = grade(judge(Writes("[[2]]"), pattern=r"\[\[(\d)\]\]", worst=5.0, best=1.0), answer("five"))
    assert graded.value == pytest.approx(0.75)
    (graded,) = grade(judge(Writes("verdict: A"), pattern="verdict: (.)"), answer("five"))
    assert "'A' is no number" in graded.reason


def test_the_template_is_filled_once():
    sampler = Writes("Score: 1")
    asked = judge(sampler, template='Q {question} T {ground_truth} L {level} J {"a": 1} \\boxed{5} A {answer} {worst}')
    said = replace(prompt("2+3?"), ground_truth=5, columns={"level": "easy", "answer": "the column"})
    grade(asked, answer("five {ground_truth} {question}", said))
    text = TOKENIZER.decode(sampler.requests[0].ids)
    expected = 'Q 2+3? T 5 L easy J {"a": 1} \\boxed{5} A five {ground_truth} {question} 0'
    assert text == f"<user>{expected}<eos><assistant>"


def test_a_conversation_is_one_text():
    told = replace(prompt(), messages=({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}))
    several = replace(prompt(), messages=(*told.messages, {"role": "assistant", "content": "yes?"}, *told.messages[1:]))
    asked = judge(Writes("Score: 1"), template="{question}|{answer}")
    assert asked.fill(answer("a", told)) == "hi|a"
    assert asked.fill(answer("a", several)) == "System: be brief\n\nUser: hi\n\nAssistant: yes?\n\nUser: hi|a"


def test_the_template_that_comes_with_it_is_whole():
    text = judge(Writes("")).fill(answer("five", replace(prompt(), ground_truth="5")))
    assert all(f"{{{name}}}" in TEMPLATE for name in NAMES)
    assert "{" not in text
    assert "from 0 (useless) to 10 (perfect)" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"template": "{question}"}, "no {answer} in it"),
        ({"template": "{answer} {ground_thruth}"}, "did you mean {ground_truth}"),
        ({"pattern": "Score: 5"}, "put the number in brackets"),
        ({"pattern": "("}, "not a regular expression"),
    ],
)
def test_templates_and_patterns_that_cannot_be_meant(options, says):
    with pytest.raises(UserError) as caught:
        judge(Writes(""), **options)
    assert says in str(caught.value)


def test_a_prompt_that_is_too_long_is_unscorable_and_never_cut():
    sampler = Writes("Score: 1")
    (graded,) = grade(judge(sampler, max_length=20), answer("five"))
    assert graded.value is None
    assert "max_length=20" in graded.reason
    assert not sampler.requests

    real = NativeSampler(tiny_model(), eos_ids=[257], max_model_len=30)
    (graded,) = grade(judge(real), answer("five"))
    assert "leaves no room in its model" in graded.reason


def digits(**options) -> Judge:
    """A random model that judges: any digit that it writes."""
    sampler = NativeSampler(tiny_model(scale=1.0), eos_ids=[257])
    settings = {"template": "{answer}", "pattern": r"(\d)", "worst": 0.0, "best": 9.0, "n": 3}
    return judge(sampler, **{**settings, "sampling": Sampling(max_tokens=50), **options})


def test_draws_are_named_by_seed_step_prompt_and_sample():
    def drawn(name: str, **changes):
        key = SeedKey(**{"seed": 5, "step": 2, "prompt": 3, "sample": 1, **changes})
        (graded,) = grade(digits(name=name), replace(answer("five"), key=key))
        return graded.value, graded.parts["said"]

    first = drawn("a")
    assert first == drawn("a")
    others = [drawn("a", **{name: 9}) for name in ("seed", "step", "prompt", "sample")] + [drawn("b")]
    assert len({said for _, said in [first, *others]}) == 6


def test_judging_does_not_depend_on_company():
    rollouts = [replace(answer("five" * i), key=SeedKey(seed=1, step=1, prompt=0, sample=i)) for i in range(1, 5)]
    together = grade(digits(), *rollouts)
    alone = [grade(digits(), rollout)[0] for rollout in rollouts]
    assert together == alone


def test_the_judges_draws_are_not_the_policys():
    key = SeedKey(seed=1, step=1, prompt=0, sample=2)
    keys = digits().keys(replace(answer("x"), key=key))
    assert [k.sample for k in keys] == [6, 7, 8]
    assert all(k.seed != key.seed and (k.step, k.prompt) == (1, 0) for k in keys)
