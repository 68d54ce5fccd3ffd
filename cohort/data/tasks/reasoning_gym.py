"""The procedural tasks of the reasoning-gym library (Stojanovski et al., 2025, arXiv:2505.24760), by name."""

from __future__ import annotations

import difflib
import json
from typing import Any

from cohort.errors import UserError

INSTRUCTION = "Give only your final answer between <answer> and </answer>."
SPLIT_SEEDS = {"train": 0, "test": 500_000_000}
"""Item i of a data set is made from seed + i, so splits start far apart."""


def rows(name: str, split: str, size: int, seed: int, **settings: Any) -> list[dict[str, Any]]:
    """Rows of the task ``name`` in verl's schema; ``cohort.rewards.reasoning_gym`` grades them.

    ``extra_info.entry`` is the library's own record as JSON: its graders read it. A few graders of the library
    give their own answer no full mark (rubiks_cube, rush_hour, ...); look at the scores of yours.

    ``settings`` are the task's own, such as ``min_terms`` of chain_sum.

    Raises:
        UserError: the library is absent, it has no such task, or the task cannot be made without settings.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError("reasoning-gym tasks need the library: pip install 'cohort-rl[reasoning-gym]'") from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3) or sorted(DATASETS)[:3]
        raise UserError(f"reasoning-gym has no task {name!r}; near it are {', '.join(near)} ({len(DATASETS)} in all)")
    try:
        data = reasoning_gym.create_dataset(name, size=size, seed=seed + SPLIT_SEEDS[split], **settings)
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"reasoning-gym task {name} with --size {size}: {error}") from error
    return [_row(name, split, i, data[i]) for i in range(size)]


def _row(name: str, split: str, index: int, entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "data_source": f"reasoning_gym/{name}",
        "prompt": [{"role": "user", "content": f"{entry['question']}\n{INSTRUCTION}"}],
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": str(entry["answer"])},
        "extra_info": {"split": split, "index": index, "entry": json.dumps(_tagged(entry), default=str)},
    }


def _tagged(value: object) -> object:
    """JSON has no tuples and some graders compare with them: ``(1, 2)`` becomes ``{"__tuple__": [1, 2]}``."""
    if isinstance(value, tuple):
        return {"__tuple__": [_tagged(item) for item in value]}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {name: _tagged(item) for name, item in value.items()}
    return value
