"""One value against one type. Strict: what is not of the type is an error that says what would be."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cohort.config.nearest import nearest_words
from cohort.config.schema.limits import Range
from cohort.errors import UserError

MISSING = "???"
"""Hydra's mark for a value that must be given."""


class Mismatch(Exception):
    """A value that is not of its type.

    Attributes:
        settled: the message already says which value would do.
    """

    def __init__(self, message: str, *, settled: bool = False) -> None:
        super().__init__(message)
        self.settled = settled


def convert(name: str, value: Any, hint: Any, *, example: Any = None) -> Any:
    """``value`` as the type ``hint`` says.

    Args:
        name: the dotted key, for messages.
        value: what was given.
        hint: a type of the schema.
        example: a legal value, for messages that have no better one.

    Raises:
        UserError: in one line with the key, the value and what would be legal.
    """
    try:
        return _convert(name, value, hint)
    except Mismatch as problem:
        such = "" if problem.settled or example in (None, (), {}, MISSING) else f", for example {show(example)}"
        raise UserError(f"{name}={show(value)}: {problem}{such}") from None


def show(value: Any) -> str:
    """A value as it would be written on the command line, on one line and not too long."""
    if value is None or isinstance(value, bool):
        text = "null" if value is None else str(value)
    elif isinstance(value, str):
        text = value if value and value.isprintable() and " " not in value else repr(value)
    elif isinstance(value, Mapping | list | tuple):
        text = json.dumps(value, default=str)
    else:
        text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _convert(name: str, value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _ranged(_convert(name, value, arguments[0]), arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return _union(name, value, hint, arguments)
    if origin is Literal:
        return _choice(value, arguments)
    if origin is tuple:
        return _tuple(name, value, arguments)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise Mismatch("expects a mapping, for example {name: value}", settled=True)
        return {str(key): item for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _part(name, value, hint)
    return _scalar(value, hint)


def _scalar(value: Any, hint: Any) -> Any:
    if hint is bool:
        if not isinstance(value, bool):
            quoted = isinstance(value, str) and value.lower() in ("true", "false")
            raise Mismatch("expects True or False" + (", without quotes" if quoted else ""), settled=True)
        return value
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            whole = isinstance(value, float) and math.isfinite(value) and value == int(value)
            if whole:
                raise Mismatch(f"expects a whole number; write {int(value)}", settled=True)
            raise _unquoted(value, int, "expects a whole number")
        return value
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _unquoted(value, float, "expects a number")
        if not math.isfinite(value):
            raise Mismatch("expects a finite number")
        return float(value)
    if hint is str:
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)  # names like 42, which Hydra reads as a number
        if not isinstance(value, str) or not value:
            raise Mismatch("expects text")
        return value
    raise TypeError(f"the schema uses {hint}, which convert does not know")


def _unquoted(value: Any, kind: type, message: str) -> Mismatch:
    try:
        if isinstance(value, str):
            return Mismatch(f"{message}; write {kind(value)} without quotes", settled=True)
    except ValueError:
        pass
    return Mismatch(message)


def _ranged(value: Any, hint: Any, marks: Sequence[Any]) -> Any:
    for mark in marks:
        if isinstance(mark, Range) and not mark.holds(value):
            whole = hint is int
            kind = "a whole number" if whole else "a number"
            if mark.above:
                raise Mismatch(f"expects {kind} {mark.words()}")
            raise Mismatch(f"expects {kind} {mark.words()}; the nearest is {mark.nearest(value):g}", settled=True)
    return value


def _choice(value: Any, legal: Sequence[Any]) -> Any:
    if value in legal and type(value) in {type(item) for item in legal}:
        return value
    close = nearest_words(str(value), [str(item) for item in legal], most=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    raise Mismatch(f"expects {'one of ' if len(legal) > 1 else ''}{', '.join(map(str, legal))}{guess}", settled=True)


def _union(name: str, value: Any, hint: Any, members: Sequence[Any]) -> Any:
    if value is None and type(None) in members:
        return None
    problems: list[Mismatch] = []
    for member in members:
        if member is type(None):
            continue
        try:
            return _convert(name, value, member)
        except Mismatch as problem:
            problems.append(problem)
    null = "; null leaves it out" if type(None) in members else ""
    settled = all(problem.settled for problem in problems)
    raise Mismatch(", or ".join(dict.fromkeys(map(str, problems))) + null, settled=settled)


def _tuple(name: str, value: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
    item = arguments[0]
    if isinstance(value, str) and (item is str or get_origin(item) is Literal):
        value = [value]
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise Mismatch("expects a list" + (", for example [a,b]" if item is str else ""), settled=item is str)
    if Ellipsis not in arguments and len(value) != len(arguments):
        raise Mismatch(f"expects a list of {len(arguments)}")
    hints = [item] * len(value) if Ellipsis in arguments else arguments
    return tuple(convert(f"{name}[{i}]", part, hint) for i, (part, hint) in enumerate(zip(value, hints, strict=True)))


def _part(name: str, value: Any, cls: type) -> Any:
    hints = get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if not isinstance(value, Mapping):
        raise Mismatch(f"expects a mapping with {', '.join(fields)}", settled=True)
    for key in value:
        if key not in fields:
            guess = nearest_words(str(key), fields, most=1) or list(fields)
            raise UserError(f"{name}.{key}={show(value[key])}: no such key; legal here: {', '.join(guess)}")
    for key, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and key not in value:
            raise Mismatch(f"lacks {key}; for example {{{key}: gsm8k}}", settled=True)
    return cls(**{key: convert(f"{name}.{key}", item, hints[key]) for key, item in value.items()})
