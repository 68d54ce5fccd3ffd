import functools
import math

import numpy as np
import pytest
import torch

from cohort.errors import UserError
from cohort.rewards.base import Call, Graded, RewardFunction, as_reward_function, grade, graded, parameters
from cohort.rewards.check import check_rewards
from cohort.rewards.runner import call_values, combine
from cohort.rewards.unscorable import UnscorableRate, check_unscorable
from cohort.types import Author, FinishReason, Prompt, Rollout, Score, Segment


@pytest.mark.parametrize(
    "result", [1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True), torch.tensor(1.0), (1.0, "x", 3)]
)
def test_numbers_of_every_kind(result):
    assert graded(result) == Graded(1.0)


def test_a_dict_s_entries_are_parts():
    outcome = graded({"score": 0.5, "acc": True, "pred": "18", "boxes": [1, 2], "nothing": None, "n": np.int64(3)})
    assert outcome.value == 0.5
    assert outcome.parts == {"score": 0.5, "acc": 1.0, "pred": "18", "boxes": "[1, 2]", "n": 3.0}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "the reward returned None"),
        (math.nan, "the reward returned nan"),
        (-math.inf, "the reward returned -inf"),
        ("1.0", "the reward returned '1.0' (str)"),
        ([1.0], "the reward returned [1.0] (list)"),
        ((), "the reward returned () (tuple)"),
        ({"acc": 1}, "a dict without `score`; it has: acc"),
        ({"score": None}, "the reward returned None"),
        ({"score": None, "reason": "judge was down"}, "judge was down"),
        ({"score": math.nan, "acc": 1}, "the reward returned nan"),
        (np.zeros(3), "the reward returned ndarray that is not one number"),
        (torch.zeros(3), "the reward returned Tensor that is not one number"),
    ],
)
def test_everything_else_is_unscorable_with_a_reason_and_never_zero(result, reason):
    outcome = graded(result)
    assert outcome.value is None
    assert reason in outcome.reason


def test_what_a_function_raises_is_the_reason_with_its_own_frames_alone():
    def inner(text):
        return {}[text]

    def reward(text):
        return inner(text)

    outcome = grade(Call("r", reward, {}, frozenset({"text"})), {"text": "key"})
    assert outcome.value is None
    assert "KeyError: 'key'" in outcome.reason
    assert "in reward" in outcome.reason
    assert "in inner" in outcome.reason
    assert "in grade" not in outcome.reason
    assert grade(Call("r", exit, {}, frozenset()), {}).reason.endswith("SystemExit: None")


def test_parameters_are_found_in_every_kind_of_callable():
    def named(solution_str, ground_truth=None, *, question, **rest): ...

    class Judge:
        def __call__(self, text, level=1): ...

    assert parameters(as_reward_function(named)) == (("solution_str", "question"), ("ground_truth",), True)
    assert parameters(as_reward_function(lambda text, gold: 0)).wanted() == {"text", "gold"}
    assert parameters(as_reward_function(Judge())) == (("text",), ("level",), False)
    assert parameters(as_reward_function(functools.partial(named, question=1))).required == ("solution_str",)
    assert [as_reward_function(f).name for f in (named, lambda: 0, Judge())] == ["named", "lambda", "Judge"]


def test_settings_fill_parameters_or_are_refused():
    def reward(text, strict, level=1): ...

    filled = RewardFunction(function=reward, name="reward", kwargs={"strict": True})
    assert parameters(filled).required == ("text",)
    with pytest.raises(
        UserError, match="reward `reward` takes no `strct` .reward_kwargs.; it takes: text, strict, level"
    ):
        parameters(RewardFunction(function=reward, name="reward", kwargs={"strct": True}))
    with pytest.raises(UserError, match="parameter `x` is positional-only"):
        parameters(as_reward_function(lambda x, /: 0))
    with pytest.raises(UserError, match="must be a function, not int"):
        as_reward_function(3)  # pyright: ignore[reportArgumentType]


def prompt(row=0, **columns):
    return Prompt(
        row=row, ids=(1, 2), text="<user>hi<assistant>", messages=({"role": "user", "content": "hi"},), **columns
    )


def rollout(text="answer", **columns):
    written = Segment(ids=(7, 8), author=Author.MODEL, log_probs=(0.0, 0.0), policy_versions=(0, 0))
    return Rollout(
        prompt=prompt(ground_truth="gold", columns={"prompt": "hi", **columns}),
        sample=0,
        segments=(written,),
        finish_reason=FinishReason.STOP,
        text=text,
    )


def test_a_reward_can_ask_for_all_of_this():
    values = call_values(rollout(extra_info={"index": 3}, difficulty=2))
    assert values["solution_str"] == values["text"] == "answer"
    assert (values["prompt"], values["prompt_text"]) == ("hi", "<user>hi<assistant>")
    assert values["messages"] == [{"role": "user", "content": "hi"}]
    assert (values["ground_truth"], values["data_source"], values["difficulty"]) == ("gold", "unknown", 2)
    assert values["extra_info"] == {"index": 3, "num_turns": 2}
    assert (values["ids"], values["turns"], values["finish_reason"]) == ([7, 8], 2, "stop")
    assert values["columns"] == {"prompt": "hi", "extra_info": {"index": 3}, "difficulty": 2}
    assert call_values(rollout())["extra_info"] == {"num_turns": 2}


def test_a_column_never_replaces_the_answer():
    assert call_values(rollout(text="mine", solution_str="theirs", ids="x"))["solution_str"] == "mine"


def test_the_prefill_is_put_before_the_answer_where_the_prompt_ends_with_it():
    seen = call_values(rollout(text="hm</think>4"), "<assistant>")
    assert seen["solution_str"] == seen["text"] == "<assistant>hm</think>4"
    assert call_values(rollout(text="4"), "<think>")["text"] == "4"


def test_weights_and_parts():
    functions = [
        RewardFunction(function=len, name="right", weight=1.0),
        RewardFunction(function=len, name="form", weight=0.25),
        RewardFunction(function=len, name="watch", weight=0.0),
    ]
    outcomes = [Graded(1.0, {"score": 1.0, "pred": "4"}), Graded(2.0), Graded(9.0)]
    score = combine(functions, outcomes, seconds=0.5)
    assert score == Score(value=1.5, parts={"right/pred": "4", "right": 1.0, "form": 2.0, "watch": 9.0}, seconds=0.5)
    broken = combine(functions, [outcomes[0], Graded(None, reason="boom"), outcomes[2]])
    assert broken.value is None
    assert broken.reason == "form: boom"
    assert broken.parts["right"] == 1.0
    assert combine(functions[1:2], [Graded(2.0, {"score": 2.0, "acc": 1.0})]) == Score(
        value=0.5, parts={"score": 2.0, "acc": 1.0}
    )


def test_what_nobody_provides_is_said_before_the_start():
    data = [prompt(0, columns={"question": 1, "gold": 2}), prompt(1, columns={"question": 1})]

    def check(function, **options):
        check_rewards([as_reward_function(function)], data, **options)

    check(lambda text, ground_truth, question, answer=None: 0)
    check(lambda **everything: 0)
    with pytest.raises(UserError, match="reward `lambda` needs `answer`; your data has: question, gold"):
        check(lambda answer: 0)
    with pytest.raises(UserError, match="needs `gold`, which 1 of 2 rows lack, first row 2"):
        check(lambda gold: 0)

    async def judge(sampler): ...

    check(judge, live=["sampler"])
    with pytest.raises(UserError, match="only an `async def` reward can have it"):
        check(lambda sampler: 0, live=["sampler"])
    with pytest.raises(UserError, match="needs `sampler`"):
        check(judge)


def test_too_many_unscorable_answers_stop_the_run_with_the_traceback():
    good, bad = Score(value=0.0), Score(value=None, reason="Traceback ...\nKeyError: 'x'")
    check_unscorable([], 0.1)
    check_unscorable([good] * 9 + [bad], 0.1)
    with pytest.raises(UnscorableRate) as caught:
        check_unscorable([good] * 7 + [bad, bad, None], 0.1)
    assert "could not grade 3 of 10 answers" in str(caught.value)
    assert "2 different reasons, this one 2 times" in str(caught.value)
    assert str(caught.value).endswith("KeyError: 'x'")
