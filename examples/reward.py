"""A reward of one's own: the right answer, and a little for a short one.

    cohort train custom_reward_function.path=examples/reward.py custom_reward_function.reward_kwargs='{bonus: 0.1}'

The function is called by parameter name; docs/rewards.md lists what it may ask for.
"""

import re


def compute_score(solution_str: str, ground_truth: str, ids: list[int], bonus: float = 0.0, limit: int = 40):
    """1 for the right number after ``####``, and ``bonus`` more if the answer has at most ``limit`` tokens."""
    found = re.search(r"#### (\d+)$", solution_str)
    right = found is not None and found.group(1) == ground_truth
    short = len(ids) <= limit
    # `score` is what is trained on; the other entries are logged as reward/NAME/mean.
    return {"score": right + bonus * (right and short), "acc": right, "parsed": found is not None, "short": short}
