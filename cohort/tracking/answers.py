"""A few answers of a step for a person to read: the best and the worst of one group, and one at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from cohort.tracking import wording

if TYPE_CHECKING:
    from cohort.types import Group, Prompt, Rollout


def choose(groups: Sequence[Group], step: int) -> list[tuple[str, Rollout]]:
    """(label, answer): best and worst of a group whose scores differ, and a random one of the whole step.

    The choice is a function of the step alone, so a run shows the same answers when it is repeated.
    """
    draw = random.Random(step)
    scored = [[r for r in group.rollouts if value(r) is not None] for group in groups]
    scored = [rollouts for rollouts in scored if rollouts]
    if not scored:
        return [("any", draw.choice(group.rollouts)) for group in groups[:1]]
    telling = [rollouts for rollouts in scored if spread(rollouts) > 0]
    shown = draw.choice(telling or scored)
    best, worst = max(shown, key=_rank), min(shown, key=_rank)
    others = [r for rollouts in scored for r in rollouts if r is not best and r is not worst]
    chosen = [("best", best), ("worst", worst)] if telling else [("typical", best)]
    return chosen + ([("random", draw.choice(others))] if others else [])


def some(rollouts: Sequence[Rollout], number: int) -> list[tuple[str, Rollout]]:
    """(label, answer): ``number`` answers of a validation, the same ones each time, so that they can be compared."""
    positions = random.Random(42).sample(range(len(rollouts)), min(number, len(rollouts)))
    return [("answer", rollouts[i]) for i in sorted(positions)]


def value(rollout: Rollout) -> float | None:
    """The score's value, None where the answer was not graded."""
    return rollout.score.value if rollout.score else None


def spread(rollouts: Sequence[Rollout]) -> float:
    """Largest minus smallest score of graded answers."""
    values = [_rank(rollout) for rollout in rollouts]
    return max(values) - min(values)


def _rank(rollout: Rollout) -> float:
    found = value(rollout)
    return float("-inf") if found is None else found


def render(chosen: Sequence[tuple[str, Rollout]], *, width: int, newline: str) -> list[Text]:
    """The answers as lines; a question is said once for the answers that follow it."""
    lines: list[Text] = []
    asked = None
    for label, rollout in chosen:
        if rollout.prompt is not asked:
            asked = rollout.prompt
            lines.append(_question(asked, width, newline))
        lines += _answer(label, rollout, width, newline)
    return lines


def _question(prompt: Prompt, width: int, newline: str) -> Text:
    key = prompt.ground_truth
    told = f"  [{key}]" if isinstance(key, (str, int, float)) and 0 < len(str(key)) <= 24 else ""
    told = wording.safe(told, newline=newline)
    told = f"  {told}" if told else ""
    text = wording.shortened(wording.safe(question(prompt), newline=newline), width - 5 - len(told))
    return Text.assemble("  ", ("Q", "bold"), f"  {text}", (told, "dim"))


def question(prompt: Prompt) -> str:
    """What was asked last, in the person's words where they are known."""
    content = prompt.messages[-1].get("content") if prompt.messages else None
    return content if isinstance(content, str) else prompt.text


def _answer(label: str, rollout: Rollout, width: int, newline: str) -> list[Text]:
    score = value(rollout)
    told = "   -" if score is None else f"{score:4.2f}"
    colour = "yellow" if score is None else "green" if score > 0 else "red"
    reason = str(rollout.finish_reason)
    tokens = f"{len(rollout.response_ids):,} tok"
    head = Text.assemble(
        f"     {label:<8}",
        (f"{told:>6}", colour),
        "  ",
        (f"{reason:<6}", "yellow" if reason == "length" else "dim"),
        (f"{tokens:>10}", "dim"),
    )
    text = wording.safe(rollout.text, newline=newline) or "(nothing)"
    if len(text) <= width - len(head) - 3:
        return [Text.assemble(head, "   ", text)]
    return [head, *(Text(f"       {line}") for line in wording.block(text, width - 9, 3))]
