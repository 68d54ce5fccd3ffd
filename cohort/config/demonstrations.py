"""Rules of ``algorithm.chord``: what must hold, what is idle, and the mixture in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from cohort.config.schema import Config
from cohort.errors import UserError

CHORD = "algorithm.chord"


def check(config: Config) -> None:
    """Cross-checks of the schedule.

    Raises:
        UserError: naming the key, its value and what would be legal.
    """
    chord = config.algorithm.chord
    if not chord.enable or config.trainer.val_only:
        return
    if chord.mu_peak < chord.mu_valley:
        raise UserError(
            f"{CHORD}.mu_peak={chord.mu_peak:g}: it is below {CHORD}.mu_valley={chord.mu_valley:g}, where mu falls to; "
            f"set it to {chord.mu_valley:g} or more"
        )
    if chord.mu_peak == 0:
        raise UserError(
            f"{CHORD}.mu_peak=0: no demonstration would ever be read; set it above 0, or {CHORD}.enable=False"
        )
    if chord.mu_peak > chord.mu_valley and chord.mu_warmup_steps == chord.mu_decay_steps == 0:
        raise UserError(
            f"{CHORD}.mu_decay_steps=0: mu would be mu_valley={chord.mu_valley:g} from the start and mu_peak="
            f"{chord.mu_peak:g} never reached; give it some updates to fall, or set both to one value"
        )


def require_files(config: Config) -> None:
    """A run with CHORD needs demonstrations.

    Raises:
        UserError: if no file is named.
    """
    chord = config.algorithm.chord
    if chord.enable and not chord.files and not config.trainer.val_only:
        raise UserError(
            f"{CHORD}.files=[]: {CHORD}.enable=True learns from demonstrations; give Parquet or JSONL files with "
            "messages, or with a prompt and an answer"
        )


def idle(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that do nothing beside the others, and why."""
    chord = config.algorithm.chord
    if not chord.enable:
        names = (field.name for field in fields(chord) if field.name != "enable")
        yield from ((f"{CHORD}.{name}", f"{CHORD}.enable=False") for name in names)
    elif chord.mu_peak == chord.mu_valley:
        yield f"{CHORD}.mu_decay_steps", "mu_peak and mu_valley are equal"


def describe(config: Config) -> list[str]:
    """The mixture in a sentence, for the start banner; none without demonstrations."""
    chord = config.algorithm.chord
    if not chord.enable:
        return []
    rise = f"rises to {chord.mu_peak:g} over {chord.mu_warmup_steps} updates, then " if chord.mu_warmup_steps else ""
    course = f"falls from {chord.mu_peak:g} to {chord.mu_valley:g} over {chord.mu_decay_steps} updates"
    if chord.mu_peak == chord.mu_valley:
        course = f"is {chord.mu_peak:g}"
    return [f"each update learns from {chord.batch_size} demonstrations too; their weight mu {rise}{course}"]
