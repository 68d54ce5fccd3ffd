"""A reward function from a Python file: ``custom_reward_function.path`` and ``.name``. Imports no torch."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cohort.errors import UserError
from cohort.rewards.base import RewardFunction

KEY = "custom_reward_function"


@dataclass(frozen=True)
class FileFunction:
    """A function of a file whose text was read once: workers that start later run the same text.

    Attributes:
        path: the file; its folder can be imported from.
        name: the function.
        text: the source.
    """

    path: str
    name: str
    text: str

    def __call__(self) -> Callable[..., object]:
        """Runs the file's text and returns the function."""
        return vars(self.module())[self.name]

    def module(self) -> ModuleType:
        """The module, made once per process."""
        digest = hashlib.sha1(f"{self.path}\0{self.text}".encode()).hexdigest()[:12]
        name = f"cohort_reward_{Path(self.path).stem}_{digest}"
        if name in sys.modules:
            return sys.modules[name]
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # last, so that a neighbour never shadows an installed module
        spec = importlib.util.spec_from_loader(name, loader=None, origin=self.path)
        if spec is None:
            raise ImportError(f"no module can be made of {self.path}")
        module = importlib.util.module_from_spec(spec)
        module.__file__ = self.path
        sys.modules[name] = module
        try:
            exec(compile(self.text, self.path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        return module


def load_custom(
    path: str | Path,
    name: str = "compute_score",
    reward_kwargs: Mapping[str, Any] | None = None,
    *,
    weight: float = 1.0,
) -> RewardFunction:
    """The function ``name`` of the file ``path``.

    Raises:
        UserError: no such file, a file that does not run (with the line), or no such function (with those
            there are).
    """
    source = read_object(path, name, path_key=f"{KEY}.path", name_key=f"{KEY}.name")
    return RewardFunction(function=source(), name=name, weight=weight, kwargs=dict(reward_kwargs or {}), origin=source)


def read_object(path: str | Path, name: str, *, path_key: str, name_key: str) -> FileFunction:
    """The function or class ``name`` of the file ``path``; calling the result returns it.

    Args:
        path: a Python file.
        name: what is wanted of it.
        path_key: the dotted key that named the file, for messages.
        name_key: the dotted key that named the object.

    Raises:
        UserError: no such file, a file that does not run (with the line), or nothing of that name (with what there is).
    """
    place = Path(os.path.abspath(os.path.expanduser(path)))
    if not place.is_file():
        raise UserError(f"{path_key}={path}: no such file")
    try:
        source = FileFunction(str(place), name, place.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path_key}={path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    try:
        found = vars(source.module())
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise UserError(f"{path_key}={path} line {error.lineno}: {error.msg}: {line}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place)]
        at = f" line {lines[-1]}" if lines else ""
        raise UserError(f"{path_key}={path}{at}: {type(error).__name__}: {error}") from error
    if not callable(found.get(name)):
        module_name = source.module().__name__
        own = [n for n, v in found.items() if callable(v) and not n.startswith("_") and v.__module__ == module_name]
        near = difflib.get_close_matches(name, own, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        kind = "class" if name_key.endswith("class_name") else "function"
        raise UserError(f"{name_key}={name}: {path} has no such {kind}; it has: {', '.join(own) or 'none'}{hint}")
    return source
