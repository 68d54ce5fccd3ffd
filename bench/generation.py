"""Generation: the embedded engine against ``model.generate``, alternating in one process.

    python -m bench.generation            # all cases, about five minutes on one core
    python -m bench.generation --quick    # one round, prompts of 128 tokens only

16 prompts x 8 answers. Ratios are the result: the two sides take turns, so a busy machine slows both, and the
ratio of processor seconds hardly feels it. ``model.generate`` has the better precision of the two where the
processor multiplies bfloat16 in hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor
from transformers.generation.logits_process import LogitsProcessorList

from bench.model import EOS, PAD, VOCABULARY, make_model
from bench.timing import Seconds, Turns
from cohort.models.memory import keep_freed_memory
from cohort.models.precision import resolve_precision
from cohort.protocols import Request, Sampling, SeedKey
from cohort.rollout.native import NativeSampler

PROMPTS, SAMPLES, LONG = 16, 8, 128


@dataclass(frozen=True)
class Case:
    """Prompt tokens, how many tokens each of a prompt's answers has, and which rows are long instead."""

    name: str
    prompt: int
    lengths: tuple[int, ...]
    long_every: int | None = None


EQUAL = (LONG,) * SAMPLES
UNEVEN = (16, 12, 20, 16, 24, 10, 14, 16)
CASES = (
    Case("equal, prompt 64", 64, EQUAL),
    Case("equal, prompt 128", 128, EQUAL),
    Case("equal, prompt 256", 256, EQUAL),
    Case("uneven, prompt 64", 64, UNEVEN, long_every=32),
    Case("uneven, prompt 128", 128, UNEVEN, long_every=32),
)


def prompts_of(case: Case) -> list[tuple[int, ...]]:
    """Random prompts of the case's length."""
    drawn = torch.randint(2, VOCABULARY, (PROMPTS, case.prompt), generator=torch.Generator().manual_seed(1))
    return [tuple(row) for row in drawn.tolist()]


def lengths_of(case: Case) -> list[int]:
    """Answer lengths, row by row."""
    rows = [length for _ in range(PROMPTS) for length in case.lengths]
    if case.long_every:
        rows[:: case.long_every] = [LONG] * len(rows[:: case.long_every])
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


def hugging_face(model: Any, case: Case) -> Seconds:
    """What ``model.generate`` takes. It stops when every row has drawn its EOS id."""
    lengths = lengths_of(case)
    ids = torch.tensor(prompts_of(case)).repeat_interleave(SAMPLES, 0)
    settings = GenerationConfig(
        max_new_tokens=LONG, do_sample=True, temperature=1.0, top_k=0, eos_token_id=EOS, pad_token_id=PAD
    )
    start = Seconds.now()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=settings,
        logits_processor=LogitsProcessorList([EndAt(case.prompt, lengths)]),
    )
    return start.passed()


def native(sampler: NativeSampler, case: Case) -> Seconds:
    """What the engine takes."""
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

    start = Seconds.now()
    tokens = asyncio.run(work())
    assert tokens == sum(lengths), "every answer has the length it was given"
    return start.passed()


def precisions(model: Any) -> list[torch.dtype]:
    """What ``model.generate`` is tried in: bfloat16 too where the processor is fast at it."""
    rule = resolve_precision(torch.device("cpu"), model.num_parameters())
    return [torch.float32] if rule == torch.float32 else [torch.float32, rule]


def compare(cases: tuple[Case, ...], *, rounds: int) -> list[tuple[Case, Turns]]:
    """Both sides in turns, ``rounds`` of them per case, after one of each that does not count.

    The engine runs in the precision that Cohort's rule picks, as it does in training. Both run in a process that keeps
    the memory it has freed.
    """
    keep_freed_memory()
    model = make_model()
    dtypes = precisions(model)
    theirs = [make_model().to(dtype) for dtype in dtypes]
    sampler = NativeSampler(model, eos_ids=(), dtype=dtypes[-1])
    results = []
    for case in cases:
        turns = Turns()
        native(sampler, case)
        hugging_face(theirs[-1], Case("warm-up", case.prompt, (4,) * SAMPLES))
        for _ in range(rounds):
            turns.add(native(sampler, case), min(hugging_face(each, case) for each in theirs))
        print(f"  {case.name}: {turns}", flush=True)
        results.append((case, turns))
    return results


def main() -> None:
    """Runs the cases and prints the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one round, prompts of 128 tokens only")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    cases = tuple(c for c in CASES if args.only in c.name and (not args.quick or c.prompt == 128))
    compare(cases, rounds=1 if args.quick else args.rounds)


if __name__ == "__main__":
    main()
