"""Training from a script or a notebook, through the same config and the same objects as the command line.

run = cohort.train("path/to/model", [{"prompt": "What is 2 + 3?", "answer": "5"}], reward=graded, n=8, lr=1e-5)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cohort.assemble.local import assemble
from cohort.assemble.run import Run
from cohort.config.load import from_keywords


def train(
    model: str,
    data: Sequence[Mapping[str, Any]],
    reward: Callable[..., object] | None = None,
    *,
    val_data: Sequence[Mapping[str, Any]] | None = None,
    preset: str = "grpo",
    settings: Mapping[str, Any] | None = None,
    **keywords: Any,
) -> Run:
    """Trains ``model`` on ``data`` and returns the finished run.

    Args:
        model: a Hugging Face folder or hub name; ``starter`` for the small model that Cohort builds.
        data: rows with a ``prompt`` (text or messages); other columns reach the reward by name.
        reward: a function of any of ``text``, ``prompt``, ``ground_truth``, ... and the data's columns,
            plain or ``async``; None picks the built-in one by ``data_source``.
        val_data: held-out rows.
        preset: the preset to start from.
        settings: values by dotted key, ``{"actor_rollout_ref.actor.clip_ratio_high": 0.28}``.
        **keywords: values by the last part of a key: ``lr``, ``n``, ``train_batch_size``, ...

    Raises:
        UserError: for anything in the settings, the data or the reward that cannot work.
    """
    values = {"actor_rollout_ref.model.path": model, **(settings or {})}
    config = from_keywords(preset, values, **keywords)
    run = assemble(config, rows=data, val_rows=val_data, reward=reward, title=f"cohort.train, preset {preset}")
    run.fit()
    return run
