"""rollouts/step_000001.parquet: every sample of a step, one row each, one file per step.

Lists are response-aligned: their t-th item belongs to response token t (``ids`` alone holds the prompt too). The mask
is ``author == Author.MODEL``. A tensor that the step did not compute is null, and so are the training
columns of a sample that did not train (it could not be scored, or its group was left out).

From such a file alone the scalars of its step can be computed again. Read it with ``read_step`` or any parquet tool.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from cohort.errors import UserError
from cohort.protocols import StepRecord
from cohort.tracking.jsontext import to_json
from cohort.types import Rollout

_FLOATS = pa.list_(pa.float32())
SCHEMA = pa.schema(
    {
        "step": pa.int32(),
        "group": pa.int32(),
        "sample": pa.int32(),
        "row": pa.int64(),
        "data_source": pa.string(),
        "prompt": pa.string(),
        "response": pa.string(),
        "ground_truth": pa.string(),
        "score": pa.float64(),
        "reward_parts": pa.string(),
        "unscorable_reason": pa.string(),
        "reward_seconds": pa.float64(),
        "finish_reason": pa.string(),
        "turns": pa.int32(),
        "trained": pa.bool_(),
        "prompt_length": pa.int32(),
        "ids": pa.list_(pa.int32()),
        "author": pa.list_(pa.int8()),
        "policy_versions": pa.list_(pa.int32()),
        "rollout_log_probs": _FLOATS,
        "log_probs": _FLOATS,
        "old_log_probs": _FLOATS,
        "ref_log_probs": _FLOATS,
        "entropy": _FLOATS,
        "values": _FLOATS,
        "rewards": _FLOATS,
        "advantages": _FLOATS,
        "returns": _FLOATS,
    },
    metadata={"cohort.rollouts": "1"},
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row of the file. Token lists have one item per response token; None where the step had no such tensor.

    Attributes:
        step: the training step.
        group: number of the prompt within the step, from 0.
        sample: number of the answer within its group.
        row: position of the prompt's row in the data set.
        data_source: where the row comes from.
        prompt: the prompt as text, special tokens included.
        response: the answer as the reward saw it.
        ground_truth: the answer key.
        score: the reward's value, None when the answer could not be graded.
        reward_parts: the reward's named components.
        unscorable_reason: why ``score`` is None, else empty.
        reward_seconds: wall time of the reward.
        finish_reason: stop, length or abort.
        turns: messages in the conversation.
        trained: the sample was part of the update.
        prompt_length: prompt tokens, the first ones of ``ids``.
        ids: prompt and response token ids.
        author: who wrote each response token, a value of ``cohort.types.Author``.
        policy_versions: weights that sampled each token, -1 where the model did not write it.
        rollout_log_probs: log-probs by the sampler.
        log_probs: log-probs by the trainer at the start of the update.
        old_log_probs: log pi_old of the ratio, None where the ratio is 1 by construction.
        ref_log_probs: log-probs by the reference model.
        entropy: entropy of each next-token distribution.
        values: the critic's values.
        rewards: rewards after shaping.
        advantages: advantages.
        returns: the critic's targets.
    """

    step: int
    group: int
    sample: int
    row: int
    data_source: str
    prompt: str
    response: str
    ground_truth: Any
    score: float | None
    reward_parts: Mapping[str, Any]
    unscorable_reason: str
    reward_seconds: float
    finish_reason: str
    turns: int
    trained: bool
    prompt_length: int
    ids: Sequence[int]
    author: Sequence[int]
    policy_versions: Sequence[int]
    rollout_log_probs: Sequence[float]
    log_probs: Sequence[float] | None
    old_log_probs: Sequence[float] | None
    ref_log_probs: Sequence[float] | None
    entropy: Sequence[float] | None
    values: Sequence[float] | None
    rewards: Sequence[float] | None
    advantages: Sequence[float] | None
    returns: Sequence[float] | None


class RolloutTracker:
    """Writes one file per step, under a temporary name first: a file that is there is whole.

    Args:
        folder: where the files go.
        first_step: the step that a resumed run goes on from; files of later steps, left by a run that died, go.
    """

    def __init__(self, folder: Path, *, first_step: int = 0) -> None:
        self.folder = folder
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
        pq.write_table(to_table(record), temporary, compression="zstd")
        os.replace(temporary, path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers go elsewhere; they can be computed from the samples."""

    def close(self) -> None:
        """Every file is already whole."""


def step_path(folder: Path, step: int) -> Path:
    """The file of a step in a rollouts folder."""
    return folder / f"step_{step:06d}.parquet"


def steps(folder: Path) -> list[int]:
    """The steps a rollouts folder holds, in order."""
    found = (re.fullmatch(r"step_(\d+)\.parquet", path.name) for path in folder.glob("step_*.parquet"))
    return sorted(int(match[1]) for match in found if match)


def read_step(folder: Path, step: int) -> list[Sample]:
    """Every sample of a step, ordered by (group, sample).

    Args:
        folder: the rollouts folder of a run.
        step: the training step.

    Raises:
        UserError: if the folder has no file for that step, naming those it has.
    """
    path = step_path(folder, step)
    if not path.is_file():
        present = steps(folder)
        have = f"it has steps {present[0]} to {present[-1]}" if present else "it has no steps"
        raise UserError(f"{folder}: no samples of step {step}; {have}")
    columns = [item.name for item in fields(Sample)]
    return [_sample(row) for row in pq.read_table(path, columns=columns).to_pylist()]


def _sample(row: dict[str, Any]) -> Sample:
    decoded = {name: json.loads(row[name]) for name in ("ground_truth", "reward_parts")}
    return Sample(**{**row, **decoded})


# --- writing ----------------------------------------------------------------------------------


def to_table(record: StepRecord) -> pa.Table:
    """The samples of one step as a table with the columns of ``SCHEMA``."""
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
    }
    arrays = [_array(columns[item.name], item.type) for item in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _array(column: Any, kind: pa.DataType) -> pa.Array:
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
        "unscorable_reason": [score.reason if score else "it was never graded" for score in scores],
        "reward_seconds": [score.seconds if score else 0.0 for score in scores],
        "finish_reason": [str(r.finish_reason) for r in rollouts],
        "turns": [r.turns for r in rollouts],
        "prompt_length": [len(r.prompt.ids) for r in rollouts],
        "ids": [r.ids for r in rollouts],
        "author": [[int(author) for author in r.authors] for r in rollouts],
        "policy_versions": [r.policy_versions for r in rollouts],
        "rollout_log_probs": [r.log_probs for r in rollouts],
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
            return pa.nulls(len(self.missing), _FLOATS)
        matrix = tensor.detach().float().cpu().numpy()
        flat = np.concatenate([np.empty(0, np.float32), *(matrix[row, :length] for row, length in self.spans)])
        return pa.ListArray.from_arrays(self.offsets, pa.array(flat), type=_FLOATS, mask=self.missing)
