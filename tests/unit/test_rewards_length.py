"""Rewards for length, repetition and form, and rewards that say that they do not apply."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.errors import UserError
from cohort.rewards import format as form
from cohort.rewards.base import Call, Graded, RewardFunction, grade, graded, parameters
from cohort.rewards.check import check_rewards
from cohort.rewards.length import cosine_length, overlong, repetition
from cohort.rewards.registry import REWARDS, built_in
from cohort.rewards.runner import RewardRunner, call_values, combine
from cohort.types import Author, FinishReason, Prompt, Rollout, Score, Segment

# --- overlong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "score"), [(0, 0), (80, 0), (81, -0.05), (90, -0.5), (100, -1), (120, -1), (9000, -1)]
)
def test_golden_overlong(length, score):
    """ms-swift's numbers; it gives -2 at 120, DAPO's paper -1."""
    found = overlong(length, max_response_length=100, buffer=20)
    assert found == {"score": pytest.approx(score), "overlong": float(length > 80)}
    assert overlong(length, 100, 20, penalty=0.3)["score"] == pytest.approx(0.3 * score)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 300), st.floats(0, 5))
def test_overlong_never_rises_and_has_a_floor(shorter, more, buffer, penalty):
    scores = [overlong(length, 300, buffer, penalty)["score"] for length in (shorter, shorter + more)]
    assert -penalty <= scores[1] <= scores[0] <= 0


def test_one_reward_under_two_names():
    assert built_in("soft_overlong").function is built_in("overlong").function is overlong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(buffer=0), "buffer must be within 1 and max_response_length=10, got 0"),
        (dict(buffer=11), "got 11"),
        (dict(buffer=2, penalty=-1.0), "must not be negative"),
    ],
)
def test_impossible_overlong(options, message):
    with pytest.raises(ValueError, match=message):
        overlong(5, 10, **options)


# --- cosine -------------------------------------------------------------------------------------------


def cosine(length: int, right: bool, **options) -> float:
    found = cosine_length(length, 100, "x", "4" if right else "5", "4", correctness="exact_match", **options)
    assert found is not None
    assert found["correct"] == float(right)
    return found["score"]


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [(0, 1.0, -0.5), (25, 0.92678, -0.42678), (50, 0.75, -0.25), (100, 0.5, 0.0), (150, 0.5, 0.0)],
)
def test_golden_cosine(length, right, wrong):
    """ms-swift's numbers; beyond the limit its cosine turns around (0.75 and -0.25 at 150)."""
    assert cosine(length, True) == pytest.approx(right, abs=5e-6)
    assert cosine(length, False) == pytest.approx(wrong, abs=5e-6)


@given(st.integers(0, 300), st.integers(0, 300), st.floats(-2, 2), st.floats(-2, 2))
def test_cosine_goes_one_way_between_its_values(length, more, short, long):
    values = dict(min_len_value_correct=short, max_len_value_correct=long)
    first, second = cosine(length, True, **values), cosine(length + more, True, **values)
    assert min(short, long) - 1e-9 <= first <= max(short, long) + 1e-9
    assert (second - first) * (long - short) >= -1e-9


def test_what_is_right_is_said_by_the_data_source_a_name_or_a_file(tmp_path):
    assert cosine_length(0, 10, "openai/gsm8k", "#### 18", "18") == {"score": 1.0, "correct": 1.0}
    assert cosine_length(0, 10, "openai/gsm8k", "18", "18", correctness="gsm8k_flexible") == {"score": 1, "correct": 1}
    assert cosine_length(10, 10, "openai/gsm8k", "18", "18") == {"score": 0.0, "correct": 0.0}
    (tmp_path / "mine.py").write_text("def near(text, ground_truth): return {'score': 0.6 if text else None}")
    mine = f"{tmp_path / 'mine.py'}:near"
    assert cosine_length(0, 10, "x", "a", "b", correctness=mine) == {"score": -0.5, "correct": 0.0}
    assert cosine_length(0, 10, "x", "a", "b", correctness=mine, correct_from=0.5) == {"score": 1.0, "correct": 1.0}
    assert cosine_length(0, 10, "x", "", "b", correctness=mine) is None


def test_cosine_without_a_way_to_grade(tmp_path):
    with pytest.raises(UserError, match="no built-in reward for data_source made/up"):
        cosine_length(0, 10, "made/up", "", "")
    with pytest.raises(UserError, match="there is no reward 'maths'"):
        cosine_length(0, 10, "x", "", "", correctness="maths")
    with pytest.raises(ValueError, match="no ground_truth"):
        cosine_length(0, 10, "x", "", None, correctness="exact_match")
    with pytest.raises(ValueError, match="must be above 0"):
        cosine_length(0, 0, "x", "", "", correctness="exact_match")
    (tmp_path / "judge.py").write_text("async def judge(text): return 1")
    with pytest.raises(ValueError, match="an async function cannot be asked"):
        cosine_length(0, 10, "x", "", "", correctness=f"{tmp_path / 'judge.py'}:judge")


# --- repetition and form ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("a b c a b c a b c", -0.57143),
        ("A b c\na B c  a b C", -0.57143),
        ("one two three four", 0),
        ("a b", 0),
        ("", 0),
        ("no no no no", -0.5),
    ],
)
def test_golden_repetition(text, score):
    assert repetition(text) == pytest.approx(score, abs=5e-6)
    assert repetition(text, max_penalty=-2.0) == pytest.approx(2 * score, abs=1e-5)


@given(st.lists(st.sampled_from("abcd"), max_size=20), st.integers(1, 4))
def test_repetition_against_a_loop(words, n):
    grams = [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
    repeated = sum(gram in grams[:i] for i, gram in enumerate(grams))
    expected = -repeated / len(grams) if grams else 0
    assert repetition(" ".join(words), n_grams=n) == pytest.approx(expected)


@pytest.mark.parametrize("options", [dict(n_grams=0), dict(max_penalty=0.5)])
def test_impossible_repetition(options):
    with pytest.raises(ValueError, match="must be"):
        repetition("a", **options)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a\nb</think>\n<answer>4</answer>", 1.0),
        ("<think></think><answer></answer>", 1.0),
        ("<think>a</think><answer>4</answer>\n", 0.0),
        (" <think>a</think><answer>4</answer>", 0.0),
        ("<think>a</think> so <answer>4</answer>", 0.0),
        ("<think>a</think><answer>4</answer> or <answer>5</answer>", 1.0),
        ("<answer>4</answer>", 0.0),
    ],
)
def test_think_answer_is_ms_swift_s_format(text, score):
    assert form.think_answer(text) == score
    assert built_in("think_answer_format").function is form.think_answer


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a</think> Action: search\nAction Input: x\nmore", 1.0),
        ("<think>a</think>Action: search", 0.0),
        ("Action: search\nAction Input: x", 0.0),
    ],
)
def test_react(text, score):
    assert form.react(text) == score


# --- as one of several -----------------------------------------------------------------------------------


def rollout(*, model: int = 3, tool: int = 4, text: str = "4", ground_truth: object = "4") -> Rollout:
    """Two turns of the model with a tool's answer between them."""
    prompt = Prompt(row=0, ids=(1,), text="?", data_source="openai/gsm8k", ground_truth=ground_truth)
    turn = Segment(ids=(5,) * model, author=Author.MODEL, log_probs=(-1.0,) * model, policy_versions=(0,) * model)
    answer = Segment(ids=(6,) * tool, author=Author.ENVIRONMENT)
    return Rollout(
        prompt=prompt, sample=0, segments=(turn, answer, turn), finish_reason=FinishReason.STOP, text=text, turns=4
    )


def test_a_length_is_what_the_model_wrote_over_all_turns():
    values = call_values(rollout(model=3, tool=4))
    assert values["response_length"] == 6
    assert values["ids"] == [5, 5, 5, 6, 6, 6, 6, 5, 5, 5]
    function = built_in("overlong", {"buffer": 4}, of_run={"max_response_length": 8, "seed": 1})
    assert function.kwargs == {"max_response_length": 8, "buffer": 4}
    call = Call(function.name, function.function, function.kwargs, parameters(function).wanted())
    assert grade(call, values).value == -0.5
    assert built_in("overlong", {"max_response_length": 5}, of_run={"max_response_length": 8}).kwargs == {
        "max_response_length": 5
    }


def test_a_missing_setting_is_said_before_the_start():
    with pytest.raises(UserError, match="reward `overlong` needs `max_response_length`"):
        check_rewards([built_in("overlong", {"buffer": 4})], [rollout().prompt])
    for name in ("overlong", "cosine_length"):
        kwargs = {"buffer": 4} if name == "overlong" else {}
        check_rewards([built_in(name, kwargs, of_run={"max_response_length": 8})], [rollout().prompt])


@pytest.mark.parametrize("name", REWARDS)
def test_built_in_rewards_import_no_torch_of_their_own(name):
    assert callable(built_in(name, {"sandbox": "unsafe"} if name == "code" else None).function)
    assert "torch" not in vars(__import__(REWARDS[name].partition(":")[0], fromlist=["x"]))


def test_length_rewards_stand_beside_correctness():
    import asyncio

    functions = [
        built_in("gsm8k"),
        built_in("cosine_length", weight=0.5, of_run={"max_response_length": 6}),
        built_in("overlong", {"buffer": 4, "penalty": 2.0}, of_run={"max_response_length": 8}),
        built_in("repetition", weight=0.1),
    ]
    runner = RewardRunner(functions, num_workers=0, timeout=None, say=lambda line: None)
    score = asyncio.run(runner.score(rollout(text="no no no no #### 4")))
    assert score.value == pytest.approx(1 + 0.5 * 0.5 - 1.0 + 0.1 * -0.25)
    assert score.parts["overlong/overlong"] == 1.0
    assert score.parts["cosine_length/correct"] == 1.0
    ungraded = asyncio.run(runner.score(rollout(ground_truth=None)))
    assert ungraded.value is None
    assert "no ground_truth" in ungraded.reason


@pytest.mark.parametrize("says", [False, 0, None])
def test_a_reward_may_not_apply(says):
    outcome = graded({"applies": says, "why": "no code"})
    if says is None:  # nothing said
        assert outcome.reason == "the reward returned a dict without `score`; it has: applies, why"
        return
    assert outcome == Graded(None, {"why": "no code"}, "the reward does not apply to this row", applies=False)
    assert graded({"score": 0.5, "applies": True}) == Graded(0.5, {"score": 0.5})


def test_what_does_not_apply_is_left_out_of_the_sum():
    functions = [
        RewardFunction(function=repetition, name=name, weight=weight) for name, weight in (("a", 1.0), ("b", 0.5))
    ]
    absent = graded({"applies": False, "score": math.nan})
    assert combine(functions, [Graded(2.0), absent]) == Score(value=2.0, parts={"a": 2.0})
    assert combine(functions, [Graded(2.0), Graded(None, reason="boom")]).value is None
    nobody = combine(functions, [absent, absent])
    assert nobody.value is None
    assert nobody.reason == "no reward applies to this row"
    assert combine(functions[:1], [absent]).reason == "the reward does not apply to this row"
