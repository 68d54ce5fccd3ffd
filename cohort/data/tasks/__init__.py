"""Data sets that can be made here, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from cohort.errors import UserError

TaskRows = Callable[..., Sequence[dict[str, Any]]]
"""``rows(split, size, seed, **settings)``: rows in verl's schema; ``split`` is "train" or "test"."""

TASKS: dict[str, str] = {
    "arithmetic": "cohort.data.tasks.arithmetic:rows",
    "gsm8k": "cohort.data.tasks.gsm8k:rows",
}
"""Task name -> ``module:function``. ``reasoning-gym/NAME`` stands for one task of that library."""

REASONING_GYM = "reasoning-gym/"


def register_task(name: str, target: str) -> None:
    """Adds a task; ``target`` is ``module:function``."""
    TASKS[name] = target


def task_rows(name: str) -> TaskRows:
    """The function that makes the rows of a task.

    Raises:
        UserError: naming the tasks there are.
    """
    if name.startswith(REASONING_GYM):
        from cohort.data.tasks import reasoning_gym

        return partial(reasoning_gym.rows, name.removeprefix(REASONING_GYM))
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; there are {', '.join(TASKS)} and {REASONING_GYM}NAME")
    module, _, function = TASKS[name].partition(":")
    return vars(import_module(module))[function]
