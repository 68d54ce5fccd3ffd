"""verl's keys into ours: renames with a note, keys without effect with a note, the rest refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from cohort.config.convert import MISSING, show
from cohort.config.reuse import DERIVED, derive
from cohort.config.tree import keys
from cohort.config.verl import ALIASES, INERT, REFUSED, REFUSED_VALUES, RENAMED, Inert, Refused
from cohort.errors import UserError


def translate(flat: Mapping[str, Any], given: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Takes verl's keys out of a flat mapping.

    Args:
        flat: dotted keys and values, those of a preset included.
        given: the keys that a person gave; another name of one of them may not say something else.

    Returns:
        our keys, and the lines to print. Keys that nobody knows are left out; ``build`` has refused them before.

    Raises:
        UserError: for a key or value that would change what is trained and is not built.
    """
    ours: dict[str, Any] = {}
    notes: list[str] = []
    inert: dict[str, list[str]] = {}
    for name, value in flat.items():
        if name in keys():
            refuse_value(name, value)
            ours[name] = _spelling(name, value, notes)
    for name, value in flat.items():
        if name in keys() or name in DERIVED:
            continue
        if renamed := RENAMED.get(name):
            _rename(name, value, renamed.to, renamed.words, given, ours, notes)
            continue
        match entry(name):
            case Refused(why, instead):
                raise UserError(f"{name}={show(value)} is refused: {why}; instead: {instead}")
            case Inert(why, safe, instead):
                if safe is not None and not _among(value, safe):
                    raise UserError(f"{name}={show(value)} is not built: {why}; instead: {instead}")
                inert.setdefault(why, []).append(f"{name}={show(value)}")
    notes += derive(flat, ours, given)
    notes += [f"no effect: {', '.join(given)} ({why})" for why, given in inert.items()]
    return ours, notes


def entry(name: str) -> Inert | Refused | None:
    """The line of the tables that speaks for a key: its exact name, else the longest pattern."""
    tables: Mapping[str, Inert | Refused] = {**INERT, **REFUSED}
    if name in tables:
        return tables[name]
    found = [pattern for pattern in tables if "*" in pattern and fnmatchcase(name, pattern)]
    return tables[max(found, key=len)] if found else None


def known() -> tuple[str, ...]:
    """Every key that can be named exactly: ours first, then verl's."""
    return (*keys(), *RENAMED, *DERIVED, *(name for name in (*INERT, *REFUSED) if "*" not in name))


def refuse_value(name: str, value: Any) -> None:
    """Refuses a value that verl knows and that is not built, with the reason."""
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, str) and (refused := REFUSED_VALUES.get(name, {}).get(item)):
            raise UserError(f"{name}={show(item)} is refused: {refused.why}; instead: {refused.instead}")


def _spelling(name: str, value: Any, notes: list[str]) -> Any:
    """The value as we write it."""
    word = ALIASES.get(name, {}).get(value) if isinstance(value, str) else None
    if word is not None:
        notes.append(f"renamed: {name}={value} is read as {word}")
    return value if word is None else word


def _rename(
    name: str,
    value: Any,
    to: str,
    words: Mapping[str, str],
    given: frozenset[str],
    ours: dict[str, Any],
    notes: list[str],
) -> None:
    if value is None:
        notes.append(f"no effect: {name}=null ({to} is its name here)")
        return
    value = words.get(value, value) if isinstance(value, str) else value
    refuse_value(to, value)
    if to in given and ours[to] not in (None, MISSING, value):
        raise UserError(f"{name}={show(value)} is another name of {to}={show(ours[to])}; give one of them")
    ours[to] = value
    notes.append(f"renamed: {name} is read as {to}={show(value)}")


def _among(value: Any, safe: tuple[object, ...]) -> bool:
    """Membership with types: True is not 1, and a list may be a tuple."""
    plain = list(value) if isinstance(value, tuple) else value
    empty = plain in ([], {}) if isinstance(plain, list | dict) else False
    return any(
        (plain == item and isinstance(plain, bool) == isinstance(item, bool)) or (empty and item in ((), {}))
        for item in safe
    )
