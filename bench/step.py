"""A whole GRPO step, Cohort against TRL: the two take turns, step by step, in one call.

Both sample 16 prompts x 8 answers x 128 tokens from prompts of 64 tokens, score them with the same cheap function,
compute the reference's log-probs, and take one AdamW step on the clipped loss with a KL term. Neither recomputes
activations. Cohort goes through the door of ``cohort train``; TRL is tried in several settings and has its fastest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bench.model import linear_flops, prompt_texts, reward, save_model
from bench.timing import Seconds, Spread, Turns
from bench.trl_process import Setting, Trl, Workload
from cohort.assemble.local import assemble
from cohort.assemble.run import Run
from cohort.config.load import from_keywords
from cohort.models.precision import has_fast_bfloat16

PROMPTS, N, PROMPT_TOKENS, TOKENS = 16, 8, 64, 128
MOST_PROMPTS = 1024
PARTS = {"gen": "generate", "ref": "reference", "update_actor": "update", "update_weights": "publish"}


@dataclass(kw_only=True)
class Comparison:
    """Steps of both sides, in turns.

    Attributes:
        turns: seconds.
        setting: how TRL was run.
        threads: of Cohort.
        tried: wall and processor seconds of every setting that was tried, by its words.
        parts: Cohort's wall seconds by part of the step.
        generate: TRL's wall seconds of generation.
    """

    turns: Turns
    setting: Setting
    threads: int
    tried: dict[str, Seconds]
    parts: dict[str, list[float]] = field(default_factory=dict)
    generate: list[float] = field(default_factory=list)


def prepare(folder: Path) -> Workload:
    """Writes the model and the prompts of both sides."""
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps(prompt_texts(MOST_PROMPTS, PROMPT_TOKENS)), encoding="utf-8")
    return Workload(save_model(folder / "model"), prompts, PROMPTS, N, TOKENS)


def build_cohort(work: Workload, folder: Path) -> Run:
    """Cohort's run; what differs from the preset ``grpo`` is set on TRL's side too."""
    rows = [{"prompt": text} for text in json.loads(work.prompts_file.read_text(encoding="utf-8"))]
    settings = {
        "actor_rollout_ref.model.path": str(work.model),
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "actor_rollout_ref.rollout.n": work.n,
        "actor_rollout_ref.rollout.ignore_eos": True,
        "actor_rollout_ref.actor.ppo_mini_batch_size": work.prompts,
        "actor_rollout_ref.actor.kl_loss_coef": 0.001,
        "data.train_batch_size": work.prompts,
        "data.max_response_length": work.tokens,
        "reward.num_workers": 0,
        "trainer.device": "cpu",
        "trainer.default_local_dir": str(folder / "run"),
        "trainer.logger": [],
    }
    return assemble(from_keywords("grpo", settings), rows=rows, reward=lambda text: reward(text))


def cohort_step(run: Run, parts: dict[str, list[float]] | None = None) -> Seconds:
    """One training step of Cohort."""
    start = Seconds.now()
    record = run.trainer.step()
    seconds = start.passed()
    length = record.metrics["response_length/mean"].read()
    assert length == TOKENS, f"answers have {length} tokens, not {TOKENS}"
    for key, name in PARTS.items():
        if parts is not None:
            parts.setdefault(name, []).append(record.metrics[f"timing_s/{key}"].read())
    return seconds


def trl_step(trl: Trl, generate: list[float] | None = None) -> Seconds:
    """One training step of TRL."""
    seen = trl.step()
    length = seen["completions/mean_length"]
    assert length == TOKENS, f"TRL's answers have {length} tokens, not {TOKENS}"
    if generate is not None:
        generate.append(seen["generate"])
    return Seconds(seen["seconds"], seen["cpu"])


def settle_trl(seconds: Callable[[Setting], Seconds], threads: Sequence[int]) -> Setting:
    """TRL's fastest setting on this machine, one choice after the other: precision, rows, threads, malloc.

    bfloat16 is tried where the processor has units for it; without them its matrix products are many times slower
    than those in float32, as the limits show. One thread is judged by its processor seconds, which other programs
    hardly touch.
    """

    def cost(setting: Setting) -> float:
        return seconds(setting).cpu if len(threads) == 1 and threads[0] == 1 else seconds(setting).wall

    best = Setting("float32", 32, max(threads))
    if has_fast_bfloat16(torch.device("cpu")):
        best = min((best, *(replace(best, precision=name) for name in ("autocast", "bfloat16"))), key=cost)
    best = min((best, *(replace(best, rows_per_pass=rows) for rows in (16, 128))), key=cost)
    best = min((replace(best, threads=number) for number in threads), key=cost)
    return min((best, replace(best, calm_malloc=False)), key=cost)


def compare(
    python: str, folder: Path, *, turns: int, threads: int | None = None, setting: Setting | None = None
) -> Comparison:
    """Alternates both sides for ``turns`` turns, after a step of each that does not count.

    Args:
        python: an interpreter that has TRL.
        folder: for models and whatever either side writes.
        turns: how many.
        threads: of both sides; None finds what is best for each.
        setting: how TRL is run; None finds its best.
    """
    choices = [threads] if threads else sorted({1, min(os.cpu_count() or 1, 2)})
    work = prepare(folder)
    run = build_cohort(work, folder)
    tried: dict[str, Seconds] = {}

    def trl_seconds(option: Setting) -> Seconds:
        if f"TRL: {option}" not in tried:
            trl = Trl(python, work, option, folder)
            tried[f"TRL: {option}"] = min(trl_step(trl) for _ in range(2))
            trl.close()
            print(f"  TRL, {option}: {tried[f'TRL: {option}'].wall:.2f} s", flush=True)
        return tried[f"TRL: {option}"]

    def cohort_seconds(number: int) -> Seconds:
        torch.set_num_threads(number)
        name = f"Cohort: {number} thread(s)"
        tried[name] = min(cohort_step(run) for _ in range(2))
        print(f"  {name}: {tried[name].wall:.2f} s", flush=True)
        return tried[name]

    own_threads = choices[0] if len(choices) == 1 else min(choices, key=cohort_seconds)
    setting = setting or settle_trl(trl_seconds, choices)
    torch.set_num_threads(own_threads)
    result = Comparison(turns=Turns(), setting=setting, threads=own_threads, tried=tried)
    trl = Trl(python, work, setting, folder)
    try:
        cohort_step(run)
        trl_step(trl)
        for turn in range(turns):
            result.turns.add(cohort_step(run, result.parts), trl_step(trl, result.generate))
            print(f"  turn {turn + 1}: {result.turns}", flush=True)
    finally:
        trl.close()
        run.close()
    return result


def step_flops(*, shared_prompt: bool) -> float:
    """Operations of one step's linear layers: generation, reference, update.

    Args:
        shared_prompt: a prompt is computed once for all its answers, as Cohort does, and not once for each.
    """
    answers = PROMPTS * N * TOKENS
    prompts = PROMPTS * PROMPT_TOKENS * (1 if shared_prompt else N)
    forward = linear_flops(decoder_tokens=prompts + answers, head_tokens=answers)
    return forward + forward + 3 * forward


def shares(parts: dict[str, list[float]]) -> dict[str, float]:
    """Middle seconds of each part."""
    return {name: Spread.of(seconds).median for name, seconds in parts.items()}
