import asyncio
import re

import pytest

from cohort.errors import UserError
from cohort.rewards.custom import load_custom
from cohort.rewards.runner import RewardRunner
from tests.unit.test_rewards_base import rollout

GOOD = """
import threading
from neighbour_of_reward import BONUS

lock = threading.Lock()  # cannot be pickled

def compute_score(solution_str, ground_truth, scale=1.0, **others):
    with lock:
        return {"score": scale * (len(solution_str) + BONUS), "pred": solution_str}

def another(text):
    return 1.0
"""


@pytest.fixture
def good(tmp_path):
    (tmp_path / "neighbour_of_reward.py").write_text("BONUS = 10\n")
    (tmp_path / "reward.py").write_text(GOOD)
    return tmp_path / "reward.py"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_file_s_function_runs_with_its_settings(good, num_workers):
    reward = load_custom(good, reward_kwargs={"scale": 2.0})
    runner = RewardRunner([reward], num_workers=num_workers)
    good.write_text("changed while the run goes on")  # workers that start later use the text of the start
    score = asyncio.run(runner.score(rollout("abc")))
    runner.close()
    assert score.value == 26.0, score.reason
    assert score.parts == {"score": 26.0, "pred": "abc"}


def test_another_name(good):
    assert load_custom(str(good), "another").name == "another"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("def a(:\n    pass", "compute_score", r"reward.py line 1: invalid syntax: def a\(:"),
        ("x = 1\n\nimport not_a_module_at_all", "compute_score", "line 3: ModuleNotFoundError: No module named"),
        ("def f():\n    return 1 / 0\nf()", "compute_score", "line 2: ZeroDivisionError"),
        (
            "import os\ndef compute_scores(): ...\ndef b(): ...",
            "compute_score",
            r"it has: compute_scores, b; did you mean compute_scores\?",
        ),
        ("compute_score = 3", "compute_score", "no such function; it has: none"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, text, name, message):
    (tmp_path / "reward.py").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_custom(tmp_path / "reward.py", name)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("custom_reward_function.")


def test_no_file(tmp_path):
    with pytest.raises(UserError, match=r"custom_reward_function.path=.*/x.py: no such file"):
        load_custom(tmp_path / "x.py")
    (tmp_path / "y.py").write_bytes(b"# \xff")
    with pytest.raises(UserError, match=re.escape("not UTF-8 text")):
        load_custom(tmp_path / "y.py")
