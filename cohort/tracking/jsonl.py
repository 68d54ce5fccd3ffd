"""metrics.jsonl: one JSON object per step, flushed line by line.

    {"step": 3, "critic/score/mean": 0.41, "actor/grad_norm": null, "nonfinite": {"actor/grad_norm": "nan"}}

Every line is valid JSON (RFC 8259), which has no NaN and no infinity: such a number is written as null, and the
line says under ``nonfinite`` which of "nan", "inf" and "-inf" it was. ``read_metrics`` puts them back.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path


class JsonlTracker:
    """Appends to a file of JSON lines.

    Args:
        path: the file; its folder is made.
        first_step: the step that a resumed run goes on from. Lines of later steps and a torn last line, both
            left by a run that died, are dropped first, so that no step is there twice.
    """

    def __init__(self, path: Path, *, first_step: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _keep_until(path, first_step)
        self.file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one line."""
        self.file.write(dump_line(step, metrics) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self.file.close()


def dump_line(step: int, metrics: Mapping[str, float]) -> str:
    """One line of the file, without its newline."""
    numbers = {name: float(value) for name, value in metrics.items()}
    odd = {name: str(value) for name, value in numbers.items() if not math.isfinite(value)}
    line: dict[str, object] = {"step": step, **numbers, **dict.fromkeys(odd)}
    if odd:
        line["nonfinite"] = odd
    return json.dumps(line, allow_nan=False)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The steps of a metrics file in order, each with ``step`` and its numbers; a torn last line is left out."""
    rows = []
    for line in _whole_lines(path):
        row = json.loads(line)
        odd = row.pop("nonfinite", {})
        rows.append({**row, **{name: float(value) for name, value in odd.items()}})
    return rows


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _keep_until(path: Path, step: int) -> None:
    """Drops the lines of steps after ``step`` and a torn last line, atomically."""
    kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= step]
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    os.replace(temporary, path)
