"""Rewards for the length of an answer. A length counts the tokens that the model wrote, over all its turns.

Each is one of several (``reward.functions``): next to a reward for being right, under a weight of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from inspect import iscoroutinefunction, signature
from typing import Any

from cohort.rewards.base import graded
from cohort.rewards.custom import load_custom
from cohort.rewards.registry import built_in, by_data_source


def overlong(response_length: int, max_response_length: int, buffer: int, penalty: float = 1.0) -> dict[str, float]:
    """DAPO's soft punishment of answers that come near the limit: ``-penalty`` at the limit, 0 up to the buffer.

        -penalty * clamp((L - (max_response_length - buffer)) / buffer, 0, 1)

    Never below ``-penalty``, as in the paper; verl's manager and ms-swift go on falling beyond the limit.

    Args:
        response_length: L, tokens that the model wrote.
        max_response_length: the longest answer allowed, in tokens: ``data.max_response_length``.
        buffer: tokens before the limit in which the penalty grows; verl's ``overlong_buffer.len``.
        penalty: its size at the limit; verl's ``penalty_factor``.

    Returns:
        ``score``, and ``overlong``: 1 where there is a penalty.

    Paper: Yu et al. 2025, DAPO (2503.14476), equation 13.
    Wrong choice when: long answers are right more often and the limit is generous: it teaches brevity, not correctness.

    Raises:
        ValueError: for a buffer that does not lie within the limit, or a negative penalty.
    """
    if not 0 < buffer <= max_response_length:
        raise ValueError(f"buffer must be within 1 and max_response_length={max_response_length}, got {buffer}")
    if penalty < 0:
        raise ValueError(f"penalty is a size, taken off the score: it must not be negative, got {penalty}")
    over = (response_length - (max_response_length - buffer)) / buffer
    return {"score": -penalty * min(max(over, 0.0), 1.0), "overlong": float(over > 0)}


def cosine_length(
    response_length: int,
    max_response_length: int,
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    *,
    correctness: str | None = None,
    correct_from: float = 1.0,
    min_len_value_correct: float = 1.0,
    max_len_value_correct: float = 0.5,
    min_len_value_wrong: float = -0.5,
    max_len_value_wrong: float = 0.0,
) -> dict[str, float] | None:
    """Right answers are worth more when short, wrong ones cost less when long: half a cosine between two values.

        long + (short - long) (1 + cos(pi min(L, L_max) / L_max)) / 2

    The length is held at the limit; ms-swift's cosine comes back up beyond it.

    Args:
        response_length: L, tokens that the model wrote.
        max_response_length: L_max, the longest answer allowed, in tokens.
        data_source: of the row; chooses the grader where ``correctness`` does not.
        solution_str: the answer, for the grader.
        ground_truth: the answer key, for the grader.
        extra_info: of the row, for the grader.
        correctness: what decides whether an answer is right: a built-in reward (``math``) or ``FILE.py:FUNCTION``;
            None for the built-in reward of the row's ``data_source``.
        correct_from: the grader's least score for a right answer.
        min_len_value_correct: value of a right answer of no length.
        max_len_value_correct: value of a right answer at the limit.
        min_len_value_wrong: value of a wrong answer of no length.
        max_len_value_wrong: value of a wrong answer at the limit.

    Returns:
        ``score``, and ``correct``: 1 for a right answer. None where the grader cannot grade.

    Paper: Yeo et al. 2025, Demystifying Long Chain-of-Thought Reasoning in LLMs (2502.03373), section 4.2.
    Wrong choice when: wrong answers are common from the start: longer and longer ones are then the easiest gain, and
        repetition is how to get them (the paper adds a repetition penalty for that).

    Raises:
        ValueError: for a limit that is not positive.
        UserError: for a grader that there is not.
    """
    if max_response_length <= 0:
        raise ValueError(f"max_response_length must be above 0, got {max_response_length}")
    values = {"data_source": data_source, "solution_str": solution_str, "text": solution_str}
    values |= {"ground_truth": ground_truth, "extra_info": {} if extra_info is None else extra_info}
    grader, wanted = _grader(correctness, data_source)
    value = graded(grader(**{name: values[name] for name in values if name in wanted})).value
    if value is None:
        return None
    right = value >= correct_from
    short, long = (
        (min_len_value_correct, max_len_value_correct) if right else (min_len_value_wrong, max_len_value_wrong)
    )
    progress = min(response_length, max_response_length) / max_response_length
    return {"score": long + (short - long) * (1 + math.cos(math.pi * progress)) / 2, "correct": float(right)}


@cache
def _grader(correctness: str | None, data_source: str) -> tuple[Callable[..., object], frozenset[str]]:
    """The function that says whether an answer is right, and the names it takes."""
    if correctness is None:
        found = by_data_source([data_source]).function
    elif ":" in correctness:
        path, _, name = correctness.rpartition(":")
        found = load_custom(path, name).function
    else:
        found = built_in(correctness).function
    if iscoroutinefunction(found):
        raise ValueError(f"correctness={correctness}: an async function cannot be asked from a plain reward")
    return found, frozenset(signature(found).parameters)


def repetition(text: str, n_grams: int = 3, max_penalty: float = -1.0) -> float:
    """A penalty for saying the same again: the share of n-grams that stood before, times ``max_penalty``.

        (1 - distinct n-grams / n-grams) max_penalty

    Words are what white space separates, in lower case. An answer with fewer than n words has no penalty.

    Args:
        text: the answer, what tools wrote included.
        n_grams: n, in words.
        max_penalty: the limit that an answer of one word said for ever comes near; 0 or negative.

    Paper: Yeo et al. 2025, Demystifying Long Chain-of-Thought Reasoning in LLMs (2502.03373), section 4.3.
    Wrong choice when: the language has no spaces between words, or right answers repeat (tables, proofs by cases).

    Raises:
        ValueError: for n below 1 or a positive ``max_penalty``.
    """
    if n_grams < 1:
        raise ValueError(f"n_grams must be 1 or more, got {n_grams}")
    if max_penalty > 0:
        raise ValueError(f"max_penalty must be 0 or negative, got {max_penalty}")
    words = text.lower().split()
    grams = list(zip(*(words[i:] for i in range(n_grams)), strict=False))
    return (1 - len(set(grams)) / len(grams)) * max_penalty if grams else 0.0
