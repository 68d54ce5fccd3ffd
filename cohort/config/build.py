"""From a mapping to a Config: the only judge of what is legal. Imports neither torch nor hydra."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cohort.config import rules
from cohort.config.convert import MISSING, convert, show
from cohort.config.nearest import nearest_keys
from cohort.config.reuse import DERIVED
from cohort.config.schema import Config
from cohort.config.translate import entry, known, translate
from cohort.config.tree import flatten, hints_of, keys, sections, values
from cohort.config.verl import RENAMED
from cohort.errors import UserError


def warn(line: str) -> None:
    """Prints a note as a Python warning."""
    warnings.warn(line, stacklevel=3)


def build(
    mapping: Mapping[str, Any], *, given: Iterable[str] | None = None, note: Callable[[str], None] = warn
) -> Config:
    """A Config from nested or dotted keys, ours or verl's.

    Args:
        mapping: keys and values; a key that is missing, or null where that is no value of its type and it follows
            another key, takes that key's value or its default.
        given: the keys that a person gave, as against those of a preset; None means all of ``mapping``.
        note: takes each line about a key that was renamed or does nothing here.

    Raises:
        UserError: in one line, for the first key that is unknown, of the wrong type, out of range or in
            contradiction to another.
    """
    flat = flatten(mapping)
    wanted = frozenset(flat if given is None else given)
    for name, value in flat.items():
        if name not in keys() and name not in RENAMED and name not in DERIVED and entry(name) is None:
            raise UserError(unknown(name, value))
    ours, notes = translate(flat, wanted)
    config = _assemble(Config, "", _resolve(ours))
    rules.check(config)
    rules.check_foreign(config, flat)
    rules.check_kl_settings(config, wanted)
    for line in [*notes, *rules.idle(config, wanted)]:
        note(line)
    return config


def amend(config: Config, changes: Mapping[str, Any]) -> Config:
    """A config with some keys changed, judged like any other. Values that followed a key do not follow it again."""
    flat = {**values(config), **flatten(changes)}
    return build(flat, given=())


def unknown(name: str, value: Any) -> str:
    """The line about a key that nobody knows."""
    if name in sections():
        inside = [key for key in keys() if key.startswith(name + ".")]
        return f"{name}={show(value)}: {name} is a section; set a key in it, for example {inside[0]}"
    parents = [key for key in keys() if name.startswith(key + ".")]
    if parents:
        return f"{name}={show(value)}: {parents[0]} is one value and has no keys in it; set {parents[0]} itself"
    close = nearest_keys(name, known())
    if close:
        return f"{name}={show(value)}: unknown key; did you mean {' or '.join(close)}?"
    section = name.rpartition(".")[0]
    if section in sections():
        return f"{name}={show(value)}: unknown key; cohort train --keys {section}. lists those of {section}"
    return f"{name}={show(value)}: unknown key; cohort train --keys lists all ({', '.join(_tops())})"


def _tops() -> list[str]:
    return [f"{name}.*" for name in sorted(sections()) if "." not in name]


def _resolve(ours: Mapping[str, Any]) -> dict[str, Any]:
    """A value of the right type for every key."""
    resolved: dict[str, Any] = {}

    def value(name: str) -> Any:
        if name in resolved:
            return resolved[name]
        key = keys()[name]
        raw = ours.get(name)
        if key.same_as is not None and (raw is None or raw == MISSING):
            resolved[name] = convert(name, _plain(value(key.same_as)), key.hint)
        elif name in ours and raw != MISSING:
            resolved[name] = convert(name, raw, key.hint, example=key.default)
        elif key.default is dataclasses.MISSING or raw == MISSING:
            raise UserError(f"{name} must be given; it is the {key.doc[0].lower()}{key.doc[1:]}")
        else:
            resolved[name] = key.default
        return resolved[name]

    for name in keys():
        value(name)
    return resolved


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _assemble(cls: type, prefix: str, resolved: Mapping[str, Any]) -> Any:
    hints = hints_of(cls)
    arguments = {
        field.name: resolved[prefix + field.name]
        if prefix + field.name in resolved
        else _assemble(hints[field.name], f"{prefix}{field.name}.", resolved)
        for field in dataclasses.fields(cls)
    }
    return cls(**arguments)
