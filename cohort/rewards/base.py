"""What a reward function is: which names it may ask for and what it may return. Imports no torch.

    def reward(solution_str, ground_truth, question):        # any of the names below, any data column
        return float(solution_str.strip() == ground_truth)   # a number, a bool, a dict with `score`, or None

A function is called by parameter name. It may ask for

    data_source, solution_str, ground_truth, extra_info      verl's four; extra_info also has num_turns
    text            the response without special tokens; the same as solution_str
    ids             its token ids, a list
    response_length tokens that the model wrote, over all turns; what tools wrote does not count
    prompt          the prompt as the data has it: a string or messages
    prompt_text     the exact text that was sent, special tokens included
    messages        the prompt as messages, a list
    turns           messages in the conversation, the prompt's included
    finish_reason   "stop", "length" or "abort"
    columns         every column of the data row, a dict
    NAME            the data column NAME; where a column has one of the names above, the meaning above wins

and with ``**kwargs`` it gets all of them. Settings (``reward_kwargs``) win over everything.

It returns a number; or a dict with ``score``, whose other entries are logged as parts; or a tuple, whose
first element counts; or None, for an answer that cannot be graded. NaN, infinities and everything else
cannot be graded either. Raising is the same as None, with the traceback as reason. None of these is 0.

One of several rewards may have nothing to say about a row: ``{"applies": False}`` leaves it out of the sum, which is
then that of the others, and out of the logs. A row that no reward applies to cannot be graded.
"""

from __future__ import annotations

import bdb
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, SupportsFloat

from cohort.errors import UserError

PROVIDED = (
    "data_source", "solution_str", "ground_truth", "extra_info", "text", "ids", "response_length", "prompt",
    "prompt_text", "messages", "turns", "finish_reason", "columns",
)  # fmt: skip
"""Names that every reward can ask for; data columns come on top."""


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """A function that grades, under a name and with a weight.

    Attributes:
        function: plain or ``async def``; see the module's text for its parameters and results.
        name: the name of its part in the logs.
        weight: factor of its value in the total; 0 watches without training on it.
        kwargs: settings handed to every call.
        origin: where a worker loads it from, instead of receiving it pickled; ``origin()`` returns it.
    """

    function: Callable[..., object]
    name: str
    weight: float = 1.0
    kwargs: Mapping[str, object] = field(default_factory=dict)
    origin: Callable[[], Callable[..., object]] | None = None

    @property
    def is_async(self) -> bool:
        """Whether it is ``async def``: such a function runs in the trainer's event loop."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(type(self.function).__call__)


def as_reward_function(reward: RewardFunction | Callable[..., object]) -> RewardFunction:
    """A bare function as a ``RewardFunction`` of weight 1 under its own name."""
    if isinstance(reward, RewardFunction):
        return reward
    if not callable(reward):
        raise UserError(f"a reward must be a function, not {type(reward).__name__}")
    inner = reward.func if isinstance(reward, partial) else reward
    name = inner.__name__ if inspect.isroutine(inner) else type(inner).__name__
    return RewardFunction(function=reward, name=name.strip("<>"))


class Parameters(NamedTuple):
    """What a function asks for."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    everything: bool

    def wanted(self) -> frozenset[str] | None:
        """The names to send; None for all there are."""
        return None if self.everything else frozenset(self.required + self.optional)


def parameters(reward: RewardFunction) -> Parameters:
    """The parameters of a reward, less those that its settings fill.

    Raises:
        UserError: positional-only parameters, a setting that it does not take, or no readable signature.
    """
    try:
        found = inspect.signature(reward.function).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"reward `{reward.name}`: its parameters cannot be read ({error}); wrap it in a def") from error
    kinds = inspect.Parameter
    required, optional = [], []
    for name, parameter in found.items():
        if parameter.kind is kinds.POSITIONAL_ONLY:
            raise UserError(
                f"reward `{reward.name}`: parameter `{name}` is positional-only; rewards are called by name"
            )
        if parameter.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
            (required if parameter.default is kinds.empty else optional).append(name)
    everything = any(parameter.kind is kinds.VAR_KEYWORD for parameter in found.values())
    unknown = [name for name in reward.kwargs if name not in found and not everything]
    if unknown:
        takes = ", ".join([*required, *optional]) or "nothing"
        raise UserError(f"reward `{reward.name}` takes no `{unknown[0]}` (reward_kwargs); it takes: {takes}")
    kept = [tuple(name for name in names if name not in reward.kwargs) for names in (required, optional)]
    return Parameters(kept[0], kept[1], everything)


class Graded(NamedTuple):
    """The outcome of one function on one answer: ``Score`` without torch behind it."""

    value: float | None
    parts: dict[str, float | str] = {}  # noqa: RUF012 - a NamedTuple default that nobody writes to
    reason: str = ""
    applies: bool = True


class Call(NamedTuple):
    """One function as a worker holds it."""

    name: str
    function: Callable[..., object]
    kwargs: Mapping[str, object]
    wanted: frozenset[str] | None


def arguments(call: Call, values: Mapping[str, object]) -> dict[str, object]:
    """The keyword arguments of one call, out of all values."""
    chosen = {name: value for name, value in values.items() if call.wanted is None or name in call.wanted}
    return {**chosen, **call.kwargs}


def grade(call: Call, values: Mapping[str, object]) -> Graded:
    """Calls a plain function. What it raises becomes the reason, with the frames of the function alone."""
    try:
        result = call.function(**arguments(call, values))
    except bdb.BdbQuit:  # the person left the debugger
        raise
    except (Exception, SystemExit) as error:
        return Graded(None, reason=user_traceback(error))
    return graded(result)


def grade_all(calls: Sequence[Call], values: Mapping[str, object]) -> list[Graded]:
    """One outcome per function."""
    return [grade(call, values) for call in calls]


def user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` without the frame that caught it."""
    if error.__traceback__ is not None:
        error = error.with_traceback(error.__traceback__.tb_next)
    return "".join(traceback.format_exception(error)).rstrip()


def graded(result: object) -> Graded:
    """A function's result as an outcome; see the module's text."""
    if isinstance(result, tuple) and result:
        result = result[0]
    if isinstance(result, Mapping):
        return _graded_mapping(result)
    value, reason = _number(result)
    return Graded(value, reason=reason)


def _graded_mapping(result: Mapping[Any, object]) -> Graded:
    parts = {str(name): _part(value) for name, value in result.items() if value is not None and name != "applies"}
    if _number(result.get("applies", True))[0] == 0:
        return Graded(None, parts, "the reward does not apply to this row", applies=False)
    if "score" not in result:
        return Graded(None, reason=f"the reward returned a dict without `score`; it has: {', '.join(map(str, result))}")
    value, reason = _number(result["score"])
    said = result.get("reason")
    return Graded(value, parts, said if value is None and isinstance(said, str) else reason)


def _part(value: object) -> float | str:
    try:
        return float(value) if isinstance(value, SupportsFloat) else str(value)
    except (TypeError, ValueError, RuntimeError):  # an array or tensor of several values
        return str(value)


def _number(value: object) -> tuple[float | None, str]:
    """A finite number, or None and the reason why it is not one."""
    if value is None:
        return None, "the reward returned None"
    if not isinstance(value, SupportsFloat):
        return (
            None,
            f"the reward returned {value!r:.80} ({type(value).__name__}); a number, a dict with `score` or None",
        )
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        return None, f"the reward returned {type(value).__name__} that is not one number ({error})"
    return (number, "") if math.isfinite(number) else (None, f"the reward returned {number}")
