"""What the machine can do: matrix products at the shapes of the model, in float32 and bfloat16."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bench.model import HEAD_DIM, HEADS, INTERMEDIATE, KV_HEADS, LAYERS, VOCABULARY, WIDTH

LAYER = {
    "q": (WIDTH, HEADS * HEAD_DIM),
    "k, v": (WIDTH, KV_HEADS * HEAD_DIM),
    "o": (HEADS * HEAD_DIM, WIDTH),
    "gate, up": (WIDTH, INTERMEDIATE),
    "down": (INTERMEDIATE, WIDTH),
    "head": (WIDTH, VOCABULARY),
}
"""Inputs and outputs of the model's linear layers."""

TRAINING_ROWS, DECODING_ROWS = 2048, 128
"""Tokens that meet a layer at once, in a training pass and in a decoding step."""


@dataclass(frozen=True)
class Limit:
    """GFLOP/s of matrix products, weighted as the model's layers are.

    Attributes:
        training: many tokens at once.
        decoding: one token of each row.
        best: of any shape that was tried, a large square included.
    """

    training: float
    decoding: float
    best: float


def speed(rows: int, inputs: int, outputs: int, dtype: torch.dtype, *, repeats: int) -> float:
    """GFLOP/s of one layer, the best of a few tries of about 20 ms; one thread is timed by its processor seconds."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    work = 2.0 * rows * inputs * outputs
    F.linear(x, weight)
    start = clock()
    F.linear(x, weight)
    times = max(1, round(0.02 / (clock() - start)))
    best = float("inf")
    for _ in range(repeats):
        start = clock()
        for _ in range(times):
            F.linear(x, weight)
        best = min(best, (clock() - start) / times)
    return work / best / 1e9


def limit(dtype: torch.dtype, threads: int, *, repeats: int = 5) -> Limit:
    """What ``threads`` threads reach."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rates = {
            rows: {n: speed(rows, *LAYER[n], dtype, repeats=repeats) for n in LAYER}
            for rows in (TRAINING_ROWS, DECODING_ROWS)
        }
        square = speed(1024, 1024, 1024, dtype, repeats=repeats)
    finally:
        torch.set_num_threads(before)
    best = max(square, *(rate for by_layer in rates.values() for rate in by_layer.values()))
    return Limit(_weighted(rates[TRAINING_ROWS]), _weighted(rates[DECODING_ROWS]), best)


def _weighted(rates: dict[str, float]) -> float:
    """One rate for the layers together: their work over the time they take."""
    count = {n: LAYERS * len(n.split(",")) for n in LAYER} | {"head": 1}
    work = {n: inputs * outputs * count[n] for n, (inputs, outputs) in LAYER.items()}
    return sum(work.values()) / sum(work[n] / rates[n] for n in work)
