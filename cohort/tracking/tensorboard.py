"""TensorBoard event files in the run folder. Read them with ``tensorboard --logdir RUN``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoardTracker:
    """Writes every scalar under its own name.

    Args:
        folder: where the event files go.
        first_step: the step that a resumed run goes on from; events of later steps are hidden by TensorBoard.
    """

    def __init__(self, folder: Path, *, first_step: int = 0) -> None:
        purge = first_step + 1 if folder.exists() else None
        self.writer = SummaryWriter(str(folder), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The scalars of one step."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Flushes and closes; may be called twice."""
        self.writer.close()
