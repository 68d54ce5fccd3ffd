"""The page ``docs/config.md``, written from the schema and verl's tables: ``python -m cohort.config.document``."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cohort.config.convert import show
from cohort.config.reuse import DERIVED
from cohort.config.schema import Config
from cohort.config.schema.limits import Range
from cohort.config.tree import Key, field_docs, keys
from cohort.config.verl import COHORT_ONLY, DEVIATIONS, INERT, REFUSED, REFUSED_VALUES, RENAMED

HEAD = """\
# Configuration

This page is written by `python -m cohort.config.document`; a test keeps it equal to the code.

Every setting is a dotted key, with verl's names. `cohort train key=value ...` starts from the preset `quickstart`,
`--config-name` takes another preset (`grpo`, `dr_grpo`, `verl`) or a YAML file, and `python -m cohort.main_ppo` is the
same command from the preset `verl`. `key=value`, `+key=value` and `++key=value` mean the same; `~key` takes the
default below. Lists are `[a,b]`, mappings `{a: 1}`; both need quotes in a shell. A key that nobody knows, a value of
the wrong type, a value out of range and a contradiction are errors in one line, exit code 2. A key that can do
nothing is accepted with a printed line, or refused.

Batch sizes count **prompts**; micro batch sizes and token budgets are memory settings that change no number, and
nothing has to divide anything. `= key` in the column of defaults means: the value of that key.
"""


def main() -> None:
    """Prints the page."""
    sys.stdout.write(markdown())


def markdown() -> str:
    """The whole page."""
    blocks = [HEAD, *_sections()]
    blocks.append(
        _table("Keys that only Cohort has", ("key", "meaning"), ((_code(n), keys()[n].doc) for n in COHORT_ONLY))
    )
    blocks.append(
        _table(
            "Where the preset `verl` differs from verl v0.5",
            ("key", "verl", "here", "why"),
            ((_code(n), _code(theirs), _code(default_of(keys()[n])), why) for n, (theirs, why) in DEVIATIONS.items()),
        )
    )
    blocks.append(_table("Other names", ("key", "is read as"), ((_code(n), _code(r.to)) for n, r in RENAMED.items())))
    derived = ((_code(n), what) for n, what in DERIVED.items())
    blocks.append(_table("Words of TRL and ms-swift that need arithmetic", ("key", "what becomes of it"), derived))
    inert = ((_code(n), _safe(i.safe), i.why, i.instead if i.safe is not None else "") for n, i in INERT.items())
    blocks.append(
        _table("verl's keys that do nothing here", ("key", "accepted values", "why", "instead of other values"), inert)
    )
    refused = [(_code(n), r.why, r.instead) for n, r in REFUSED.items()]
    refused += [(_code(f"{n}={v}"), r.why, r.instead) for n, words in REFUSED_VALUES.items() for v, r in words.items()]
    blocks.append(_table("Refused by name", ("key", "why", "instead"), refused))
    return "\n".join(blocks)


def default_of(key: Key) -> str:
    """A key's default as it would be written, ``= other.key`` where it follows one, or ``must be given``."""
    if key.same_as is not None:
        return f"= {key.same_as}"
    return "must be given" if key.default is dataclasses.MISSING else show(key.default)


def _sections() -> Iterator[str]:
    groups: dict[str, list[Key]] = {}
    for key in keys().values():
        groups.setdefault(key.name.rpartition(".")[0], []).append(key)
    for section, members in groups.items():
        rows = ((_code(k.name.rpartition(".")[2]), _type(k.hint), _code(default_of(k)), k.doc) for k in members)
        top = field_docs(Config)[section] if "." not in section else ""
        yield _table(f"`{section}.*`", ("key", "type", "default", "meaning"), rows, intro=top)


def _type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        ranges = [mark.words() for mark in arguments[1:] if isinstance(mark, Range)]
        return " ".join([_type(arguments[0]), *ranges])
    if origin in (Union, types.UnionType):
        return " or ".join(_type(member) for member in arguments)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is not None:
        return "mapping"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return "{" + ", ".join(field.name for field in dataclasses.fields(hint)) + "}"
    return {bool: "bool", int: "whole number", float: "number", str: "text", types.NoneType: "null"}[hint]


def _safe(values: Sequence[object] | None) -> str:
    if values is None:
        return "any"
    shown = dict.fromkeys(show(value) for value in values if value not in ("", "null", (), {}))
    return ", ".join(shown) or "none"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(title: str, columns: Sequence[str], rows: Any, *, intro: str = "") -> str:
    lines = [
        f"## {title}",
        "",
        *([intro, ""] if intro else []),
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
