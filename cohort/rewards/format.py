"""Whether an answer has the asked-for form.

Some chat templates open the answer with ``<think>`` themselves, so the model never writes it. Give the
runner ``prefill`` (``data.tokenizer.prefill`` finds it) and this reward sees the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


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
