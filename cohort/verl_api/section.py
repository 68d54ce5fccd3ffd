"""A section of the configuration as code written for verl reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any


class Section(Mapping[str, Any]):
    """Attribute, item and ``.get`` access to nested values.

    Args:
        values: the keys of the section; mappings become sections.
        where: the section's dotted name, for messages.
        **more: further values, beside and before the keys.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config", **more: Any) -> None:
        self.__dict__["_where"] = where
        self.__dict__["_values"] = {**values, **more}

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return Section(value, f"{self._where}.{name}") if isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__dict__.get("_values", {}):
            known = ", ".join(self.__dict__.get("_values", {}))
            raise AttributeError(f"{self.__dict__.get('_where', 'config')} has no {name}; it has: {known}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self._where}.{name}: the configuration of a run does not change")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{self._where}: {self._values}"

    def having(self, **more: Any) -> Section:
        """The section with further values."""
        return Section(self._values, self._where, **more)


def read(config: Any, name: str, default: Any) -> Any:
    """A setting of whatever a person passes as a config: a mapping, a dataclass, a DictConfig; ``default`` for none.

    A config that is None, lacks the name or has null under it gives the default.
    """
    if config is None:
        return default
    if isinstance(config, Mapping):
        value = config.get(name)
    else:
        value = attrgetter(name)(config) if hasattr(config, name) else None
    return default if value is None else value
