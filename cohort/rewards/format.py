"""Whether an answer has the asked-for form.

Some chat templates open the answer with ``<think>`` themselves, so the model never writes it. Give the
runner ``prefill`` (``data.tokenizer.prefill`` finds it) and this reward sees the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

THINK_ANSWER = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
REACT = re.compile(r"<think>.*?</think>\s*Action:.*?Action Input:.*?$", re.DOTALL | re.MULTILINE)


def compute_score(solution_str: str, tags: Sequence[str] = ("think",), pattern: str | None = None) -> float:
    """1.0 if the form is right, else 0.0.

    Args:
        solution_str: the response.
        tags: elements that must stand in this order, each exactly once, with nothing before or between
            them. A lone ``think`` must be followed by text; otherwise nothing may follow the last one.
        pattern: a regular expression that the whole response must match instead (dot matches newlines).
    """
    text = solution_str.strip()
    if pattern is not None:
        return float(re.fullmatch(pattern, text, re.DOTALL) is not None)
    if isinstance(tags, str):
        tags = (tags,)
    if any(text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1 for tag in tags):
        return 0.0
    for tag in tags:
        if not text.startswith(f"<{tag}>"):
            return 0.0
        text = text.partition(f"</{tag}>")[2].strip()
    return float(bool(text) == (tuple(tags) == ("think",)))


def think_answer(solution_str: str) -> float:
    """1.0 if the response is a think block and an answer block, else 0.0: ms-swift's ``format``.

    Looser than ``compute_score(tags=("think", "answer"))``, as blocks may hold further tags, and stricter: nothing may
    stand around them, not even the end of a line.
    """
    return float(THINK_ANSWER.fullmatch(solution_str) is not None)


def react(solution_str: str) -> float:
    """1.0 for a think block, then ``Action:`` and ``Action Input:``, else 0.0: ms-swift's ``react_format``.

    Paper: Yao et al. 2022, ReAct (2210.03629).
    """
    return float(REACT.match(solution_str) is not None)
