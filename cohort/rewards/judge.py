"""A generative judge: a language model reads question and answer, writes, and a number is read out of what it wrote."""

from __future__ import annotations

import asyncio
import difflib
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from cohort.errors import UserError
from cohort.protocols import Request, Sampler, Sampling
from cohort.rewards.base import Graded
from cohort.rewards.conversation import question
from cohort.types import Prompt, Rollout, SeedKey

TEMPLATE = """\
You grade answers.

Question:
{question}

Correct answer: {ground_truth}

Answer to grade:
{answer}

Is the answer right, complete and clear? Give a whole number from {worst} (useless) to {best} (perfect).
Explain in one sentence, then end with a line of the form
Score: NUMBER
"""
"""What a judge is asked where nobody wrote another template."""

PATTERN = r"Score:\s*(-?\d+(?:\.\d+)?)"
"""Finds the number in what the judge wrote; the last match counts."""

NAMES = ("question", "answer", "ground_truth", "worst", "best")
"""What a template may hold in braces, beside the data's columns. Other braces are text."""

_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")


class Draw(NamedTuple):
    """One judgement: its value from 0 to 1, or None, and what the judge wrote."""

    value: float | None
    text: str
    note: str = ""


class Judge:
    """Grades an answer by the mean of ``n`` judgements; a judgement is a number from ``worst`` to ``best``, as 0 to 1.

    A judgement without a number, or with one out of range, counts nowhere (part ``unparsed``: their share). If there is
    none that counts, the answer is unscorable, with the judge's text as the reason.

    The draws are a function of (seed, step, prompt, sample) of the answer and of the number of the judgement, in a
    stream of their own, so a run that is repeated is judged the same.

    Args:
        sampler: returns the model that judges; a function, as the policy's own sampler is made later than its judge.
        render: ids of a list of messages, with the answer's header opened.
        decode: text of ids, without special tokens.
        template: the judge's one user message; see ``NAMES``.
        pattern: regular expression whose first group is the number.
        worst: the number that means 0.
        best: the number that means 1.
        n: judgements per answer.
        sampling: how they are drawn; with temperature 0 they are all equal, so ``n`` should be 1.
        scale: factor of the mean.
        shift: summand.
        max_length: most tokens of a judge's prompt; a longer one is unscorable, since half a question is another one.
        name: tells the draws of several judges apart.

    Raises:
        UserError: a template without the answer, or with a name that is nearly one of ``NAMES``; a pattern without a
            group.
    """

    together = False

    def __init__(
        self,
        sampler: Callable[[], Sampler],
        *,
        render: Callable[[Sequence[dict[str, str]]], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        template: str = TEMPLATE,
        pattern: str = PATTERN,
        worst: float = 0.0,
        best: float = 10.0,
        n: int = 1,
        sampling: Sampling,
        scale: float = 1.0,
        shift: float = 0.0,
        max_length: int | None = None,
        name: str = "reward_model",
    ) -> None:
        check_template(template)
        self.sampler = sampler
        self.render = render
        self.decode = decode
        self.template = template
        self.pattern = compile_pattern(pattern)
        self.worst = worst
        self.best = best
        self.n = n
        self.sampling = sampling
        self.scale = scale
        self.shift = shift
        self.max_length = max_length
        self.stream = zlib.crc32(f"judge {name}".encode())

    async def grade(self, rollouts: Sequence[Rollout]) -> list[Graded]:
        """One outcome per rollout, in order. ``rollout.text`` is the answer."""
        return list(await asyncio.gather(*(self._grade(rollout) for rollout in rollouts)))

    async def _grade(self, rollout: Rollout) -> Graded:
        ids = tuple(self.render([{"role": "user", "content": self.fill(rollout)}]))
        if self.max_length is not None and len(ids) > self.max_length:
            return Graded(
                None, reason=f"the judge's prompt has {len(ids)} tokens, reward_model.max_length={self.max_length}"
            )
        draws = await asyncio.gather(*(self._draw(ids, key) for key in self.keys(rollout)))
        values = [draw.value for draw in draws if draw.value is not None]
        parts: dict[str, float | str] = {"unparsed": 1 - len(values) / self.n, "said": draws[0].text}
        if not values:
            return Graded(None, parts, f"{draws[0].note}; the judge wrote:\n{draws[0].text}")
        return Graded(self.scale * fmean(values) + self.shift, parts)

    def keys(self, rollout: Rollout) -> list[SeedKey]:
        """Names of the draws of each judgement."""
        key = rollout.key or SeedKey(seed=0, step=0, prompt=rollout.prompt.row, sample=rollout.sample)
        return [replace(key, seed=key.seed ^ self.stream, sample=key.sample * self.n + i) for i in range(self.n)]

    async def _draw(self, ids: tuple[int, ...], key: SeedKey) -> Draw:
        completion = await self.sampler().complete(Request(ids=ids, sampling=self.sampling, key=key))
        if not completion.ids:
            return Draw(None, "", f"the judge's prompt of {len(ids)} tokens leaves no room in its model")
        return self.read(self.decode(completion.ids))

    def read(self, text: str) -> Draw:
        """The judgement that is in ``text``."""
        found = [match for match in self.pattern.finditer(text) if match.group(1) is not None]
        if not found:
            return Draw(None, text, f"no match of {self.pattern.pattern}")
        try:
            number = float(found[-1].group(1))
        except ValueError:
            return Draw(None, text, f"{found[-1].group(1)!r} is no number")
        if not min(self.worst, self.best) <= number <= max(self.worst, self.best):
            return Draw(None, text, f"{number:g} is not from {self.worst:g} to {self.best:g}")
        return Draw((number - self.worst) / (self.best - self.worst), text)

    def fill(self, rollout: Rollout) -> str:
        """The template with this answer in it. What is filled in is not looked at again."""
        prompt = rollout.prompt
        values = {
            **_texts(prompt),
            "question": question(prompt),
            "answer": rollout.text,
            "ground_truth": "" if prompt.ground_truth is None else str(prompt.ground_truth),
            "worst": f"{self.worst:g}",
            "best": f"{self.best:g}",
        }
        return _PLACE.sub(lambda place: values.get(place.group(1), place.group(0)), self.template)


def _texts(prompt: Prompt) -> dict[str, str]:
    return {name: str(value) for name, value in prompt.columns.items() if value is not None}


def check_template(template: str, key: str = "reward_model.judge.template") -> None:
    """Refuses a template that cannot be meant.

    Raises:
        UserError: without ``{answer}``, or with a name in braces that is nearly one of ``NAMES``.
    """
    names = _PLACE.findall(template)
    for name in names:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.75)
        if near and name not in NAMES:
            raise UserError(f"{key} has {{{name}}}; did you mean {{{near[0]}}}?")
    if "answer" not in names:
        raise UserError(f"{key} has no {{answer}} in it: the judge would not see what it grades")


def compile_pattern(pattern: str, key: str = "reward_model.judge.pattern") -> re.Pattern[str]:
    """The regular expression.

    Raises:
        UserError: if it is none, or has no group.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"{key}={pattern}: not a regular expression ({error})") from error
    if not compiled.groups:
        raise UserError(f"{key}={pattern}: put the number in brackets, as in {PATTERN}")
    return compiled
