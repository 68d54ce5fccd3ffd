"""The machine in words, without its name or its paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

TELLING = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
"""CPU flags that decide how fast matrix products are."""


def words() -> list[str]:
    """One line per fact."""
    import transformers

    flags = cpu_flags()
    shown = ", ".join(flag for flag in TELLING if flag in flags) or "none of " + ", ".join(TELLING)
    missing = "" if {"avx512_bf16", "amx_bf16", "bf16"} & flags else " (no bfloat16 units)"
    return [
        f"{os.cpu_count()} cores, {platform.machine()}, {memory_gib():.0f} GiB of memory; flags {shown}{missing}",
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}",
    ]


def cpu_flags() -> set[str]:
    """What the kernel lists."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:  # not Linux
        return set()
    for line in lines:
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return set()


def memory_gib() -> float:
    """Physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def load() -> float:
    """Programs that wanted to run, on average over the last minute."""
    return os.getloadavg()[0]
