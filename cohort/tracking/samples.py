"""The samples of a run, read from ``rollouts/*.parquet`` without torch: one row per sample, one file per step.

Lists are response-aligned: their t-th item belongs to response token t (``ids`` alone holds the prompt too). The mask
is ``author == MODEL``. A tensor that the step did not compute is null, and so are the training columns of a sample
that did not train (it could not be scored, or its group was left out).

From such a file alone the scalars of its step can be computed again: ``cohort.tracking.scalars`` does. ``read_step``
gives whole samples, ``read_outcomes`` what is known of them without their tokens, which is quick.
``rollouts.py`` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cohort.errors import UserError

FLOATS = pa.list_(pa.float32())
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
        "rollout_log_probs": FLOATS,
        "log_probs": FLOATS,
        "old_log_probs": FLOATS,
        "ref_log_probs": FLOATS,
        "entropy": FLOATS,
        "values": FLOATS,
        "rewards": FLOATS,
        "advantages": FLOATS,
        "returns": FLOATS,
        "keep": FLOATS,
        "weights": FLOATS,
        "pieces": pa.list_(pa.string()),
        "baseline_response": pa.string(),
        "baseline_score": pa.float64(),
    },
    metadata={"cohort.rollouts": "2"},
)
"""The columns of a file. Those behind ``returns`` came with version 2; older files are read without them."""

WITHOUT_A_SCORE = "it was never graded"
"""The reason that stands with an answer which no reward has seen."""

AUTHORS = ("prompt", "model", "environment", "template")
"""Names of the values in ``author``: those of ``cohort.types.Author``, which this module does without."""

MODEL = AUTHORS.index("model")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is known of a sample without its tokens; see ``Sample`` for the fields they share.

    Attributes:
        written: tokens that the model wrote.
    """

    group: int
    sample: int
    score: float | None
    reward_parts: Mapping[str, Any]
    unscorable_reason: str
    reward_seconds: float
    finish_reason: str
    turns: int
    trained: bool
    prompt_length: int
    written: int

    @property
    def trainable(self) -> bool:
        """Whether it has a score, and a token of the model that the score can be credited to."""
        return self.score is not None and self.written > 0

    @property
    def correctness(self) -> float:
        """How right the answer is: ``acc`` if the reward gives it as a number, else the score; 0 without a score."""
        acc = self.reward_parts.get("acc", self.score)
        return float((self.score if acc is None or isinstance(acc, str) else acc) or 0.0)


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
        keep: 1 where a token trained, 0 where a rule rejected it; None where no rule was at work.
        weights: factor of each token's policy loss, None where it is 1 everywhere.
        pieces: the text of each response token, special tokens included.
        baseline_response: the greedy answer that the group was compared with, None where there was none.
        baseline_score: its score.
        unrecorded: columns that the file does not have, because it is older than they are.
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
    keep: Sequence[float] | None = None
    weights: Sequence[float] | None = None
    pieces: Sequence[str] | None = None
    baseline_response: str | None = None
    baseline_score: float | None = None
    unrecorded: frozenset[str] = frozenset()

    @property
    def outcome(self) -> Outcome:
        """The sample without its tokens."""
        shared = {item.name: getattr(self, item.name) for item in fields(Outcome) if item.name != "written"}
        return Outcome(**shared, written=sum(author == MODEL for author in self.author))


def step_path(folder: Path, step: int) -> Path:
    """The file of a step in a rollouts folder."""
    return folder / f"step_{step:06d}.parquet"


def steps(folder: Path) -> list[int]:
    """The steps a rollouts folder holds, in order."""
    found = (re.fullmatch(r"step_(\d+)\.parquet", path.name) for path in folder.glob("step_*.parquet"))
    return sorted(int(match[1]) for match in found if match)


def read_step(folder: Path, step: int, *, group: int | None = None) -> list[Sample]:
    """Every sample of a step, ordered by (group, sample).

    Args:
        folder: the rollouts folder of a run.
        step: the training step.
        group: read this group alone.

    Raises:
        UserError: if the folder has no file for that step, naming those it has, or the file cannot be read.
    """
    names = [item.name for item in fields(Sample) if item.name != "unrecorded"]
    table, unrecorded = _read(folder, step, names, group)
    return [Sample(**_decoded(row), unrecorded=unrecorded) for row in table.to_pylist()]


def read_outcomes(folder: Path, step: int) -> list[Outcome]:
    """Every sample of a step without its tokens, ordered by (group, sample). Far quicker than ``read_step``.

    Args:
        folder: the rollouts folder of a run.
        step: the training step.

    Raises:
        UserError: as ``read_step``.
    """
    names = [item.name for item in fields(Outcome) if item.name != "written"]
    table, _ = _read(folder, step, [*names, "author"], None)
    author = table.column("author").combine_chunks()
    ends = np.concatenate([[0], np.cumsum(author.flatten().to_numpy(zero_copy_only=False) == MODEL)])
    offsets = author.offsets.to_numpy() - author.offsets[0].as_py()
    written = ends[offsets[1:]] - ends[offsets[:-1]]
    rows = table.drop_columns(["author"]).to_pylist()
    return [Outcome(**_decoded(row), written=int(count)) for row, count in zip(rows, written, strict=True)]


def _read(folder: Path, step: int, names: Sequence[str], group: int | None) -> tuple[pa.Table, frozenset[str]]:
    """The columns of a step's file, and the names of those it does not have."""
    path = step_path(folder, step)
    if not path.is_file():
        present = steps(folder)
        have = f"it has steps {present[0]} to {present[-1]}" if present else "it has no steps"
        raise UserError(f"{folder}: no samples of step {step}; {have}")
    try:
        there = set(pq.read_schema(path).names)
        wanted = [name for name in names if name in there]
        table = pq.read_table(path, columns=wanted, filters=None if group is None else [("group", "=", group)])
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: this is no parquet file that can be read ({str(error).splitlines()[0]})") from error
    missing = frozenset(names) - there
    lost = sorted(missing - LATER)
    if lost:
        raise UserError(f"{path}: these are no samples of a run: there is no column {lost[0]}")
    return table, missing


LATER = frozenset({"keep", "weights", "pieces", "baseline_response", "baseline_score"})
"""Columns that older files do not have."""


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    texts = {name: json.loads(row[name]) for name in ("ground_truth", "reward_parts") if name in row}
    return {**row, **texts}
