"""``algorithm.chord.*``: demonstrations mixed into the updates."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.config.schema.limits import Count, Share, Whole, same_as


@dataclass(frozen=True, kw_only=True)
class Chord:
    """Demonstrations of an expert in every update, with weight mu (CHORD, arXiv 2508.11408)."""

    enable: bool = False
    """Make the loss (1 - mu) times that of reinforcement learning plus mu times that of demonstrations."""
    files: tuple[str, ...] = ()
    """Parquet or JSONL files of demonstrations."""
    prompt_key: str = same_as("data.prompt_key", "prompt")
    """Column of the prompt, in rows without messages."""
    response_key: str | None = None
    """Column of the answer; null takes the last of messages, else response, else answer."""
    max_length: Count | None = None
    """Most tokens of prompt and demonstration; longer ones are left out. Null: those of data.max_*_length together."""
    batch_size: Count = 64
    """Demonstrations per update."""
    mu_warmup_steps: Whole = 0
    """Updates in which mu rises from 0 to mu_peak."""
    mu_decay_steps: Whole = 200
    """Updates after that in which mu falls to mu_valley, as a cosine."""
    mu_peak: Share = 0.9
    """The largest mu, from 0 to 1."""
    mu_valley: Share = 0.05
    """The mu that stays at the end; equal to mu_peak for a constant mu."""
    phi: bool = False
    """Weigh each demonstrated token by p (1 - p), p its probability now: CHORD-phi."""
