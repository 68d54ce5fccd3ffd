"""A run is one folder: config.yaml, metrics.jsonl, rollouts/, checkpoints/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cohort.trainer.checkpoint import Checkpoints, step_of


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run writes, and what it goes on from.

    Attributes:
        folder: the run folder.
        checkpoint: the checkpoint to restore; None for a new run.
    """

    folder: Path
    checkpoint: Path | None = None


def choose(folder: Path, *, total_steps: int, resume: bool) -> Place:
    """The run folder that was asked for, or a numbered sibling of it: nothing is ever written over.

    Args:
        folder: the folder that was asked for.
        total_steps: steps of the run; a checkpoint at or beyond them is complete and not gone on from.
        resume: go on from the newest unfinished checkpoint.

    Returns:
        The first of ``folder``, ``folder-2``, ``folder-3``, ... that is free or, with ``resume``, unfinished.
    """
    for candidate in _siblings(folder):
        if _is_free(candidate):
            return Place(folder=candidate)
        latest = Checkpoints(candidate / "checkpoints").latest()
        if resume and latest and step_of(latest) < total_steps:
            return Place(folder=candidate, checkpoint=latest)
    raise AssertionError("siblings do not end")


def _siblings(folder: Path) -> Iterator[Path]:
    yield folder
    number = 2
    while True:
        yield folder.with_name(f"{folder.name}-{number}")
        number += 1


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
