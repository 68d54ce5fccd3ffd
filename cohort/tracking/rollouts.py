"""Writes rollouts/step_000001.parquet: every sample of a step, one row each, one file per step.

What the columns are, and how they are read, is in ``samples.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from cohort.protocols import StepRecord
from cohort.tracking.jsontext import to_json
from cohort.tracking.samples import FLOATS, SCHEMA, WITHOUT_A_SCORE, Sample, read_step, step_path, steps
from cohort.types import Group, Rollout

__all__ = ["SCHEMA", "Pieces", "RolloutTracker", "Sample", "read_step", "step_path", "steps", "to_table"]

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""Token ids to the text of each token."""


class RolloutTracker:
    """Writes one file per step, under a temporary name first: a file that is there is whole.

    Args:
        folder: where the files go.
        first_step: the step that a resumed run goes on from; files of later steps, left by a run that died, go.
        pieces: token ids to the text of each; without it the column stays empty.
    """

    def __init__(self, folder: Path, *, first_step: int = 0, pieces: Pieces | None = None) -> None:
        self.folder = folder
        self.pieces = pieces
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()
        for step in steps(folder):
            if step > first_step:
                step_path(folder, step).unlink()

    def samples(self, record: StepRecord) -> None:
        """Stores the samples of one step."""
        path = step_path(self.folder, record.step)
        temporary = path.with_name(path.name + ".tmp")
        pq.write_table(to_table(record, self.pieces), temporary, compression="zstd")
        os.replace(temporary, path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers go elsewhere; they can be computed from the samples."""

    def close(self) -> None:
        """Every file is already whole."""


# --- writing ----------------------------------------------------------------------------------


def to_table(record: StepRecord, pieces: Pieces | None = None) -> pa.Table:
    """The samples of one step as a table with the columns of ``SCHEMA``; ``pieces`` tells the text of each token."""
    groups = record.collected or record.groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    position = {id(r): i for i, r in enumerate(r for group in record.groups for r in group.rollouts)}
    rows = [position.get(id(rollout)) for rollout in rollouts]  # row of the update's tensors, None: did not train
    lists = _Lists(rows, [len(rollout.response_ids) for rollout in rollouts])
    experience = record.experience
    columns: dict[str, object] = {
        "step": [record.step] * len(rollouts),
        "group": [number for number, group in enumerate(groups) for _ in group.rollouts],
        **_told(rollouts),
        "trained": [row is not None for row in rows],
        "log_probs": lists.of(record.log_probs),
        "old_log_probs": lists.of(experience.old_log_probs),
        "ref_log_probs": lists.of(experience.ref_log_probs),
        "entropy": lists.of(record.entropy),
        "values": lists.of(experience.values),
        "rewards": lists.of(record.rewards),
        "advantages": lists.of(experience.advantages),
        "returns": lists.of(experience.returns),
        "keep": lists.of(experience.keep),
        "weights": lists.of(experience.weights),
        "pieces": [pieces(r.response_ids) if pieces else None for r in rollouts],
        **_compared(groups),
    }
    arrays = [_array(columns[item.name], item.type) for item in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _array(column: object, kind: pa.DataType) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column, type=kind)


def _told(rollouts: Sequence[Rollout]) -> dict[str, object]:
    """The columns that the rollouts themselves tell."""
    scores = [rollout.score for rollout in rollouts]
    return {
        "sample": [r.sample for r in rollouts],
        "row": [r.prompt.row for r in rollouts],
        "data_source": [r.prompt.data_source for r in rollouts],
        "prompt": [r.prompt.text for r in rollouts],
        "response": [r.text for r in rollouts],
        "ground_truth": [to_json(r.prompt.ground_truth) for r in rollouts],
        "score": [score.value if score else None for score in scores],
        "reward_parts": [to_json(score.parts if score else {}) for score in scores],
        "unscorable_reason": [score.reason if score else WITHOUT_A_SCORE for score in scores],
        "reward_seconds": [score.seconds if score else 0.0 for score in scores],
        "finish_reason": [str(r.finish_reason) for r in rollouts],
        "turns": [r.turns for r in rollouts],
        "prompt_length": [len(r.prompt.ids) for r in rollouts],
        "ids": [r.ids for r in rollouts],
        "author": [[int(author) for author in r.authors] for r in rollouts],
        "policy_versions": [r.policy_versions for r in rollouts],
        "rollout_log_probs": [r.log_probs for r in rollouts],
    }


def _compared(groups: Sequence[Group]) -> dict[str, object]:
    """The greedy answers that groups were compared with, told to each of their samples."""
    greedy = [group.baseline for group in groups for _ in group.rollouts]
    return {
        "baseline_response": [rollout.text if rollout else None for rollout in greedy],
        "baseline_score": [rollout.score.value if rollout and rollout.score else None for rollout in greedy],
    }


class _Lists:
    """Cuts the update's padded (B, T) tensors into ragged columns, without a Python object per token."""

    def __init__(self, rows: Sequence[int | None], lengths: Sequence[int]) -> None:
        pairs = list(zip(rows, lengths, strict=True))
        self.spans = [(row, length) for row, length in pairs if row is not None]
        self.missing = pa.array([row is None for row in rows])
        ends = np.cumsum([0 if row is None else length for row, length in pairs])
        self.offsets = pa.array(np.concatenate([[0], ends]), type=pa.int32())

    def of(self, tensor: Tensor | None) -> pa.Array:
        """``tensor`` (B, T) as a column of lists; nulls where there is none."""
        if tensor is None:
            return pa.nulls(len(self.missing), FLOATS)
        matrix = tensor.detach().float().cpu().numpy()
        flat = np.concatenate([np.empty(0, np.float32), *(matrix[row, :length] for row, length in self.spans)])
        return pa.ListArray.from_arrays(self.offsets, pa.array(flat), type=FLOATS, mask=self.missing)
