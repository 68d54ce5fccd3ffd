"""Measurements into a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.generation import LONG, Case, lengths_of
from bench.limits import Limit
from bench.step import PROMPT_TOKENS, PROMPTS, TOKENS, Comparison, N, shares, step_flops
from bench.timing import Turns
from bench.trl_process import VERSION


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was measured in one call.

    Attributes:
        machine: facts, a line each.
        loads: programs that wanted to run, at the start, between the parts and at the end.
        limits: by type and number of threads.
        generation: seconds per case.
        generation_threads: threads of both sides.
        steps: whole steps against TRL.
    """

    machine: Sequence[str]
    loads: Sequence[float]
    limits: dict[tuple[str, int], Limit]
    generation: Sequence[tuple[Case, Turns]]
    generation_threads: int
    steps: Comparison


def render(report: Report) -> str:
    """The page, in Markdown."""
    parts = [_head(report), _steps(report), _generation(report), _limits(report)]
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    loads = ", ".join(f"{load:.1f}" for load in report.loads)
    lines = [f"- {line}" for line in report.machine]
    return "\n".join(
        [
            "# Results",
            "",
            "Written by `make bench`. The two sides of a comparison take turns in one call, and the ratio of each turn",
            "is the result: least / middle / largest. *Wall* is what a person waits for. *Processor* counts the",
            "seconds that the process itself computed, and hardly changes when others want the same cores.",
            "",
            *lines,
            f"- load (programs that wanted to run) at the start, between the parts and at the end: {loads}",
        ]
    )


def _steps(report: Report) -> str:
    steps, turns = report.steps, report.steps.turns
    ours, theirs = turns.our_median, turns.their_median
    limit = report.limits["float32", steps.threads].training
    reached = step_flops(shared_prompt=True) / ours.wall / 1e9
    rate_cpu = step_flops(shared_prompt=True) / ours.cpu / 1e9
    rows = PROMPTS * N
    table = [
        f"## A whole GRPO step against TRL {VERSION}",
        "",
        f"{PROMPTS} prompts x {N} answers x {TOKENS} tokens, prompts of {PROMPT_TOKENS} tokens, KL in the loss,",
        f"one AdamW step, no activation checkpointing; {len(turns.ours)} turns. TRL: {steps.setting}.",
        f"Cohort: {steps.threads} thread(s).",
        "",
        "| | Cohort | TRL | ratio |",
        "|---|---|---|---|",
        f"| wall, s | {ours.wall:.2f} | {theirs.wall:.2f} | {turns.ratio} |",
        f"| processor, s | {ours.cpu:.2f} | {theirs.cpu:.2f} | {turns.cpu_ratio} |",
        f"| completion tokens/s | {rows * TOKENS / ours.wall:.0f} | {rows * TOKENS / theirs.wall:.0f} | |",
        "",
        "Cohort's parts, middle wall seconds: "
        + ", ".join(f"{name} {seconds:.2f}" for name, seconds in shares(steps.parts).items())
        + f". TRL's generation: {sum(steps.generate) / len(steps.generate):.2f}.",
        "",
        f"Linear layers of a step: {step_flops(shared_prompt=True) / 1e9:.0f} GFLOP where a prompt is computed once, "
        f"{step_flops(shared_prompt=False) / 1e9:.0f} where it is computed for each answer. Cohort's step runs them at "
        f"{reached:.0f} GFLOP/s of wall time ({rate_cpu:.0f} of processor time), {reached / limit:.0%} "
        f"({rate_cpu * steps.threads / limit:.0%}) of the measured limit.",
    ]
    if steps.tried:
        table += ["", "| tried before | wall s | processor s |", "|---|---|---|"]
        table += [f"| {name} | {seconds.wall:.2f} | {seconds.cpu:.2f} |" for name, seconds in steps.tried.items()]
    return "\n".join(table)


def _generation(report: Report) -> str:
    table = [
        "## Generation against `model.generate`",
        "",
        f"{PROMPTS} prompts x {N} answers, {report.generation_threads} thread(s).",
        f"Equal: every answer has {LONG} tokens. Uneven: one answer in 32 has {LONG}, the others 10 to 24;",
        "both sides end a row at its EOS id, and `generate` goes on until the last row has ended.",
        "",
        "| case | Cohort wall s | generate wall s | ratio, wall | ratio, processor | tokens/s |",
        "|---|---|---|---|---|---|",
    ]
    for case, turns in report.generation:
        ours, theirs = turns.our_median, turns.their_median
        rate = sum(lengths_of(case)) / ours.wall
        table.append(
            f"| {case.name} | {ours.wall:.2f} | {theirs.wall:.2f} | {turns.ratio} | {turns.cpu_ratio} | {rate:.0f} |"
        )
    return "\n".join(table)


def _limits(report: Report) -> str:
    table = [
        "## Matrix products of this machine",
        "",
        "GFLOP/s at the shapes of the model's layers, weighted by their work, and the best of any shape.",
        "",
        "| type | threads | training pass (2048 tokens) | decoding step (128 rows) | best |",
        "|---|---|---|---|---|",
    ]
    for (dtype, threads), limit in report.limits.items():
        table.append(f"| {dtype} | {threads} | {limit.training:.0f} | {limit.decoding:.0f} | {limit.best:.0f} |")
    return "\n".join(table)
