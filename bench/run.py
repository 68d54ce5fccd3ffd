"""Measures everything and writes ``bench/RESULTS.md``.

    python -m bench.run            # about half an hour on two quiet cores
    python -m bench.run --quick    # a few minutes, printed only

``COHORT_BENCH_TRL`` names a Python that has TRL; without it one is installed into ``.venv-bench-trl``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch

from bench import generation, limits, machine, step
from bench.report import Report, render
from bench.trl_process import Setting, interpreter

RESULTS = Path(__file__).parent / "RESULTS.md"


def measure(*, quick: bool, turns: int, threads: int | None, trl: Setting | None) -> Report:
    """Limits, then whole steps, then generation; how busy the machine was is read before and after."""
    loads = [machine.load()]
    counts = [threads] if threads else sorted({1, min(os.cpu_count() or 1, 2)})
    dtypes = (torch.float32, torch.bfloat16)
    found = {(str(d).removeprefix("torch."), t): limits.limit(d, t) for d in dtypes for t in counts}
    print("whole steps", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        steps = step.compare(interpreter(), Path(folder), turns=1 if quick else turns, threads=threads, setting=trl)
    loads.append(machine.load())
    print("generation", flush=True)
    torch.set_num_threads(threads or 1)
    cases = tuple(c for c in generation.CASES if c.prompt == 64 or not quick)
    generated = generation.compare(cases, rounds=1 if quick else turns)
    loads.append(machine.load())
    return Report(
        machine=machine.words(),
        loads=loads,
        limits=found,
        generation=generated,
        generation_threads=threads or 1,
        steps=steps,
    )


def main() -> None:
    """Runs from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one turn of each, printed only")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of everything; without it the best is found for each side")
    args = parser.parse_args()
    threads = args.threads or (1 if args.quick else None)
    trl = Setting("float32", 32, 1) if args.quick else None
    text = render(measure(quick=args.quick, turns=args.turns, threads=threads, trl=trl))
    print(text)
    if not args.quick:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
