"""Built-in reward functions, and which of them grades which data source. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

from cohort.errors import UserError
from cohort.rewards.base import RewardFunction

REWARDS: dict[str, str] = {
    "arithmetic": "cohort.rewards.arithmetic:compute_score",
    "code": "cohort.rewards.code:compute_score",
    "cosine_length": "cohort.rewards.length:cosine_length",
    "exact_match": "cohort.rewards.exact_match:compute_score",
    "format": "cohort.rewards.format:compute_score",
    "gsm8k": "cohort.rewards.gsm8k:compute_score",
    "gsm8k_flexible": "cohort.rewards.gsm8k:flexible",
    "math": "cohort.rewards.math:compute_score",
    "overlong": "cohort.rewards.length:overlong",
    "react_format": "cohort.rewards.format:react",
    "reasoning_gym": "cohort.rewards.reasoning_gym:compute_score",
    "repetition": "cohort.rewards.length:repetition",
    "soft_overlong": "cohort.rewards.length:overlong",
    "think_answer_format": "cohort.rewards.format:think_answer",
}
"""Name -> ``module:function``."""

DATA_SOURCES: dict[str, str] = {
    "cohort/arithmetic": "arithmetic",
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "reasoning_gym/*": "reasoning_gym",
    "codecontests": "code",
    "apps": "code",
    "codeforces": "code",
    "taco": "code",
}
"""``data_source`` of a row -> name of its reward; ``x/*`` stands for everything under x/."""

HOW_TO = "give your own with custom_reward_function.path=FILE.py (def compute_score(solution_str, ground_truth): ...)"


def register_reward(name: str, target: str, *, data_sources: Iterable[str] = ()) -> None:
    """Adds a built-in reward (``module:function``) and the data sources that it grades."""
    REWARDS[name] = target
    DATA_SOURCES.update(dict.fromkeys(data_sources, name))


@cache
def _function(target: str) -> Callable[..., object]:
    module, _, name = target.partition(":")
    return vars(import_module(module))[name]


def _prepare(target: str, settings: Mapping[str, Any]) -> None:
    """Lets a reward look, before the start, whether it can work here: ``prepare(settings)`` of its module, if any."""
    prepare = vars(import_module(target.partition(":")[0])).get("prepare")
    if prepare is not None:
        prepare(settings)


def built_in(
    name: str,
    reward_kwargs: Mapping[str, Any] | None = None,
    *,
    weight: float = 1.0,
    of_run: Mapping[str, Any] | None = None,
) -> RewardFunction:
    """A built-in reward by name.

    Args:
        name: a key of ``REWARDS``.
        reward_kwargs: its settings.
        weight: factor of its value in the total.
        of_run: what the run knows (``max_response_length``), for parameters of that name which the settings leave open.

    Raises:
        UserError: naming the rewards there are; a reward that cannot work here.
    """
    if name not in REWARDS:
        near = difflib.get_close_matches(name, REWARDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"there is no reward {name!r}; built in are {', '.join(REWARDS)}{hint}, or {HOW_TO}")
    function = _function(REWARDS[name])
    known = {key: value for key, value in (of_run or {}).items() if key in signature(function).parameters}
    _prepare(REWARDS[name], reward_kwargs or {})
    return RewardFunction(function=function, name=name, weight=weight, kwargs={**known, **(reward_kwargs or {})})


@dataclass(frozen=True)
class ByDataSource:
    """Sends each row to the reward of its data source, with those of verl's four arguments that it takes.

    Attributes:
        routes: data source -> ``module:function``.
    """

    routes: Mapping[str, str]

    def __post_init__(self) -> None:
        self._load()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load()

    def _load(self) -> None:
        """Imports the graders, in a worker too, before its first answer is timed."""
        for target in self.routes.values():
            _accepted(target)

    def __call__(self, data_source: str, solution_str: str, ground_truth: object, extra_info: dict[str, Any]) -> object:
        """The score that the row's own reward gives."""
        target = self.routes[data_source]
        values = {
            "data_source": data_source,
            "solution_str": solution_str,
            "ground_truth": ground_truth,
            "extra_info": extra_info,
        }
        return _function(target)(**{name: values[name] for name in _accepted(target)})


@cache
def _accepted(target: str) -> tuple[str, ...]:
    """Which of verl's four arguments a built-in takes."""
    verl = ("data_source", "solution_str", "ground_truth", "extra_info")
    return tuple(name for name in verl if name in signature(_function(target)).parameters)


def by_data_source(sources: Iterable[str], *, name: str = "reward") -> RewardFunction:
    """The default reward: each row is graded by the built-in reward of its ``data_source``.

    Args:
        sources: every data source in the data, training and validation.
        name: its name in the logs.

    Raises:
        UserError: naming the sources that no built-in reward knows; a reward that cannot work here.
    """
    present = sorted(set(sources))
    routes = {source: route for source in present if (route := _route(source)) is not None}
    unknown = [source for source in present if source not in routes]
    if unknown:
        what = ", ".join(unknown)
        lack = "the data has no data_source" if unknown == ["unknown"] else f"no built-in reward for data_source {what}"
        raise UserError(f"{lack} (known: {', '.join(DATA_SOURCES)}); {HOW_TO}")
    for route in {*routes.values()}:
        _prepare(REWARDS[route], {})
    return RewardFunction(function=ByDataSource({s: REWARDS[r] for s, r in routes.items()}), name=name)


def _route(source: str) -> str | None:
    if source in DATA_SOURCES:
        return DATA_SOURCES[source]
    folder = source.partition("/")[0] + "/*"
    return DATA_SOURCES.get(folder) if "/" in source else None
