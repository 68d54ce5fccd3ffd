"""Columns of a data row by name, those inside a column included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.errors import UserError
from cohort.types import Prompt


def column(prompt: Prompt, name: str, *, key: str) -> object:
    """The column ``name`` of a prompt's row; ``extra_info.level`` is the entry ``level`` of ``extra_info``.

    Args:
        prompt: the row.
        name: the column.
        key: the dotted key that asks for it, for the message.

    Raises:
        UserError: if the row has no such column, naming those it has.
    """
    value: object = prompt.columns
    for part in [name] if name in prompt.columns else name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(_names(prompt.columns)) or "none"
            raise UserError(f"{key}={name}: data row {prompt.row} has no such column; it has: {known}")
        value = value[part]
    return value


def numbers(prompts: Sequence[Prompt], name: str, *, key: str) -> list[float]:
    """The column ``name`` of every row as a number.

    Raises:
        UserError: if a row has no such column, or something else in it.
    """
    found = []
    for prompt in prompts:
        value = column(prompt, name, key=key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise UserError(
                f"{key}={name}: data row {prompt.row} has {value!r:.40} there; expects a number in every row"
            )
        found.append(float(value))
    return found


def _names(columns: Mapping[str, object]) -> list[str]:
    inner = [f"{name}.{part}" for name, value in columns.items() if isinstance(value, Mapping) for part in value]
    return sorted([*columns, *inner])
