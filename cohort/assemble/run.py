"""A run that is ready to go: the trainer with everything around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cohort.tracking.base import Trackers
from cohort.tracking.console import Console
from cohort.tracking.curves import draw_curves
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.loop import Outcome, Schedule, fit
from cohort.trainer.trainer import Trainer
from cohort.trainer.validator import Validator


@dataclass(kw_only=True)
class Run:
    """What ``assemble`` makes of a config.

    Attributes:
        trainer: the training step.
        schedule: when things happen around it.
        checkpoints: where it is saved.
        trackers: who watches.
        console: the one among them that a person sees; None when nobody asked for it.
        validator: the validation, None without a validation set.
        folder: the run folder.
        title: names the run on the banner.
        sentences: the batch arithmetic in words.
        facts: what the banner lists: model, data, precision, place.
        close_learner: ends the replicas, if there are any.
        outcome: how the run ended; None until ``fit`` returned.
        picture: the curves; None until ``fit`` drew them.
    """

    trainer: Trainer
    schedule: Schedule
    checkpoints: Checkpoints
    trackers: Trackers
    console: Console | None
    validator: Validator | None
    folder: Path
    title: str
    close_learner: Callable[[], None]
    sentences: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    picture: Path | None = None

    def fit(self) -> Outcome:
        """Trains to the end of the schedule, shows what came of it, and closes everything."""
        try:
            if self.console:
                self.console.banner(self.title, self.sentences, self.facts)
                self.console.start()
            self.outcome = fit(
                self.trainer,
                schedule=self.schedule,
                watcher=self.trackers,
                checkpoints=self.checkpoints,
                validate=self.validator,
            )
            self.picture = draw_curves(self.folder)
            if self.console:
                self._finish(self.outcome)
        finally:
            self.close()
        return self.outcome

    def close(self) -> None:
        """Ends processes and files. May be called twice."""
        with ExitStack() as stack:  # the last one first, and each even where another fails
            stack.callback(self.close_learner)
            stack.callback(self.trackers.close)
            stack.callback(self.trainer.close)

    def _finish(self, outcome: Outcome) -> None:
        assert self.console is not None
        self.console.finish(
            first=outcome.first,
            last=outcome.last,
            folder=self.folder,
            picture=self.picture,
            commands=self.next_commands(),
            seconds=outcome.seconds,
        )

    def next_commands(self) -> list[str]:
        """What a person may want to type next."""
        latest = self.checkpoints.latest()
        if latest is None:
            return []
        question = "What is 12 + 34?"
        if self.validator and self.validator.prompts[0].messages:
            question = str(self.validator.prompts[0].messages[-1]["content"])
        shown = question if len(question) < 60 and '"' not in question else "your question"
        return [f'cohort generate --model {latest / "hf"} "{shown}"']
