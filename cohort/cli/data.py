"""``cohort data``: makes data sets in verl's schema."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cohort.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The data sets and their options."""
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    gsm8k = tasks.add_parser("gsm8k", help="grade-school word problems, 7473 to train and 1319 to test")
    gsm8k.add_argument(
        "--from", dest="source", metavar="DIR", help="the original JSONL files; without it, from the hub"
    )
    arithmetic = tasks.add_parser("arithmetic", help="procedural arithmetic, what the starter model knows a little of")
    gym = tasks.add_parser("reasoning-gym", help="a task of the reasoning-gym library, by name")
    gym.add_argument("name", metavar="NAME", help="for example chain_sum, countdown, gcd")
    for made in (arithmetic, gym):
        made.add_argument("--size", type=_positive, default=2000, help="training problems (default 2000)")
        made.add_argument("--test-size", type=_positive, default=256, help="test problems (default 256)")
    for task in (gsm8k, arithmetic, gym):
        task.add_argument("--to", type=Path, metavar="DIR", required=True, help="where the parquet files go")
    for made in (arithmetic, gym):
        made.add_argument("--seed", type=int, default=0, help="names the problems (default 0)")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Makes ``train.parquet`` and ``test.parquet`` and says what comes next.

    Raises:
        UserError: whatever is wrong with the source or the place.
    """
    from cohort.data.files import write_rows

    console = Console()
    folder = Path(os.path.expanduser(args.to))
    train, test = _splits(args)
    kept = _unseen(test, train)
    if len(kept) < len(test):
        console.print(
            f"{len(test) - len(kept)} test problems also occur in training and were left out", highlight=False
        )
    if not kept:
        raise UserError("every test problem also occurs in training: the task has too few problems; lower --size")
    for name, rows in (("train", train), ("test", kept)):
        path = write_rows(folder / f"{name}.parquet", rows)
        console.print(f"wrote {path}: {len(rows)} problems", soft_wrap=True, highlight=False, markup=False)
    preset = "data.task=null" if args.task == "arithmetic" else "--config-name grpo actor_rollout_ref.model.path=MODEL"
    command = f"cohort train {preset} data.train_files={folder}/train.parquet data.val_files={folder}/test.parquet"
    console.print(f"next: {command}", soft_wrap=True, highlight=False, markup=False)
    return 0


def _splits(args: argparse.Namespace) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]:
    from cohort.data.tasks import REASONING_GYM, gsm8k, task_rows

    if args.task == "gsm8k":
        return gsm8k.rows("train", folder=args.source), gsm8k.rows("test", folder=args.source)
    make = task_rows(REASONING_GYM + args.name if args.task == "reasoning-gym" else args.task)
    return make("train", args.size, args.seed), make("test", args.test_size, args.seed)


def _unseen(test: Sequence[dict[str, Any]], train: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The test rows whose prompt is not a training prompt."""
    seen = {json.dumps(row["prompt"], sort_keys=True) for row in train}
    return [row for row in test if json.dumps(row["prompt"], sort_keys=True) not in seen]
