import json
import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest

from cohort.data.tasks import arithmetic
from cohort.errors import UserError
from cohort.rewards.arithmetic import compute_score, extract

PINNED_TRAIN = [(64, 87), (74, 81), (78, 20)]
PINNED_TEST = [(64, 43), (65, 35), (96, 24)]


def operands(row):
    a, b = row["prompt"][0]["content"].removesuffix("=").split("+")
    return int(a), int(b)


def pairs(split, size, seed, **kwargs):
    return [operands(row) for row in arithmetic.rows(split, size, seed, **kwargs)]


def test_rows_have_verls_schema_and_the_right_answer():
    for row in arithmetic.rows("train", 50, 3):
        a, b = operands(row)
        assert row["data_source"] == "cohort/arithmetic"
        assert row["prompt"] == [{"role": "user", "content": f"{a}+{b}="}]
        assert row["ability"] == "math"
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(a + b)}
        assert row["extra_info"]["split"] == "train"
    assert json.loads(json.dumps(row)) == row


def test_rows_are_a_pure_function_of_the_seed_and_prefixes_agree():
    assert arithmetic.rows("train", 200, 1) == arithmetic.rows("train", 200, 1)
    assert arithmetic.rows("train", 300, 1)[:200] == arithmetic.rows("train", 200, 1)
    assert pairs("train", 200, 1) != pairs("train", 200, 2)


def test_the_draw_is_pinned():
    """The starter model's cache and the expected curve rest on it, on every platform and Python version."""
    assert pairs("train", 3, 1) == PINNED_TRAIN
    assert pairs("test", 3, 1) == PINNED_TEST


@pytest.mark.parametrize("digits", [1, 2, 3, 5])
def test_splits_share_no_problem_not_even_commuted(digits):
    size = 12 if digits == 1 else 300
    seen = {
        split: {tuple(sorted(pair)) for seed in (1, 2, 3) for pair in pairs(split, size, seed, digits=digits)}
        for split in arithmetic.SHARES
    }
    assert not seen["train"] & seen["test"]
    assert not seen["starter"] & seen["test"]
    assert not seen["starter"] & seen["train"]


def test_a_problem_and_its_commutation_are_in_one_split():
    for a in range(100, 1000, 7):
        for b in range(100, 1000, 97):
            assert arithmetic.split_of(a, b) == arithmetic.split_of(b, a)


def test_shares_are_what_they_say():
    counts = Counter(arithmetic.split_of(a, b) for a in range(100, 400) for b in range(a, 400))
    total = counts.total()
    for name, share in arithmetic.SHARES.items():
        assert abs(counts[name] / total - share / 100) < 0.01


def test_rows_are_different_problems():
    drawn = pairs("test", 2000, 5, digits=3)
    assert len(set(drawn)) == 2000
    assert all(100 <= number <= 999 for pair in drawn for number in pair)


def test_a_split_can_be_drawn_to_its_last_problem():
    splits = {split: pairs(split, arithmetic.available(split, 2), 1) for split in arithmetic.SHARES}
    assert sorted(pair for drawn in splits.values() for pair in drawn) == [
        (a, b) for a in range(10, 100) for b in range(10, 100)
    ]


def test_the_starter_learns_from_its_own_split_alone():
    for batch in islice(arithmetic.demonstrations(0, 64, worked=0.5), 5):
        for question, answer in batch:
            a, b = map(int, question.removesuffix("=").split("+"))
            assert arithmetic.split_of(a, b) == "starter"
            assert compute_score("", answer, str(a + b))["score"] == 1.0


@pytest.mark.parametrize("worked", [0.0, 0.3, 1.0])
def test_demonstrations_come_in_two_styles(worked):
    answers = [answer for batch in islice(arithmetic.demonstrations(0, 100, worked=worked), 20) for _, answer in batch]
    assert sum(not answer.startswith("####") for answer in answers) / len(answers) == pytest.approx(worked, abs=0.04)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (347, 285, "7+5=12 4+8+1=13 3+2+1=6 #### 632"),
        (123, 456, "3+6=9 2+5=7 1+4=5 #### 579"),
        (999, 999, "9+9=18 9+9+1=19 9+9+1=19 #### 1998"),
        (100, 900, "0+0=0 0+0=0 1+9=10 #### 1000"),
        (5, 97, "5+7=12 9+1=10 #### 102"),
    ],
)
def test_worked_answers(a, b, text):
    assert arithmetic.worked_answer(a, b) == text


@pytest.mark.parametrize(
    ("split", "size", "kwargs", "message"),
    [
        ("tset", 5, {}, "no split 'tset'; there are test, train, starter"),
        ("train", 0, {}, "size=0 is out of range"),
        ("test", -1, {}, "size=-1 is out of range"),
        ("test", 10**6, {"digits": 3}, "split test of 3 digits gives 1 to 40500"),
        ("test", 806, {}, "split test of 2 digits gives 1 to 805"),
        ("test", 5, {"digits": 0}, "digits=0 is out of range; give 1 to 9"),
    ],
)
def test_bad_requests_are_said_in_one_line(split, size, kwargs, message):
    with pytest.raises(UserError, match=message) as caught:
        arithmetic.rows(split, size, 1, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7+5=12 4+8+1=13 3+2+1=6 #### 632", "632"),
        ("#### 632", "632"),
        ("#### 0", "0"),
        ("632", None),
        ("####632", None),
        ("#### 0632", None),
        ("#### 632 ", None),
        ("#### 632\n", None),
        ("#### 632.0", None),
        ("#### -632", None),
        ("#### 6\u0663", None),
        ("#### 631 #### 632", None),
        ("##### 632", None),
        ("#### ", None),
        ("", None),
    ],
)
def test_extraction_is_strict(text, answer):
    assert extract(text) == answer


def test_scores():
    assert compute_score("cohort/arithmetic", "#### 632", "632", {}) == {"score": 1.0, "acc": 1.0, "parsed": 1.0}
    assert compute_score("cohort/arithmetic", "#### 632", 632) == {"score": 1.0, "acc": 1.0, "parsed": 1.0}
    assert compute_score("cohort/arithmetic", "#### 631", "632") == {"score": 0.0, "acc": 0.0, "parsed": 1.0}
    assert compute_score("cohort/arithmetic", "632", "632") == {"score": 0.0, "acc": 0.0, "parsed": 0.0}
    with pytest.raises(ValueError, match="no ground_truth"):
        compute_score("cohort/arithmetic", "#### 632", None)


def test_task_and_reward_import_no_torch():
    code = (
        "import sys, cohort.data.tasks.arithmetic, cohort.rewards.arithmetic;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
