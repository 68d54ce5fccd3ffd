"""Grades ``... #### 132``: the answer after the last mark, compared with the key. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

ANSWER = re.compile(r"#### (0|[1-9][0-9]*)")


def extract(solution_str: str) -> str | None:
    """The whole number that ends the text, after ``#### ``; None where the text does not end so.

    Strict on purpose: nothing may follow the number, there are no leading zeros, and the mark occurs once.
    """
    if solution_str.count("####") != 1:
        return None
    found = ANSWER.fullmatch(solution_str[solution_str.index("####") :])
    return found.group(1) if found else None


def compute_score(
    data_source: str, solution_str: str, ground_truth: object, extra_info: Mapping[str, object] | None = None
) -> dict[str, float]:
    """1 for the right number, 0 for a wrong one and for an answer that does not parse.

    Args:
        data_source: not looked at; verl's signature.
        solution_str: the response without special tokens.
        ground_truth: the sum, as text.
        extra_info: not looked at; verl's signature.

    Returns:
        ``score`` (which is trained on), ``acc`` (the same) and ``parsed`` (1 where there was an answer).

    Raises:
        ValueError: without an answer key.
    """
    if ground_truth is None:
        raise ValueError("the data row has no ground_truth")
    answer = extract(solution_str)
    right = float(answer == str(ground_truth))
    return {"score": right, "acc": right, "parsed": float(answer is not None)}
