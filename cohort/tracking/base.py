"""Back ends by name, and the fan-out that feeds them.

A tracker is anything with ``log(step, metrics)`` and ``close()``. It may also take samples (``SampleTracker``),
validations (``ValidationTracker``) and remarks (``NoteTracker``); each is handed what it has a method for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cohort.errors import UserError
from cohort.protocols import SampleTracker, StepRecord, Tracker
from cohort.tracking.dumps import DumpTracker

if TYPE_CHECKING:
    from cohort.tracking.console import Console
    from cohort.trainer.evaluate import Evaluation


@runtime_checkable
class ValidationTracker(Protocol):
    """A tracker that also wants the validation's answers, not its scalars alone."""

    def validation(self, step: int, evaluation: Evaluation) -> None:
        """Takes one validation."""
        ...


@runtime_checkable
class NoteTracker(Protocol):
    """A tracker that shows remarks to a person."""

    def note(self, line: str) -> None:
        """Shows one remark."""
        ...


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a back end may know about the run it follows.

    Attributes:
        folder: the run folder; nothing is written outside it unless a person named another place.
        total_steps: training steps of the whole run.
        first_step: steps that were done before; rows of later steps, from a run that died, are dropped.
        console: the console to use where "console" is asked for, None makes one.
        rollout_folder: where training answers go as JSON lines too (``trainer.rollout_data_dir``), or None.
        validation_folder: the same for validation answers (``trainer.validation_data_dir``).
        config: the resolved configuration, for back ends that show it.
        pieces: token ids to the text of each token, for back ends that keep samples; None where nobody knows.
    """

    folder: Path
    total_steps: int
    first_step: int = 0
    console: Console | None = None
    rollout_folder: Path | None = None
    validation_folder: Path | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    pieces: Callable[[Sequence[int]], Sequence[str]] | None = None


Factory = Callable[[Run], Tracker]


def _console(run: Run) -> Tracker:
    from cohort.tracking.console import Console

    return run.console or Console(total_steps=run.total_steps, first_step=run.first_step)


def _jsonl(run: Run) -> Tracker:
    from cohort.tracking.jsonl import JsonlTracker

    return JsonlTracker(run.folder / "metrics.jsonl", first_step=run.first_step)


def _rollouts(run: Run) -> Tracker:
    from cohort.tracking.rollouts import RolloutTracker

    return RolloutTracker(run.folder / "rollouts", first_step=run.first_step, pieces=run.pieces)


def _tensorboard(run: Run) -> Tracker:
    if find_spec("tensorboard") is None:
        raise UserError(missing("tensorboard", "tensorboard"))
    from cohort.tracking.tensorboard import TensorBoardTracker

    return TensorBoardTracker(run.folder / "tensorboard", first_step=run.first_step)


TRACKERS: dict[str, Factory] = {
    "console": _console,
    "jsonl": _jsonl,
    "file": _jsonl,  # verl's name for it
    "rollouts": _rollouts,
    "tensorboard": _tensorboard,
}

ALWAYS = ("jsonl", "rollouts")
"""A run folder without these is not a run folder."""

LATER = ("wandb", "swanlab", "mlflow", "trackio", "clearml", "vemlp_wandb", "rl_insight")
"""Names that verl's users know and that have no back end here."""


def register_tracker(name: str, factory: Factory) -> None:
    """Adds a back end under ``name``, for ``trainer.logger``."""
    TRACKERS[name] = factory


def missing(package: str, extra: str) -> str:
    """The line that says how to get an optional package."""
    return (
        f"trainer.logger: '{extra}' needs the package {package}, which is not installed; "
        f'pip install "cohort-rl[{extra}]"'
    )


def check_names(names: Sequence[str]) -> None:
    """Judges the names of ``trainer.logger``.

    Raises:
        UserError: for a name that is unknown or has no back end, with what would work.
    """
    for name in names:
        if name in TRACKERS:
            continue
        if name in LATER:
            raise UserError(
                f"trainer.logger: '{name}' is not supported; use console, jsonl or tensorboard, "
                'for example trainer.logger=\'["console","tensorboard"]\''
            )
        near = difflib.get_close_matches(name, TRACKERS, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(sorted(TRACKERS))}"
        raise UserError(f"trainer.logger: unknown back end '{name}'; {hint}")


def build_trackers(names: Sequence[str], run: Run) -> Trackers:
    """The trackers of ``trainer.logger`` and those that every run has, each back end once.

    Raises:
        UserError: for a bad name, or an optional package that is absent.
    """
    check_names(names)
    factories = dict.fromkeys(TRACKERS[name] for name in (*names, *ALWAYS))
    trackers = [factory(run) for factory in factories]
    if run.rollout_folder or run.validation_folder:
        trackers.append(DumpTracker(training=run.rollout_folder, validation=run.validation_folder))
    return Trackers(trackers)


class Trackers:
    """Hands everything that happens to every tracker that has a method for it. It follows a run for the loop."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def step(self, record: StepRecord) -> None:
        """One training step is done: its samples."""
        for tracker in self.trackers:
            if isinstance(tracker, SampleTracker):
                tracker.samples(record)

    def validation(self, step: int, evaluation: Evaluation) -> None:
        """One validation is done: its answers."""
        for tracker in self.trackers:
            if isinstance(tracker, ValidationTracker):
                tracker.validation(step, evaluation)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The scalars of one step."""
        for tracker in self.trackers:
            tracker.log(step, metrics)

    def note(self, line: str) -> None:
        """Something a person should read."""
        for tracker in self.trackers:
            if isinstance(tracker, NoteTracker):
                tracker.note(line)

    def close(self) -> None:
        """Closes every tracker, also when one of them fails."""
        with ExitStack() as stack:
            for tracker in self.trackers:
                stack.callback(tracker.close)
