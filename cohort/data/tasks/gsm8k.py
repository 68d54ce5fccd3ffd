"""GSM8K, grade-school word problems (Cobbe et al., 2021, arXiv:2110.14168; MIT licence)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cohort.data.files import load_rows
from cohort.data.order import permutation
from cohort.errors import UserError

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
FINAL = re.compile(r"#### (-?[0-9.,]+)")


def rows(split: str, size: int = -1, seed: int = 0, *, folder: str | Path | None = None) -> list[dict[str, Any]]:
    """Rows in verl's schema.

    Args:
        split: "train" (7473 problems) or "test" (1319).
        size: how many, drawn at random by ``seed``; -1 takes all in their order.
        seed: picks the problems.
        folder: holds the original ``train.jsonl`` and ``test.jsonl``; None takes them from the hub.

    Raises:
        UserError: missing files, a solution without a final answer, no hub library, hub out of reach.
    """
    problems = _from_hub(split) if folder is None else _from_folder(Path(os.path.expanduser(folder)), split)
    chosen: Sequence[int] = range(len(problems))
    if 0 <= size < len(problems):
        chosen = sorted(int(i) for i in permutation(len(problems), seed=seed)[:size])
    return [row(problems[i], split, i) for i in chosen]


def row(problem: dict[str, Any], split: str, index: int) -> dict[str, Any]:
    """One problem (``question``, ``answer``) in verl's schema. The answer key loses its thousands commas.

    Raises:
        UserError: if the problem is not GSM8K's.
    """
    if not isinstance(problem.get("question"), str) or not isinstance(problem.get("answer"), str):
        raise UserError(f"GSM8K {split} row {index + 1}: needs `question` and `answer`, has {', '.join(problem)}")
    final = FINAL.search(problem["answer"])
    if final is None:
        raise UserError(f"GSM8K {split} row {index + 1}: the answer has no `#### NUMBER`")
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{problem['question']} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": final.group(1).replace(",", "")},
        "extra_info": {"split": split, "index": index, "answer": problem["answer"], "question": problem["question"]},
    }


def _from_folder(folder: Path, split: str) -> list[dict[str, Any]]:
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise UserError(f"--from {folder}: no {split}.jsonl there; it is GSM8K's original file of that name")
    return load_rows(path, key="--from")


def _from_hub(split: str) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise UserError(
            "GSM8K comes from the hub through the datasets library: pip install 'cohort-rl[hub]', or give "
            "--from DIR with the original train.jsonl and test.jsonl"
        ) from error
    try:
        return [dict(problem) for problem in load_dataset(DATA_SOURCE, "main", split=split)]
    except (OSError, ValueError) as error:
        raise UserError(
            f"GSM8K cannot be had from the hub ({str(error).splitlines()[0]}); give --from DIR with its files"
        ) from error
