"""TRL in an environment and a process of its own, asked for one training step at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
VERSION = "1.16.0"
ENVIRONMENT = ".venv-bench-trl"
CALM_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "134217728",
}
"""Keeps glibc from handing large blocks back to the system, and from faulting them in again at each use."""


@dataclass(frozen=True)
class Setting:
    """How TRL is run on this machine."""

    precision: str
    rows_per_pass: int
    threads: int
    calm_malloc: bool = True

    def __str__(self) -> str:
        words = {"autocast": "bfloat16 autocast", "bfloat16": "bfloat16 weights"}.get(self.precision, self.precision)
        malloc = "" if self.calm_malloc else ", malloc as it is"
        return f"{words}, {self.rows_per_pass} rows per pass, {self.threads} thread(s){malloc}"


@dataclass(frozen=True)
class Workload:
    """One training step: ``prompts`` x ``n`` answers of ``tokens`` tokens."""

    model: Path
    prompts_file: Path
    prompts: int
    n: int
    tokens: int


def interpreter() -> str:
    """A Python with TRL: ``COHORT_BENCH_TRL``, or one that is installed into ``.venv-bench-trl`` now."""
    if given := os.environ.get("COHORT_BENCH_TRL"):
        return given
    root = HERE.parent
    python = root / ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"installing TRL {VERSION} into {ENVIRONMENT} (about a minute)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        pins = ["-c", str(root / "constraints.txt")]
        pip = [str(python), "-m", "pip", "install", "-q", *os.environ.get("PIP_ARGS", "").split(), *pins]
        subprocess.run([*pip, "torch", "numpy"], check=True)
        subprocess.run([*pip, f"trl=={VERSION}"], check=True)
    return str(python)


class Trl:
    """A trainer of TRL in a process of its own; idle between steps.

    Args:
        python: the interpreter.
        work: what a step is.
        setting: how it is run.
        scratch: a folder for whatever TRL writes.
    """

    def __init__(self, python: str, work: Workload, setting: Setting, scratch: Path) -> None:
        self.setting = setting
        self.said: deque[str] = deque(maxlen=40)  # what it printed beside the protocol, for when it dies
        command = [python, str(HERE / "trl_worker.py"), "--model", str(work.model), "--output", str(scratch / "trl")]
        command += ["--prompts-file", str(work.prompts_file), "--prompts", str(work.prompts), "--n", str(work.n)]
        command += ["--tokens", str(work.tokens), "--precision", setting.precision]
        command += ["--rows-per-pass", str(setting.rows_per_pass), "--threads", str(setting.threads)]
        environment = {k: v for k, v in os.environ.items() if k not in CALM_MALLOC and k != "PYTHONPATH"}
        environment |= {"OMP_NUM_THREADS": str(setting.threads), "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1"}
        environment |= CALM_MALLOC if setting.calm_malloc else {}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=scratch,
        )
        self._until("ready")

    def step(self) -> dict[str, float]:
        """Runs one training step: wall and CPU seconds in all, wall seconds of generation, and what TRL logged."""
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        seen = self._until("ready")
        return {**seen.get("logs", {}), **{name: seen[name] for name in ("seconds", "cpu", "generate")}}

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.write("end\n")
            self.process.stdin.flush()
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _until(self, last: str) -> dict:
        """Everything the worker tells up to a message with ``last``."""
        seen: dict = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("bench:"):
                self.said.append(line)
                continue
            seen |= json.loads(line.removeprefix("bench:"))
            if last in seen:
                return seen
        raise RuntimeError("TRL's process ended:\n" + "".join(self.said))
