"""Grades rollouts while others are still sampled: plain functions in workers, async ones in the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import cloudpickle

from cohort.errors import UserError
from cohort.rewards.base import (
    Call,
    Graded,
    RewardFunction,
    arguments,
    as_reward_function,
    grade_all,
    graded,
    parameters,
    user_traceback,
)
from cohort.rewards.check import check_rewards
from cohort.rewards.conversation import answer_text
from cohort.rewards.pool import FunctionsBroken, WorkerLost, WorkerPool
from cohort.rewards.worker import Setup
from cohort.types import Author, Prompt, Rollout, Score

logger = logging.getLogger(__name__)


class RewardRunner:
    """Grades one rollout at a time, many at once. Implements ``protocols.Reward``.

    The value is the sum of weight x value over the functions that apply to the row. Where one of them cannot
    grade, the whole answer is unscorable: part of a sum is another objective. With one function its dict entries are
    the parts; with several, each function's value is a part under its name and its entries are ``name/entry``.

    Args:
        functions: rewards, or bare functions of weight 1; see ``cohort.rewards.base`` for what they get.
        num_workers: the most processes for plain functions, started when needed; None takes one per core,
            from 2 to 8; 0 calls them in the trainer's process, where breakpoints work and time has no limit.
        timeout: seconds for one answer, all plain functions together, each async one alone; None for no
            limit.
        prefill: what the chat template writes into the answer (``data.tokenizer.prefill``); put before the
            text that rewards see where the prompt ends with it.
        live: objects that async functions may ask for by name, such as ``sampler`` and ``tokenizer``.
        say: where the one notice about ``num_workers=0`` goes.

    Raises:
        UserError: no function, a signature that cannot be used, a function that cannot be sent to a worker.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction | Callable[..., object]],
        *,
        num_workers: int | None = None,
        timeout: float | None = 10.0,
        prefill: str = "",
        live: Mapping[str, object] | None = None,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        if not functions:
            raise UserError("there is no reward function")
        self.functions = _distinct([as_reward_function(function) for function in functions])
        self.timeout = timeout
        self.prefill = prefill
        self.live = dict(live or {})
        self._calls = [Call(f.name, f.function, f.kwargs, parameters(f).wanted()) for f in self.functions]
        self._plain = [i for i, function in enumerate(self.functions) if not function.is_async]
        self._async = [i for i, function in enumerate(self.functions) if function.is_async]
        self._pool = None
        if num_workers is None:
            num_workers = min(8, max(2, os.cpu_count() or 2))
        if self._plain and num_workers:
            shipped = [_shipped(self.functions[i], self._calls[i]) for i in self._plain]
            self._pool = WorkerPool(Setup(cloudpickle.dumps(shipped), timeout), size=num_workers)
        elif self._plain:
            say(
                "reward.num_workers=0: plain rewards run inside the trainer, where breakpoints work; "
                "sampling waits for them and there is no time limit"
            )

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Compares what the rewards ask for with what the data has.

        Raises:
            UserError: naming what is missing and what there is.
        """
        check_rewards(self.functions, prompts, self.live)

    async def score(self, rollout: Rollout) -> Score:
        """Grades one trajectory. Whatever the functions do, the outcome is a ``Score``."""
        outcomes, seconds = await self.outcomes(rollout)
        return combine(self.functions, outcomes, seconds)

    async def outcomes(self, rollout: Rollout) -> tuple[list[Graded], float]:
        """What each function says about one trajectory, in their order, and the seconds that took."""
        values = call_values(rollout, self.prefill)
        if self._async:
            (plain, seconds), others = await asyncio.gather(
                self._grade_plain(values),
                asyncio.gather(*(self._grade_async(self._calls[i], values) for i in self._async)),
            )
        else:  # no further task, and a shorter stack above a breakpoint
            (plain, seconds), others = await self._grade_plain(values), []
        outcomes = dict(zip(self._plain, plain, strict=True))
        outcomes.update(zip(self._async, [outcome for outcome, _ in others], strict=True))
        seconds = max([seconds, *(elapsed for _, elapsed in others)])
        return [outcomes[i] for i in range(len(outcomes))], seconds

    async def _grade_plain(self, values: Mapping[str, object]) -> tuple[list[Graded], float]:
        if not self._plain:
            return [], 0.0
        started = time.perf_counter()
        calls = [self._calls[i] for i in self._plain]
        if self._pool is None:
            return grade_all(calls, values), time.perf_counter() - started
        try:
            wanted = {name: v for name, v in values.items() if any(c.wanted is None or name in c.wanted for c in calls)}
            request = cloudpickle.dumps(wanted)
        except Exception as error:
            return [Graded(None, reason=f"the data row cannot be sent to a worker\n{user_traceback(error)}")] * len(
                calls
            ), 0.0
        try:
            return await self._pool.grade(request)
        except WorkerLost as error:
            return [Graded(None, reason=str(error))] * len(calls), error.seconds
        except FunctionsBroken as error:
            reason = f"the reward cannot be loaded in a worker process\n{error}"
            return [Graded(None, reason=reason)] * len(calls), 0.0

    async def _grade_async(self, call: Call, values: Mapping[str, object]) -> tuple[Graded, float]:
        started = time.perf_counter()
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                result = await call.function(**arguments(call, {**values, **self.live}))  # pyright: ignore[reportGeneralTypeIssues]
            outcome = graded(result)
        except Exception as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            text = f"timeout: the reward took more than {self.timeout:g} s" if late else user_traceback(error)
            outcome = Graded(None, reason=text)
        return outcome, time.perf_counter() - started

    def close(self) -> None:
        """Ends the worker processes. May be called twice."""
        if self._pool is not None:
            self._pool.close()


def _distinct(functions: Sequence[RewardFunction]) -> list[RewardFunction]:
    """The functions under names that differ."""
    taken: dict[str, int] = {}
    out = []
    for function in functions:
        number = taken[function.name] = taken.get(function.name, 0) + 1
        out.append(function if number == 1 else replace(function, name=f"{function.name}_{number}"))
    return out


def _shipped(reward: RewardFunction, call: Call) -> tuple[object, ...]:
    """What a worker needs of one function; checked here, so that one which cannot travel is said by name."""
    function = None if reward.origin else reward.function
    item = (call.name, function, dict(call.kwargs), call.wanted, reward.origin)
    try:
        cloudpickle.dumps(item)
    except Exception as error:
        raise UserError(
            f"reward `{reward.name}` cannot be sent to a worker process ({error}); keep what it needs inside the "
            "function, put it in a file (custom_reward_function.path), or set reward.num_workers=0"
        ) from error
    return item


def call_values(rollout: Rollout, prefill: str = "") -> dict[str, object]:
    """Everything that a reward may ask for, by name; see ``cohort.rewards.base``."""
    prompt = rollout.prompt
    text = answer_text(rollout, prefill)
    info = prompt.columns.get("extra_info")
    messages = [dict(message) for message in prompt.messages]
    return {
        **prompt.columns,
        "prompt": prompt.columns.get("prompt", messages or prompt.text),
        "prompt_text": prompt.text,
        "messages": messages,
        "data_source": prompt.data_source,
        "ground_truth": prompt.ground_truth,
        "extra_info": {**(info if isinstance(info, Mapping) else {}), "num_turns": rollout.turns},
        "solution_str": text,
        "text": text,
        "ids": list(rollout.response_ids),
        "response_length": sum(author is Author.MODEL for author in rollout.authors),
        "turns": rollout.turns,
        "finish_reason": str(rollout.finish_reason) if rollout.finish_reason else None,
        "columns": dict(prompt.columns),
    }


def combine(
    functions: Sequence[RewardFunction], outcomes: Sequence[Graded], seconds: float = 0.0, *, named: bool = False
) -> Score:
    """One score from all outcomes: sum of weight x value over those that apply, unscorable if one of them is.

    With ``named`` it is a part of a larger sum: a single function's parts have its name too, and none need apply.
    """
    if len(functions) == 1 and not named:
        (function,), (outcome,) = functions, outcomes
        total = None if outcome.value is None else function.weight * outcome.value
        return Score(value=total, parts=outcome.parts, reason=outcome.reason, seconds=seconds)
    total, parts, reasons = 0.0, {}, []
    for function, outcome in zip(functions, outcomes, strict=True):
        if not outcome.applies:
            continue
        parts.update({f"{function.name}/{name}": part for name, part in outcome.parts.items() if name != "score"})
        if outcome.value is None:
            reasons.append(f"{function.name}: {outcome.reason}")
        else:
            parts[function.name] = outcome.value
            total += function.weight * outcome.value
    if not named and not any(outcome.applies for outcome in outcomes):
        reasons.append("no reward applies to this row")
    return Score(value=None if reasons else total, parts=parts, reason="\n".join(reasons), seconds=seconds)
