"""Drawing tokens: the counter-based random numbers, the transforms, and the draw itself.

**Randomness.** Each draw is a function of (seed, step, prompt, sample, position) alone. Nothing is kept
between draws, so there is nothing to checkpoint, and a draw is the same in any process, in any batch, on
any device. The hash is splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators", section 4; constants of Stafford's variant 13), in int64 arithmetic that wraps around.

**What the log-probs mean.** They are of the distribution that was drawn from. With temperature alone
that is ``log_softmax(logits / temperature)`` over the whole vocabulary, the same thing the trainer
computes. With top-k, top-p or min-p it is that distribution renormalised over the tokens that survive.
Greedy (temperature 0) takes the likeliest token and reports its log-prob at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.errors import UserError
from cohort.protocols import Sampling, SeedKey

MOST_ELEMENTS = 1 << 22
"""Rows times vocabulary that one pass of ``sample`` works on; bounds its memory."""

BLOCK = 64
"""Tokens that ``draw`` first looks at as one."""


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch shifts int64 arithmetically, so the copies of the sign are cut off."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The splitmix64 finaliser: a bijection of int64 in which every output bit depends on every input bit."""
    x = (x ^ _shifted(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shifted(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shifted(x, 31)


def streams(keys: Sequence[SeedKey]) -> Tensor:
    """The hash of each key, to be combined with a position by ``uniforms``  # (R,) int64, on the CPU."""
    fields = torch.tensor([(key.seed, key.step, key.prompt, key.sample) for key in keys], dtype=torch.int64)
    fields = fields.view(-1, 4)
    stream = torch.zeros(len(fields), dtype=torch.int64)
    for i in range(4):
        stream = _mix(stream * _GOLDEN + _mix(fields[:, i] + _GOLDEN) + i)
    return stream


def uniforms(stream: Tensor, positions: Tensor) -> Tensor:
    """One number in [0, 1) per (stream, position), 53 random bits each.

    Args:
        stream: from ``streams``                          # (R,) int64
        positions: absolute positions of the draws        # broadcastable with (R,) int64

    Returns:
        float64, of the broadcast shape.
    """
    bits = _mix(stream + (positions + 1) * _GOLDEN)
    return _shifted(bits, 11).to(torch.float64) * 2.0**-53


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The sampling settings of R rows as tensors; None where no row uses a transform.

    Attributes:
        temperature: 1 in greedy rows; None where it is 1 in all            # (R, 1)
        greedy: rows of temperature 0                                       # (R,) bool
        top_k: tokens kept, the vocabulary size and more where unused       # (R, 1) int64
        top_p: probability mass kept                                        # (R, 1)
        min_p: natural log of the share of the likeliest, -inf where unused # (R, 1)
    """

    temperature: Tensor | None
    greedy: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None

    @staticmethod
    def of(samplings: Sequence[Sampling], device: torch.device | str = "cpu") -> Settings:
        """The settings of these rows, in this order."""

        def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        greedy = [s.temperature == 0 for s in samplings]
        return Settings(
            temperature=column([s.temperature or 1.0 for s in samplings])
            if any(s.temperature not in (0, 1) for s in samplings)
            else None,
            greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
            top_k=column([s.top_k if s.top_k > 0 else 1 << 40 for s in samplings], torch.int64)
            if any(s.top_k > 0 for s in samplings)
            else None,
            top_p=column([s.top_p for s in samplings]) if any(s.top_p < 1 for s in samplings) else None,
            min_p=column([s.min_p for s in samplings]).log() if any(s.min_p > 0 for s in samplings) else None,
        )

    def rows(self, start: int, stop: int) -> Settings:
        """The settings of rows ``start`` to ``stop``."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[start:stop]

        return Settings(
            temperature=cut(self.temperature),
            greedy=cut(self.greedy),
            top_k=cut(self.top_k),
            top_p=cut(self.top_p),
            min_p=cut(self.min_p),
        )


def check_sampling(sampling: Sampling) -> None:
    """Refuses settings that mean nothing.

    Raises:
        UserError: naming the setting, its value and what is legal.
    """
    legal = {
        "temperature": (sampling.temperature >= 0, "0 (greedy) or more"),
        "top_k": (sampling.top_k >= -1, "-1 (all) or a positive number"),
        "top_p": (0 < sampling.top_p <= 1, "above 0 and at most 1"),
        "min_p": (0 <= sampling.min_p <= 1, "between 0 and 1"),
        "stop": (all(sampling.stop), "non-empty strings"),
    }
    for name, (fine, wanted) in legal.items():
        if not fine:
            raise UserError(f"sampling: {name}={getattr(sampling, name)!r} must be {wanted}")


def log_distribution(logits: Tensor, settings: Settings) -> Tensor:
    """Log-probs of the distribution that is drawn from; -inf where a token cannot be drawn.

    Transforms apply in the order temperature, top-k, top-p, min-p, each to the outcome of the one before.
    A token that ties with the last one kept by top-k is kept too.

    Args:
        logits: in float32 or float64   # (R, V)
        settings: of the R rows

    Returns:
        # (R, V)
    """
    x = logits if settings.temperature is None else logits / settings.temperature.to(logits.dtype)
    if settings.top_k is not None:
        ordered = x.sort(dim=-1, descending=True).values
        last = ordered.gather(1, settings.top_k.clamp(max=x.shape[1]) - 1)
        x = x.masked_fill(x < last, float("-inf"))
    if settings.top_p is not None:
        ordered, order = x.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        before = probs.cumsum(-1) - probs
        drop = (before >= settings.top_p.to(x.dtype)) & (settings.top_p < 1)
        drop[:, 0] = False  # the likeliest token always stays
        x = x.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), float("-inf"))
    if settings.min_p is not None:
        x = x.masked_fill(x < x.amax(-1, keepdim=True) + settings.min_p.to(x.dtype), float("-inf"))
    return x.log_softmax(-1)


def draw(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """One token per row by inverting the cumulative distribution; never one of probability 0.

    First the block of the vocabulary, then the token in it: sums in float64 over all of the vocabulary would take
    twice as long.

    Args:
        log_probs: normalised          # (R, V)
        uniform: in [0, 1)             # (R,) float64

    Returns:
        token ids                      # (R,) int64
    """
    wide = torch.float32 if log_probs.device.type == "mps" else torch.float64
    probs = log_probs.exp()
    blocks = F.pad(probs, (0, -probs.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))  # (R, blocks, BLOCK)
    cumulative = blocks.sum(-1, dtype=wide).cumsum(-1)  # (R, blocks)
    target = uniform.to(device=probs.device, dtype=wide)[:, None] * cumulative[:, -1:]
    # The first block, and in it the first token, whose cumulative mass exceeds the target: its mass is above 0 ...
    block = torch.searchsorted(cumulative, target, right=True).clamp(max=cumulative.shape[1] - 1)  # (R, 1)
    inside = blocks.gather(1, block[..., None].expand(-1, 1, BLOCK))[:, 0].to(wide).cumsum(-1)  # (R, BLOCK)
    target = target - (cumulative.gather(1, block) - inside[:, -1:])
    picked = block * BLOCK + torch.searchsorted(inside, target, right=True)
    picked = picked.clamp(max=probs.shape[1] - 1)
    # ... but for rounding: where the target is a total itself, or a parallel sum is not quite monotone.
    sound = probs.gather(1, picked) > 0
    if not bool(sound.all()):
        picked = torch.where(sound, picked, probs.argmax(-1, keepdim=True))
    return picked[:, 0]


def sample(logits: Tensor, settings: Settings, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one token per row and reports its log-prob.

    Args:
        logits: of any float type; half types are widened   # (R, V)
        settings: of the R rows
        uniform: one number per row                          # (R,) float64

    Returns:
        token ids (R,) int64 and their log-probs (R,).
    """
    tokens, log_probs = [], []
    size = max(1, MOST_ELEMENTS // logits.shape[1])
    for start in range(0, len(logits), size):
        part = logits[start : start + size]
        part = part if part.dtype is torch.float64 else part.float()
        chosen, at = _sample(part, settings.rows(start, start + size), uniform[start : start + size])
        tokens.append(chosen)
        log_probs.append(at)
    return torch.cat(tokens), torch.cat(log_probs)


def _sample(logits: Tensor, settings: Settings, uniform: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = log_distribution(logits, settings)
    tokens = draw(log_probs, uniform)
    if settings.greedy is not None:
        tokens = torch.where(settings.greedy, logits.argmax(-1), tokens)
        log_probs = torch.where(settings.greedy[:, None], logits.log_softmax(-1), log_probs)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]
