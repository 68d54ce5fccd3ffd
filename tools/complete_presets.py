"""Writes every preset anew with every key of the schema: what a preset does not set is written out as its default.

    PYTHONPATH=. python tools/complete_presets.py

Run it after a change of the schema. Comments at the top of a preset stay; keys that are gone are an error.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import yaml

from cohort.config.load import PRESETS
from cohort.config.tree import Key, flatten, keys, nest, plain


def complete(path: Path) -> None:
    """One preset with all keys, in the schema's order."""
    text = path.read_text()
    header = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    given = flatten(yaml.safe_load(text))
    unknown = given.keys() - keys().keys()
    if unknown:
        raise SystemExit(f"{path.name}: the schema has no {', '.join(sorted(unknown))}")
    values = {name: given.get(name, _written(key)) for name, key in keys().items()}
    path.write_text(f"{header}\n{yaml.safe_dump(nest(values), sort_keys=False, allow_unicode=True)}")


def _written(key: Key) -> object:
    """A default as YAML has it: ??? where the person must give a value, null where another key is followed."""
    if key.default is dataclasses.MISSING:
        return "???"
    return None if key.same_as is not None else plain(key.default)


if __name__ == "__main__":
    for preset in sorted(PRESETS.glob("*.yaml")):
        complete(preset)
