"""Whether the answer is the answer key, character by character."""

from __future__ import annotations


def compute_score(solution_str: str, ground_truth: object, ignore_case: bool = False) -> float:
    """1.0 if the response, stripped, is the key or one of a list of keys, else 0.0.

    Raises:
        ValueError: without an answer key.
    """
    if ground_truth is None:
        raise ValueError("the data row has no ground_truth")
    keys = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    answer = solution_str.strip()
    if ignore_case:
        return float(answer.casefold() in [str(key).strip().casefold() for key in keys])
    return float(answer in [str(key).strip() for key in keys])
