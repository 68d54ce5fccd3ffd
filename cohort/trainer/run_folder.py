"""A run is one folder: config.yaml, metrics.jsonl, rollouts/, checkpoints/."""

from __future__ import annotations

from pathlib import Path


def choose(folder: Path, *, resumable: bool) -> Path:
    """The folder a run writes to.

    Args:
        folder: the folder that was asked for.
        resumable: it holds a checkpoint that this run goes on from.

    Returns:
        ``folder`` if it is new, empty or resumed; else the first free sibling ``folder-2``, ``folder-3``, ...
    """
    if resumable or _is_free(folder):
        return folder
    number = 2
    while not _is_free(sibling := folder.with_name(f"{folder.name}-{number}")):
        number += 1
    return sibling


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
