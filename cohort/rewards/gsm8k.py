"""GSM8K's grader: a number after ``####`` (Cobbe et al., 2021), read as verl reads it.

Only the last 300 characters are looked at. ``compute_score`` is strict: the last ``#### NUMBER`` with one
space and no dollar sign. ``flexible`` takes the last number of the text. An answer that is not found scores
0; one that is found and wrong scores ``format_score``. Comparison is of strings: ``18.`` is not ``18``.
"""

from __future__ import annotations

import re

WINDOW = 300
STRICT = re.compile(r"#### (-?[0-9.,]+)")
NUMBERS = re.compile(r"-?[0-9.,]+")


def compute_score(
    solution_str: str, ground_truth: object, format_score: float = 0.0, score: float = 1.0, method: str = "strict"
) -> float:
    """The score of one answer.

    Args:
        solution_str: the response.
        ground_truth: the answer key, without thousands commas.
        format_score: the score of a wrong answer in the right form.
        score: the score of a right answer.
        method: "strict" or "flexible".

    Raises:
        ValueError: without an answer key, or for an unknown method.
    """
    if ground_truth is None:
        raise ValueError("the data row has no ground_truth")
    answer = extract(solution_str, method)
    if answer is None:
        return 0.0
    return score if answer == str(ground_truth) else format_score


def flexible(solution_str: str, ground_truth: object, format_score: float = 0.0, score: float = 1.0) -> float:
    """``compute_score`` with the last number of the text as the answer."""
    return compute_score(solution_str, ground_truth, format_score, score, method="flexible")


def extract(solution_str: str, method: str = "strict") -> str | None:
    """The answer in a response, or None."""
    tail = solution_str[-WINDOW:]
    if method == "strict":
        found = STRICT.findall(tail)
        return found[-1].replace(",", "").replace("$", "") if found else None
    if method == "flexible":
        numbers = [text for text in NUMBERS.findall(tail) if text not in ("", ".")]
        return numbers[-1] if numbers else None
    raise ValueError(f"method must be strict or flexible, not {method!r}")
