"""What a person sees: a banner, one line per step, a few answers, and a table before and after.

In a terminal a progress bar stays at the bottom. Anywhere else (a pipe, a log file, CI) there are plain lines
only: no control codes, no bar. Labels here are short; the names in the files are verl's.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich.console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cohort.tracking import answers, report, wording
from cohort.tracking.progress import ProgressBar

if TYPE_CHECKING:
    from cohort.protocols import StepRecord
    from cohort.trainer.evaluate import Evaluation, Summary
    from cohort.types import Rollout

WIDEST = 100  # columns; longer lines are hard to read
HEADER_EVERY = 25  # lines

COLUMNS: tuple[tuple[str, int], ...] = (
    ("step", 6),
    ("reward", 8),
    ("signal", 9),
    ("cut off", 9),
    ("length", 8),
    ("KL", 9),
    ("grad", 8),
    ("tok/s", 8),
    ("sec", 7),
)
"""Label and width of each number of a step's line. ``LEGEND`` says what they are."""

LEGEND = (
    "signal: groups whose scores differ; cut off: answers ended by the token limit; "
    "KL: to the reference; grad: gradient norm"
)

CAUSES = {
    "training/groups_all_right": "all right",
    "training/groups_all_wrong": "all wrong",
    "training/groups_all_truncated": "all cut off",
    "training/groups_all_unscorable": "unscorable",
    "training/groups_all_equal": "all equal",
}


class Console:
    """Follows a run for a person.

    Args:
        total_steps: training steps of the whole run; 0 where ``follow`` will tell.
        first_step: steps that were done before.
        sample_every: show answers at the first step and at every multiple of this many; 0 shows none.
        val_answers: answers of each validation to show.
        output: where to write; None is standard output.
        clock: seconds since some moment, for the time left.
    """

    def __init__(
        self,
        *,
        total_steps: int = 0,
        first_step: int = 0,
        sample_every: int = 10,
        val_answers: int = 0,
        output: rich.console.Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rich = output or standard_output()
        self.sample_every = sample_every
        self.val_answers = val_answers
        self.bar = ProgressBar(self.rich, total=total_steps, done=first_step, clock=clock)
        self.lines_since_header = HEADER_EVERY
        self.explained = False
        ascii_only = self.rich.options.ascii_only
        self.newline = " / " if ascii_only else " ⏎ "
        self.line = "-" if ascii_only else "─"

    # --- before the run

    def banner(self, title: str, sentences: Sequence[str] = (), facts: Mapping[str, str] | None = None) -> None:
        """The start of a run.

        Args:
            title: one line, the command or preset and the algorithm.
            sentences: what a step does, in words: the batch arithmetic.
            facts: label -> value: model, data, run folder, precision, threads.
        """
        self._print(self._rule(title, "bold", "cyan"))
        for sentence in sentences:
            self._print(Text(sentence))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in (facts or {}).items():
            grid.add_row(label, Text(value))
        if facts:
            self._print(grid)
        self._print(Text())

    def follow(self, *, total_steps: int, first_step: int = 0) -> None:
        """Takes the length of the run, where it was not known when the console was made."""
        self.bar.follow(total=total_steps, done=first_step)

    def start(self) -> None:
        """Shows the bar and starts the clock of the time left."""
        self.bar.restart()
        self.bar.show()

    def busy(self, what: str) -> None:
        """Says what is going on: on one line of a terminal that the next thing replaces, or as a line of a log."""
        if self.rich.is_terminal:
            self.bar.show(what)
        else:
            self._print(Text(f"  {what}", style="dim"))

    # --- during the run

    def samples(self, record: StepRecord) -> None:
        """The line of one training step, and now and then a few answers."""
        from cohort.metrics import read

        metrics = read(record.metrics)
        self.bar.hide()
        self._header()
        self._print(step_line(record.step, metrics))
        self.lines_since_header += 1
        for warning in warnings(record, metrics):
            self._remark(warning, "yellow")
        if self.sample_every and (record.step == self.bar.first + 1 or record.step % self.sample_every == 0):
            self._answers(record)
        self.bar.advance(record.step)

    def validation(self, step: int, evaluation: Evaluation) -> None:
        """One line per data source: accuracy with its interval, sampled and greedy."""
        self.bar.hide()
        when = f"after step {step}" if step > self.bar.first else "before training" if step == 0 else f"at step {step}"
        greedy = {s.data_source: s for s in evaluation.greedy.summaries} if evaluation.greedy else {}
        for summary in evaluation.summaries:
            name = f"{summary.data_source} " if len(evaluation.summaries) > 1 else ""
            told = validation_text(summary, greedy.get(summary.data_source))
            self._print(Text.assemble(("  held out ", "magenta"), (f"{when:<16}", "magenta"), f"{name}{told}"))
            if summary.unscorable:
                reasons = [r.reason for r in evaluation.results if r.score is None]
                self._remark(unscorable_text(summary.unscorable, summary.answers, reasons), "yellow")
        if self.val_answers:
            self._show(answers.some(evaluation.rollouts, self.val_answers), "held-out answers")
        if step <= self.bar.first:
            self.bar.restart()
        self.bar.show()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A person gets the line of ``samples``."""

    def note(self, line: str) -> None:
        """Something a person should read."""
        self.bar.hide()
        self._remark(line, "bold")
        self.bar.show()

    def warn(self, line: str) -> None:
        """Something that may be wrong."""
        self.bar.hide()
        self._remark(line, "yellow")
        self.bar.show()

    # --- after the run

    def finish(
        self,
        *,
        first: Evaluation | None = None,
        last: Evaluation | None = None,
        folder: Path,
        picture: Path | None = None,
        commands: Sequence[str] = (),
        seconds: float | None = None,
    ) -> None:
        """The end of a run.

        Args:
            first: the validation before training.
            last: the newest validation.
            folder: the run folder.
            picture: the curves.
            commands: what to try next.
            seconds: training time.
        """
        self.bar.hide()
        self._print(Text())
        if last and last.results:
            self._print(report.table(report.lines(None if first is last else first, last)))
            self._print(Text(report.basis(last), style="dim"))
            self._print(Text())
        facts = {"training time": wording.duration(seconds)} if seconds is not None else {}
        facts["run folder"] = str(folder)
        if picture:
            facts["curves"] = str(picture)
        for position, command in enumerate(commands):
            facts["try next" if position == 0 else " " * position] = command
        for label, value in facts.items():  # never wrapped by us: paths and commands are there to be copied
            self.rich.print(Text.assemble((f"{label:<15}", "dim"), value), soft_wrap=True)

    def close(self) -> None:
        """Takes the bar away; may be called twice."""
        self.bar.hide()

    # --- how

    def _print(self, what: rich.console.RenderableType) -> None:
        self.rich.print(what, width=min(self.rich.width, WIDEST))

    def _rule(self, title: str, style: str, colour: str) -> Rule:
        return Rule(Text(title, style=style), align="left", style=colour, characters=self.line)

    def _remark(self, line: str, style: str) -> None:
        self.rich.print(
            Text.assemble("  ", ("! " if style == "yellow" else "* ", style), (line, style)), soft_wrap=True
        )

    def _header(self) -> None:
        if self.lines_since_header < HEADER_EVERY:
            return
        if not self.explained:
            self._print(Text(LEGEND, style="dim"))
            self.explained = True
        self._print(Text("".join(f"{label:>{width}}" for label, width in COLUMNS), style="bold"))
        self.lines_since_header = 0

    def _answers(self, record: StepRecord) -> None:
        self._show(answers.choose(record.collected or record.groups, record.step), f"answers at step {record.step}")

    def _show(self, chosen: Sequence[tuple[str, Rollout]], title: str) -> None:
        width = min(self.rich.width, WIDEST)
        self._print(self._rule(title, "dim", "dim"))
        for line in answers.render(chosen, width=width, newline=self.newline):
            self._print(line)
        self._print(self._rule("", "dim", "dim"))
        self.lines_since_header = HEADER_EVERY


def standard_output() -> rich.console.Console:
    """A console on standard output that survives a character its encoding does not have."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    return rich.console.Console(highlight=False, emoji=False, markup=False)


def step_line(step: int, metrics: Mapping[str, float]) -> Text:
    """The numbers of one step, aligned with ``COLUMNS``; "-" for what the step does not have."""
    groups, signal = metrics["training/groups"], metrics["training/groups_with_signal"]
    cut = metrics["response_length/clip_ratio"]
    kl = metrics.get("actor/kl_loss", metrics.get("actor/reward_kl_penalty"))
    grad = metrics.get("actor/grad_norm")
    score = metrics.get("critic/score/mean")
    cells = (
        (str(step), ""),
        ("-" if score is None else f"{score:.3f}", "bold"),
        (f"{signal:.0f}/{groups:.0f}", "" if signal else "yellow"),
        (wording.percent(cut, 0), "yellow" if cut >= 0.2 else ""),
        (f"{metrics['response_length/mean']:.1f}", ""),
        (number_or_dash(kl), ""),
        (number_or_dash(grad), "" if grad is None or math.isfinite(grad) else "bold red"),
        (wording.large(metrics["perf/throughput"]), "dim"),
        (f"{metrics['perf/time_per_step']:.1f}", "dim"),
    )
    return Text.assemble(
        *((f"{text:>{width}}", style) for (text, style), (_, width) in zip(cells, COLUMNS, strict=True))
    )


def number_or_dash(value: float | None) -> str:
    """A short number, "-" for None."""
    return "-" if value is None else wording.number(value)


def warnings(record: StepRecord, metrics: Mapping[str, float]) -> list[str]:
    """What a person should know about this step: no signal and why, answers that could not be graded."""
    found = []
    groups = round(metrics["training/groups"])
    compared = any(len(group.rollouts) > 1 for group in record.collected or record.groups)
    if compared and not metrics["training/groups_with_signal"]:
        causes = [f"{metrics[name]:.0f} {label}" for name, label in CAUSES.items() if metrics[name]]
        found.append(f"0 of {groups} groups have differing scores, nothing to learn from: {', '.join(causes)}")
    found += record.warnings
    rollouts = [r for group in record.collected or record.groups for r in group.rollouts]
    reasons = [r.score.reason if r.score else "never graded" for r in rollouts if answers.value(r) is None]
    if reasons:
        found.append(unscorable_text(len(reasons), len(rollouts), reasons))
    return found


def unscorable_text(count: int, total: int, reasons: Sequence[str]) -> str:
    """How many answers could not be graded, and the last line of the commonest reason."""
    (commonest, times), *_ = Counter(reasons).most_common(1)
    last = (commonest.strip().splitlines() or ["no reason given"])[-1]
    text = wording.shortened(wording.safe(last, newline=" "), 200)
    return f"{count} of {total} answers could not be graded and were left out; {times} x {text}"


def validation_text(summary: Summary, greedy: Summary | None) -> str:
    """Accuracy 41.2% (38.1 to 44.4), greedy 62.0% (56.1 to 67.6)."""
    told = f"{report.what(summary)} {wording.interval(summary.interval, binary=summary.binary)}"
    if greedy:
        told += f", greedy {wording.percent(greedy.interval.mean) if greedy.binary else f'{greedy.interval.mean:.3f}'}"
    return told
