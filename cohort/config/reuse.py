"""Words of TRL and ms-swift for how often rollouts are used, which are arithmetic over our keys.

generation_batch_size         answers per rollout: data.train_batch_size x rollout.n
steps_per_generation          micro-steps that a rollout serves: with gradient_accumulation_steps of them per update
                              there are steps_per_generation / gradient_accumulation_steps updates in a pass, so
                              ppo_mini_batch_size is data.train_batch_size over that
num_iterations                mu, passes over a rollout: another name of actor.ppo_epochs, in ``verl.RENAMED``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.config.convert import MISSING, convert, show
from cohort.config.schema.limits import Count
from cohort.config.tree import keys
from cohort.errors import UserError

PROMPTS, N = "data.train_batch_size", "actor_rollout_ref.rollout.n"
MINIBATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"

DERIVED: Mapping[str, str] = {
    "generation_batch_size": f"{PROMPTS} = generation_batch_size / {N}",
    "steps_per_generation": f"{MINIBATCH} = {PROMPTS} / steps_per_generation (x gradient_accumulation_steps)",
    "gradient_accumulation_steps": "read beside steps_per_generation alone; memory is actor.ppo_max_token_len_per_gpu",
}
"""The words, and what becomes of them."""


def derive(flat: Mapping[str, Any], ours: dict[str, Any], given: frozenset[str]) -> list[str]:
    """Puts the keys that these words mean into ``ours``.

    Args:
        flat: all keys and values.
        ours: our keys so far, renamed ones included; changed here.
        given: the keys that a person gave: a word may not say something else.

    Returns:
        the lines to print.

    Raises:
        UserError: for numbers that do not divide, and for a word beside a key that says something else.
    """
    words = {name: convert(name, flat[name], Count) for name in DERIVED if flat.get(name) is not None}
    notes: list[str] = []
    if answers := words.get("generation_batch_size"):
        n = _value(ours, N)
        prompts = _divided("generation_batch_size", answers, n, f"{N}={n} answers per prompt")
        _put(f"generation_batch_size={answers}", PROMPTS, prompts, ours, given, notes)
    accumulated = words.get("gradient_accumulation_steps")
    if served := words.get("steps_per_generation"):
        updates = _divided(
            "steps_per_generation", served, accumulated or 1, f"gradient_accumulation_steps={accumulated} per update"
        )
        prompts = _value(ours, PROMPTS)
        minibatch = _divided(PROMPTS, prompts, updates, f"the {updates} updates of steps_per_generation={served}")
        _put(f"steps_per_generation={served}", MINIBATCH, minibatch, ours, given, notes)
    elif accumulated:
        why = "it changes no number without steps_per_generation; memory is actor.ppo_max_token_len_per_gpu"
        notes.append(f"no effect: gradient_accumulation_steps={accumulated} ({why})")
    return notes


def _value(ours: Mapping[str, Any], name: str) -> int:
    value = ours.get(name, MISSING)
    return keys()[name].default if value == MISSING else convert(name, value, keys()[name].hint)


def _divided(name: str, value: int, by: int, what: str) -> int:
    if value % by:
        low = value - value % by
        near = " or ".join(str(number) for number in (low, low + by) if number)
        raise UserError(f"{name}={value}: does not divide by {what}; the nearest is {near}")
    return value // by


def _put(word: str, name: str, value: int, ours: dict[str, Any], given: frozenset[str], notes: list[str]) -> None:
    if name in given and ours[name] not in (None, MISSING, value):
        raise UserError(f"{word} means {name}={value}, but {name}={show(ours[name])} is given too; give one of them")
    ours[name] = value
    notes.append(f"renamed: {word} is read as {name}={value}")
