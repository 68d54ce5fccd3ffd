"""Grades reasoning-gym tasks with the library's own graders."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def compute_score(data_source: str, solution_str: str, extra_info: dict[str, Any]) -> float:
    """The library's score of the last ``<answer>...</answer>``; 0.0 without one.

    Some graders give a small credit to a wrong answer in the right form (0.05 for countdown).
    """
    found = ANSWER.findall(solution_str)
    if not found:
        return 0.0
    return float(_grader(data_source.partition("/")[2])(found[-1].strip(), _entry(extra_info["entry"])))


@cache
def _grader(task: str) -> Any:
    from reasoning_gym import get_score_answer_fn

    return get_score_answer_fn(task)


def _entry(text: str) -> dict[str, Any]:
    """The library's record; ``{"__tuple__": [...]}`` stands for a tuple."""
    return json.loads(text, object_hook=lambda item: tuple(item["__tuple__"]) if "__tuple__" in item else item)
