"""The schema as a flat table of dotted keys, and back: flatten, nest, and the meaning of each key."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_type_hints

from cohort.config.schema import Config
from cohort.config.verl import RENAMED
from cohort.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """One key of the schema.

    Attributes:
        name: the dotted key.
        hint: its type, ranges included.
        default: what it is if nobody gives it; ``dataclasses.MISSING`` if it must be given.
        same_as: the dotted key whose value it takes where it is not given.
        doc: its meaning.
    """

    name: str
    hint: Any
    default: Any
    same_as: str | None
    doc: str


@cache
def keys() -> Mapping[str, Key]:
    """Every key of the schema in the order of the files."""
    return {key.name: key for key in _walk(Config, "")}


@cache
def sections() -> frozenset[str]:
    """Dotted names that are not keys but have keys below them."""
    parts = (name.split(".")[:depth] for name in keys() for depth in range(1, name.count(".") + 1))
    return frozenset(".".join(part) for part in parts)


def _walk(cls: type, prefix: str) -> Iterator[Key]:
    hints = hints_of(cls)
    docs = field_docs(cls)
    for field in dataclasses.fields(cls):
        name, hint = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _walk(hint, name + ".")
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        yield Key(name=name, hint=hint, default=default, same_as=field.metadata.get("same_as"), doc=docs[field.name])


@cache
def hints_of(cls: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields, ranges included."""
    return get_type_hints(cls, include_extras=True)


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """The string under each field of a dataclass, those that it inherits included.

    Raises:
        TypeError: for a field without one; the schema is documented whole or not at all.
    """
    docs: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        if dataclasses.is_dataclass(part):
            docs |= _own_docs(part)
    return docs


def _own_docs(cls: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, following in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)):
            raise TypeError(f"{cls.__name__}.{statement.target.id} has no docstring under it")
        docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def flatten(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Nested or dotted keys as dotted ones. A key whose value is a mapping by type stays whole.

    Raises:
        UserError: if a key is given twice with different values, nested and dotted.
    """
    flat: dict[str, Any] = {}
    for name, value in _leaves(mapping, ""):
        if name in flat and flat[name] != value:
            raise UserError(f"{name}={flat[name]} is also given as {name}={value}; give it once")
        flat[name] = value
    return flat


def _leaves(mapping: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for part, value in mapping.items():
        name = f"{prefix}{part}"
        if isinstance(value, Mapping) and value and name not in keys() and name not in RENAMED:
            yield from _leaves(value, name + ".")
        elif value is None and name in sections():
            continue  # an empty section of a YAML file
        elif isinstance(value, Mapping) and name in sections():
            continue
        else:
            yield name, value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested dicts."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def values(config: Config) -> dict[str, Any]:
    """Every key of a config with its value; parts of lists as plain dicts."""
    return {name: plain(_get(config, name)) for name in keys()}


def _get(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def plain(value: Any) -> Any:
    """A value of the config as YAML can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value
