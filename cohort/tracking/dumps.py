"""Answers as JSON lines, one file per step, in the form that verl's users know.

A line has ``input``, ``output``, ``gts``, ``score``, ``step`` and the reward's parts. An answer that could not be
scored has ``score`` null and ``unscorable`` with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.tracking.jsontext import to_json

if TYPE_CHECKING:
    from cohort.protocols import StepRecord
    from cohort.trainer.evaluate import Evaluation
    from cohort.types import Rollout


def dump_jsonl(folder: Path, step: int, rollouts: Sequence[Rollout]) -> Path:
    """Writes ``<folder>/<step>.jsonl`` atomically and returns its path."""
    path = folder / f"{step}.jsonl"
    write_jsonl(path, step, rollouts)
    return path


def write_jsonl(path: Path, step: int, rollouts: Sequence[Rollout]) -> None:
    """Writes the answers to ``path``, one JSON object a line, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(to_json(_line(r, step)) + "\n" for r in rollouts), encoding="utf-8")
    os.replace(temporary, path)


def _line(rollout: Rollout, step: int) -> dict[str, object]:
    score = rollout.score
    line: dict[str, object] = {
        **(score.parts if score else {}),
        "input": rollout.prompt.text,
        "output": rollout.text,
        "gts": rollout.prompt.ground_truth,
        "score": score.value if score else None,
        "step": step,
    }
    if score is None or score.value is None:
        line["unscorable"] = score.reason if score else "it was never graded"
    return line


class DumpTracker:
    """Writes the answers of every step and of every validation.

    Args:
        training: folder of the training answers (``trainer.rollout_data_dir``), None writes none.
        validation: folder of the validation answers (``trainer.validation_data_dir``), None writes none.
    """

    def __init__(self, *, training: Path | None, validation: Path | None) -> None:
        self.training_folder = training
        self.validation_folder = validation

    def samples(self, record: StepRecord) -> None:
        """The answers of one training step, those that did not train included."""
        if self.training_folder:
            groups = record.collected or record.groups
            dump_jsonl(self.training_folder, record.step, [r for group in groups for r in group.rollouts])

    def validation(self, step: int, evaluation: Evaluation) -> None:
        """The answers of one validation."""
        if self.validation_folder:
            dump_jsonl(self.validation_folder, step, evaluation.rollouts)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers go elsewhere."""

    def close(self) -> None:
        """Every file is already whole."""
