"""What happens around the steps: validation, checkpoints, trackers, and a clean end.

fit() = validate -> (step -> log -> validate every test_freq -> save every save_freq)* -> validate -> save
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from cohort.metrics import read
from cohort.protocols import StepRecord
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.evaluate import Evaluation
from cohort.trainer.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When things happen. Steps are counted from 1; a frequency below 1 means never.

    Attributes:
        total_steps: training steps of the whole run, resumed ones included.
        test_freq: validate every so many steps, and after the last.
        save_freq: checkpoint every so many steps, and after the last.
        val_before_train: validate before the first step.
        val_only: validate once and leave.
        max_seconds: stop after the step in which this much training time has passed; None never.
    """

    total_steps: int
    test_freq: int = -1
    save_freq: int = -1
    val_before_train: bool = True
    val_only: bool = False
    max_seconds: float | None = None

    def tests(self, step: int, last: bool) -> bool:
        """Whether step ``step`` is followed by a validation."""
        return self.test_freq > 0 and (last or step % self.test_freq == 0)

    def saves(self, step: int, last: bool) -> bool:
        """Whether step ``step`` is followed by a checkpoint."""
        return self.save_freq > 0 and (last or step % self.save_freq == 0)


class Watcher(Protocol):
    """Follows a run: the console, files, TensorBoard."""

    def step(self, record: StepRecord) -> None:
        """One training step is done."""
        ...

    def validation(self, step: int, evaluation: Evaluation) -> None:
        """One validation is done."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """All scalars of a step, validation included, once."""
        ...

    def note(self, line: str) -> None:
        """Something a person should read."""
        ...


@dataclass(kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        steps: training steps that are done.
        first: the validation before training, None if there was none.
        last: the newest validation, None if there was none.
        interrupted: a person stopped the run.
        seconds: training time, validation and checkpoints excluded.
        history: the scalars of each training step, in order.
    """

    steps: int = 0
    first: Evaluation | None = None
    last: Evaluation | None = None
    interrupted: bool = False
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def fit(
    trainer: Trainer,
    *,
    schedule: Schedule,
    watcher: Watcher,
    checkpoints: Checkpoints,
    validate: Callable[[], Evaluation] | None,
) -> Outcome:
    """Trains until the schedule ends or a person asks for the end."""
    outcome = Outcome(steps=trainer.steps)
    if validate and (schedule.val_before_train or schedule.val_only):
        outcome.first = outcome.last = _validate(trainer.steps, validate, watcher, {})
    if schedule.val_only:
        return outcome
    saved_at = trainer.steps
    with stop_request(watcher) as stop:
        while trainer.steps < schedule.total_steps and not stop():
            started = time.perf_counter()
            record = trainer.step()
            outcome.seconds += time.perf_counter() - started
            outcome.steps = record.step
            watcher.step(record)

            out_of_time = schedule.max_seconds is not None and outcome.seconds >= schedule.max_seconds
            last = record.step >= schedule.total_steps or out_of_time
            metrics = read(record.metrics)
            if validate and schedule.tests(record.step, last) and not stop():
                outcome.last = _validate(record.step, validate, watcher, metrics)
            else:
                watcher.log(record.step, metrics)
            outcome.history.append(metrics)
            if schedule.saves(record.step, last):
                checkpoints.save(trainer)
                saved_at = record.step
            if out_of_time:
                break
        outcome.interrupted = stop()
        if outcome.interrupted:
            if trainer.steps > saved_at:
                checkpoints.save(trainer)
            watcher.note(f"stopped after step {trainer.steps}; saved, run the same command again to go on")
    return outcome


def _validate(
    step: int, validate: Callable[[], Evaluation], watcher: Watcher, metrics: Mapping[str, float]
) -> Evaluation:
    started = time.perf_counter()
    evaluation = validate()
    seconds = {"timing_s/testing": time.perf_counter() - started}
    watcher.validation(step, evaluation)
    watcher.log(step, {**metrics, **evaluation.metrics, **seconds})
    return evaluation


@contextmanager
def stop_request(watcher: Watcher) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM asks for the end after the step in progress, a second Ctrl-C ends at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        watcher.note("stopping after this step and saving; press Ctrl-C again to leave at once")

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's
        before = {}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
