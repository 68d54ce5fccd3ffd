"""A whole GRPO step, Cohort against TRL: the two take turns, step by step, in one call.

Both sample 16 prompts x 8 answers x 128 tokens from prompts of 64 tokens, score them with the same cheap function,
compute the reference's log-probs, and take one AdamW step on the clipped loss with a KL term.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench.model import linear_flops, prompt_texts, reward, save_model
from bench.trl_process import Setting, Trl, Workload
from cohort.assemble.local import assemble
from cohort.assemble.run import Run
from cohort.config.load import from_keywords

PROMPTS, N, PROMPT_TOKENS, TOKENS = 16, 8, 64, 128
MOST_PROMPTS = 1024


@dataclass
class Side:
    """Seconds of each step, whole and of its parts."""

    whole: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, whole: float, cpu: float, **parts: float) -> None:
        """One more step: wall and CPU seconds, and wall seconds of its parts."""
        self.whole.append(whole)
        self.cpu.append(cpu)
        for name, seconds in parts.items():
            self.parts.setdefault(name, []).append(seconds)


@dataclass(frozen=True)
class Comparison:
    """Steps of both sides, in turns."""

    cohort: Side
    trl: Side
    setting: Setting
    threads: int
    tried: dict[str, float]

    @property
    def ratios(self) -> list[float]:
        """How many times as long TRL's step took, turn by turn."""
        return [theirs / ours for theirs, ours in zip(self.trl.whole, self.cohort.whole, strict=True)]


def prepare(folder: Path) -> Workload:
    """Writes the model and the prompts of both sides."""
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps(prompt_texts(MOST_PROMPTS, PROMPT_TOKENS)), encoding="utf-8")
    return Workload(save_model(folder / "model"), prompts, PROMPTS, N, TOKENS)


def build_cohort(work: Workload, folder: Path, **keywords: object) -> Run:
    """Cohort's run through the same door as ``cohort train``; what is set here is set on TRL's side too."""
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
        "trainer.default_local_dir": str(folder / "run"),
        "trainer.logger": [],
    }
    config = from_keywords("grpo", settings | keywords)
    return assemble(config, rows=rows, reward=lambda text: reward(text))


def cohort_step(run: Run, side: Side) -> None:
    """One training step of Cohort."""
    start, cpu_start = time.perf_counter(), time.process_time()
    record = run.trainer.step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    length = record.metrics["response_length/mean"].read()
    assert length == TOKENS, f"answers have {length} tokens, not {TOKENS}"
    names = {"gen": "generate", "ref": "reference", "update_actor": "update", "update_weights": "publish"}
    side.add(seconds, cpu, **{name: record.metrics[f"timing_s/{key}"].read() for key, name in names.items()})


def trl_step(trl: Trl, side: Side) -> None:
    """One training step of TRL."""
    seen = trl.step()
    length = seen["completions/mean_length"]
    assert length == TOKENS, f"TRL's answers have {length} tokens, not {TOKENS}"
    side.add(seen["seconds"], seen["cpu"], generate=seen["generate"])


def best_setting(python: str, work: Workload, folder: Path, *, quick: bool) -> tuple[Setting, dict[str, float]]:
    """TRL's fastest setting on this machine, one choice after the other, and the seconds of all that were tried."""
    tried: dict[str, float] = {}

    def seconds(setting: Setting) -> float:
        if str(setting) not in tried:
            trl, side = Trl(python, work, setting, folder), Side()
            for _ in range(2 if quick else 3):
                trl_step(trl, side)
            trl.close()
            tried[str(setting)] = min(side.whole[1:])
            print(f"  TRL, {setting}: {tried[str(setting)]:.2f} s", flush=True)
        return tried[str(setting)]

    best = Setting("float32", 32, 2)
    best = min((best, Setting("autocast", 32, 2), Setting("bfloat16", 32, 2)), key=seconds)
    best = min((best, Setting(best.precision, 128, 2), Setting(best.precision, 16, 2)), key=seconds)
    best = min((best, Setting(best.precision, best.rows_per_pass, 1)), key=seconds)
    best = min((best, Setting(best.precision, best.rows_per_pass, best.threads, calm_malloc=False)), key=seconds)
    return best, tried


def compare(
    python: str, folder: Path, *, turns: int, threads: int, quick: bool, setting: Setting | None = None
) -> Comparison:
    """Alternates both sides for ``turns`` turns, after a step of each that does not count."""
    work = prepare(folder)
    tried: dict[str, float] = {}
    if setting is None:
        setting, tried = best_setting(python, work, folder, quick=quick)
    torch.set_num_threads(threads)
    run, trl = build_cohort(work, folder), Trl(python, work, setting, folder)
    ours, theirs = Side(), Side()
    try:
        cohort_step(run, Side())
        trl_step(trl, Side())
        for turn in range(turns):
            cohort_step(run, ours)
            trl_step(trl, theirs)
            print(
                f"  turn {turn + 1}: Cohort {ours.whole[-1]:.2f} s (CPU {ours.cpu[-1]:.2f}), "
                f"TRL {theirs.whole[-1]:.2f} s (CPU {theirs.cpu[-1]:.2f})",
                flush=True,
            )
    finally:
        trl.close()
        run.close()
    return Comparison(ours, theirs, setting, threads, tried)


def step_flops(*, shared_prompt: bool) -> float:
    """Operations of one step's linear layers: generation, reference, update.

    Args:
        shared_prompt: a prompt is computed once for all its answers, as Cohort does, and not once for each.
    """
    rows = PROMPTS * N
    prompts = (PROMPTS if shared_prompt else rows) * PROMPT_TOKENS
    answers = rows * TOKENS
    generate = linear_flops(decoder_tokens=prompts + answers, head_tokens=answers)
    reference = linear_flops(decoder_tokens=prompts + answers, head_tokens=answers)
    update = linear_flops(decoder_tokens=prompts + answers, head_tokens=answers, backward=True)
    return generate + reference + update


def median(values: list[float]) -> float:
    """The middle one."""
    return statistics.median(values)
