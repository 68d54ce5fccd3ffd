"""Generation: the embedded engine against ``model.generate``, alternating in one process.

    python bench/generation.py            # all cases, about five minutes on one core
    python bench/generation.py --quick    # one short round of each

A 5M-parameter Qwen3, 16 prompts x 8 answers x 128 tokens. Ratios are the result: the two sides take turns,
so a busy machine slows both. ``matmul`` is the machine's measured matrix-product speed at the same time, and
``of limit`` the share of it that the engine's own linear layers reach over the whole run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessor, Qwen3Config
from transformers.generation.logits_process import LogitsProcessorList

from cohort.protocols import Request, Sampling, SeedKey
from cohort.rollout.native import NativeSampler

PROMPTS, SAMPLES, EOS = 16, 8, 1
LONG = 128


@dataclass(frozen=True)
class Case:
    """Prompt tokens, and how many tokens each of a prompt's answers has."""

    name: str
    prompt: int
    lengths: tuple[int, ...]


EQUAL = (LONG,) * SAMPLES
UNEVEN = (16, 12, 20, 16, 24, 10, 14, 16)
CASES = (
    Case("equal, prompt 64", 64, EQUAL),
    Case("equal, prompt 128", 128, EQUAL),
    Case("equal, prompt 512", 512, EQUAL),
    Case("uneven, prompt 64", 64, UNEVEN),
    Case("uneven, prompt 128", 128, UNEVEN),
)


def make_model() -> Any:
    """A Qwen3 of 4.7 million parameters with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=704,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def prompts_of(case: Case) -> list[tuple[int, ...]]:
    """Random prompts of the case's length."""
    drawn = torch.randint(2, 1024, (PROMPTS, case.prompt), generator=torch.Generator().manual_seed(1))
    return [tuple(row) for row in drawn.tolist()]


def lengths_of(case: Case) -> list[int]:
    """Answer lengths, row by row. In uneven cases one row in 32 is long."""
    rows = [length for _ in range(PROMPTS) for length in case.lengths]
    if case.lengths != EQUAL:
        rows[::32] = [LONG] * len(rows[::32])
    return rows


class EndAt(LogitsProcessor):
    """Lets row ``i`` end at ``lengths[i]`` tokens, neither before nor behind it."""

    def __init__(self, prompt: int, lengths: list[int]) -> None:
        self.prompt, self.lengths = prompt, torch.tensor(lengths)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Forbids or forces the EOS id."""
        over = self.lengths <= input_ids.shape[1] - self.prompt + 1
        scores[:, EOS] = torch.where(over, 1e4, -1e4).to(scores.dtype)
        return scores


def hugging_face(model: Any, case: Case) -> float:
    """Seconds ``model.generate`` takes."""
    lengths = lengths_of(case)
    ids = torch.tensor(prompts_of(case)).repeat_interleave(SAMPLES, 0)
    settings = GenerationConfig(
        max_new_tokens=LONG, do_sample=True, temperature=1.0, top_k=0, eos_token_id=EOS, pad_token_id=0
    )
    start = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=settings,
        logits_processor=LogitsProcessorList([EndAt(case.prompt, lengths)]),
    )
    return time.perf_counter() - start


def native(sampler: NativeSampler, case: Case) -> float:
    """Seconds the engine takes."""
    lengths = lengths_of(case)
    requests = [
        Request(
            ids=ids,
            sampling=Sampling(max_tokens=lengths[p * SAMPLES + s]),
            key=SeedKey(seed=0, step=0, prompt=p, sample=s),
        )
        for p, ids in enumerate(prompts_of(case))
        for s in range(SAMPLES)
    ]

    async def work() -> int:
        done = await asyncio.gather(*[sampler.complete(request) for request in requests])
        return sum(len(completion.ids) for completion in done)

    start = time.perf_counter()
    tokens = asyncio.run(work())
    assert tokens == sum(lengths), "every answer has the length it was given"
    return time.perf_counter() - start


def matmul_speed() -> float:
    """GFLOP/s of a square matrix product."""
    a = torch.randn(1024, 1024)
    torch.mm(a, a)
    start = time.perf_counter()
    for _ in range(3):
        torch.mm(a, a)
    return 3 * 2 * 1024**3 / (time.perf_counter() - start) / 1e9


def main() -> None:
    """Runs the cases and prints the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one round, prompts of 128 tokens only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--bf16", action="store_true", help="measure model.generate in bfloat16 too")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    model = make_model()
    parameters = sum(p.numel() for p in model.parameters())
    sampler = NativeSampler(model, eos_ids=())
    narrow = make_model().to(torch.bfloat16) if args.bf16 else None
    cases = [c for c in CASES if args.only in c.name and (not args.quick or c.prompt == 128)]
    table = Table("case", "native s", "generate s", "generate bf16 s", "ratio", "tokens/s", "matmul GF/s", "of limit")
    for case in cases:
        ours, theirs, half, speed = [], [], [], []
        native(sampler, Case("warm-up", 16, EQUAL))
        for _ in range(1 if args.quick else args.rounds):
            speed.append(matmul_speed())
            theirs.append(hugging_face(model, case))
            ours.append(native(sampler, case))
            if narrow is not None:
                half.append(hugging_face(narrow, case))
        tokens = sum(lengths_of(case)) + PROMPTS * case.prompt
        limit = 2 * parameters * tokens / statistics.median(speed) / 1e9
        best = [min(pair) for pair in zip(theirs, half, strict=True)] if half else theirs
        ratio = statistics.median(t / o for t, o in zip(best, ours, strict=True))
        table.add_row(
            case.name,
            f"{statistics.median(ours):.2f}",
            f"{statistics.median(theirs):.2f}",
            f"{statistics.median(half):.2f}" if half else "-",
            f"{ratio:.2f}",
            f"{sum(lengths_of(case)) / statistics.median(ours):.0f}",
            f"{statistics.median(speed):.0f}",
            f"{limit / statistics.median(ours):.2f}",
        )
    Console().print(f"{parameters / 1e6:.1f}M parameters, {torch.get_num_threads()} thread(s)", table)


if __name__ == "__main__":
    main()
