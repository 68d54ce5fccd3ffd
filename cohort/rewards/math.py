"""Mathematical answers, compared by the math-verify library.

The answer is taken from ``\\boxed{...}``, from LaTeX, or as the last plain expression; it is right if it is
mathematically equal to the answer key. verl compares normalised strings here, so scores can differ where
equal values are written differently.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

# On top, so that a worker pays for sympy once, before its first answer is timed.
from math_verify import parse, verify

for _name in ("math_verify.parser", "math_verify.grader"):
    # Each process would be told once that the library's own limits are off, which is on purpose.
    logging.getLogger(_name).addFilter(lambda record: "Timeout is disabled" not in record.getMessage())


def compute_score(solution_str: str, ground_truth: object) -> float:
    """1.0 if the answer equals the key, else 0.0.

    Raises:
        ValueError: if there is no answer key or it cannot be read: the answer then has no score.
    """
    if ground_truth is None:
        raise ValueError("the data row has no ground_truth")
    gold = _gold(str(ground_truth))
    if not gold:
        raise ValueError(f"math-verify cannot read the ground_truth {ground_truth!r:.80}")
    # The library's own limits use signal.alarm, which fails outside the main thread; the worker has a limit.
    answer = parse(solution_str, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return float(verify(gold, answer, timeout_seconds=None))


@lru_cache(maxsize=4096)
def _gold(text: str) -> list[Any]:
    """The answer key, parsed. Every sample of a group asks for the same one."""
    latex = text if "\\boxed" in text or "$" in text else f"\\boxed{{{text}}}"
    return parse(latex, parsing_timeout=None)  # pyright: ignore[reportArgumentType]
