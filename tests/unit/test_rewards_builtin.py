import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cohort.data.files import load_rows
from cohort.data.tasks.gsm8k import row
from cohort.errors import UserError
from cohort.rewards import exact_match, gsm8k
from cohort.rewards import format as form
from cohort.rewards.base import as_reward_function, grade
from cohort.rewards.registry import DATA_SOURCES, REWARDS, built_in, by_data_source, register_reward

SAMPLE = Path(__file__).parents[1] / "data" / "gsm8k_sample"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so #### 1,234", "1234"),
        ("####18", None),
        ("#### $18", None),
        ("#### 18.", "18."),
        ("####  18", None),
        ("#### 1\nno, #### 2", "2"),
        ("#### -3.5 apples", "-3.5"),
        ("18", None),
        ("#### 18" + "x" * 300, None),
        ("#### 18" + "x" * 293, "18"),
    ],
)
def test_strict_extraction(text, answer):
    assert gsm8k.extract(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 3 and 18.", "18."),
        ("1,234 then .", "1,234"),
        ("-7", "-7"),
        ("none", None),
        (". .", None),
        ("a 5 b . c", "5"),
    ],
)
def test_flexible_extraction(text, answer):
    assert gsm8k.extract(text, "flexible") == answer


def test_gsm8k_scores():
    assert gsm8k.compute_score("#### 18", "18") == 1.0
    assert gsm8k.compute_score("#### 18", 18) == 1.0
    assert gsm8k.compute_score("#### 18.", "18") == 0.0
    assert gsm8k.compute_score("#### 19", "18", format_score=0.1) == 0.1
    assert gsm8k.compute_score("19", "18", format_score=0.1) == 0.0
    assert gsm8k.flexible("it is 18", "18") == 1.0
    with pytest.raises(ValueError, match="no ground_truth"):
        gsm8k.compute_score("#### 18", None)
    with pytest.raises(ValueError, match="strict or flexible"):
        gsm8k.extract("x", "loose")


def test_every_gsm8k_solution_scores_one_by_its_own_key():
    for i, problem in enumerate(load_rows([SAMPLE / "train.jsonl", SAMPLE / "test.jsonl"])):
        key = row(problem, "train", i)["reward_model"]["ground_truth"]
        assert gsm8k.compute_score(problem["answer"], key) == 1.0


@pytest.mark.parametrize(
    ("key", "text", "score"),
    [
        ("1/2", r"so \boxed{0.5}", 1.0),
        (r"\frac{1}{2}", r"the answer is $\frac{2}{4}$", 1.0),
        ("12", "it is 12", 1.0),
        ("12", "it is 13", 0.0),
        ("x^2+1", "$1+x^2$", 1.0),
        ("1,234", r"\boxed{1234}", 1.0),
        ("(1,2)", r"\boxed{(1, 2)}", 1.0),
        ("(1,2)", r"\boxed{(2, 1)}", 0.0),
        ("5", "", 0.0),
    ],
)
def test_math(key, text, score):
    from cohort.rewards import math

    assert math.compute_score(text, key) == score


def test_math_works_outside_the_main_thread_and_without_a_key_has_no_score(caplog):
    from cohort.rewards import math

    results = []
    thread = threading.Thread(target=lambda: results.append(math.compute_score(r"\boxed{4}", "4")))
    thread.start()
    thread.join()
    assert results == [1.0]
    assert "Timeout is disabled" not in caplog.text
    with pytest.raises(ValueError, match="no ground_truth"):
        math.compute_score("4", None)
    with pytest.raises(ValueError, match="cannot read the ground_truth"):
        math.compute_score("4", "")


@pytest.mark.parametrize(
    ("text", "tags", "score"),
    [
        ("<think>a\nb</think> 4", ("think",), 1.0),
        ("<think>a</think>", ("think",), 0.0),
        ("a</think> 4", ("think",), 0.0),
        ("well <think>a</think> 4", ("think",), 0.0),
        ("<think>a</think><think>b</think> 4", ("think",), 0.0),
        ("<think>a</think>\n<answer>4</answer>\n", ("think", "answer"), 1.0),
        ("<think>a</think><answer>4</answer> done", ("think", "answer"), 0.0),
        ("<answer>4</answer><think>a</think>", ("think", "answer"), 0.0),
        ("<answer>4</answer>", "answer", 1.0),
    ],
)
def test_format_by_tags(text, tags, score):
    assert form.compute_score(text, tags) == score


def test_format_by_pattern_and_exact_match():
    assert form.compute_score("a\n#### 4", pattern=r".*#### -?\d+") == 1.0
    assert form.compute_score("#### 4 apples", pattern=r".*#### -?\d+") == 0.0
    assert exact_match.compute_score(" Paris\n", "Paris") == 1.0
    assert exact_match.compute_score("paris", "Paris") == 0.0
    assert exact_match.compute_score("paris", ["Rome", "Paris"], ignore_case=True) == 1.0


def test_rows_go_to_the_reward_of_their_source():
    function = by_data_source({"openai/gsm8k", "HuggingFaceH4/MATH-500"}).function
    assert function("openai/gsm8k", "#### 4", "4", {}) == 1.0
    assert function("openai/gsm8k", r"\boxed{4}", "4", {}) == 0.0
    assert function("HuggingFaceH4/MATH-500", r"\boxed{4}", "4", {}) == 1.0


def test_unknown_sources_and_names_are_said_with_the_way_out():
    with pytest.raises(UserError) as caught:
        by_data_source(["openai/gsm8k", "mine/a", "mine/b"])
    assert "no built-in reward for data_source mine/a, mine/b" in str(caught.value)
    assert "custom_reward_function.path=FILE.py" in str(caught.value)
    with pytest.raises(UserError, match="the data has no data_source"):
        by_data_source(["unknown"])
    with pytest.raises(UserError, match=r"no reward 'gsm9k'; built in are .*; did you mean gsm8k\?"):
        built_in("gsm9k")


def test_a_registered_reward_is_found_by_name_and_by_source(monkeypatch):
    monkeypatch.setattr("cohort.rewards.registry.REWARDS", dict(REWARDS))
    monkeypatch.setattr("cohort.rewards.registry.DATA_SOURCES", dict(DATA_SOURCES))
    register_reward("loose", "cohort.rewards.gsm8k:flexible", data_sources=["mine/a", "theirs/*"])
    assert built_in("loose", {"format_score": 0.1}, weight=2).weight == 2
    function = by_data_source(["mine/a", "theirs/x"]).function
    assert function("mine/a", "4", "4", {}) == function("theirs/x", "4", "4", {}) == 1.0


def test_a_row_without_a_key_is_unscorable_not_zero():
    from cohort.rewards.base import Call

    outcome = grade(
        Call("gsm8k", as_reward_function(gsm8k.flexible).function, {}, None),
        {"solution_str": "4", "ground_truth": None},
    )
    assert outcome.value is None
    assert "no ground_truth" in outcome.reason


def test_grading_imports_no_torch():
    code = (
        "import sys; from cohort.rewards import base, custom, registry, worker\n"
        "registry.by_data_source(['openai/gsm8k', 'HuggingFaceH4/MATH-500'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SAMPLE.parents[2])
