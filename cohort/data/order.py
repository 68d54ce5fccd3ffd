"""Permutations from a counter-based hash. Imports no torch."""

from __future__ import annotations

import numpy as np


def permutation(n: int, *, seed: int, epoch: int = 0) -> np.ndarray:
    """A permutation of ``range(n)`` from a counter-based hash: the same on any machine and version  # (n,)."""
    return np.argsort(_bits(n, seed, epoch), kind="stable")


def uniforms(n: int, *, seed: int, epoch: int = 0) -> np.ndarray:
    """Numbers between 0 and 1, both left out, from the same hash  # (n,)."""
    return ((_bits(n, seed, epoch) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _bits(n: int, seed: int, epoch: int) -> np.ndarray:
    stream = _mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) + np.uint64(epoch))
    return _mix(stream + np.arange(n, dtype=np.uint64))


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one step of the counter, then the finaliser."""
    x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
