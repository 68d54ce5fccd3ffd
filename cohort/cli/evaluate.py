"""``cohort eval --model DIR --data FILE``: the trainer's validation on any model folder."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cohort.cli.sampling_options import add_sampling_options, sampling_of

if TYPE_CHECKING:
    from cohort.assemble.inference import Inference
    from cohort.config.schema import RewardModel
    from cohort.rewards.base import RewardFunction
    from cohort.rewards.mixed import MixedReward
    from cohort.rewards.runner import RewardRunner
    from cohort.trainer.evaluate import Evaluation
    from cohort.types import Prompt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--data", required=True, nargs="+", metavar="FILE", help="parquet or JSONL files")
    add_sampling_options(parser, temperature=0.0)
    parser.add_argument("--prompt-key", default="prompt", help="column with the prompt (default: %(default)s)")
    parser.add_argument("--max-samples", type=int, default=-1, help="use the first so many rows; -1 uses all")
    parser.add_argument("--batch-size", type=int, default=None, help="prompts in flight together; default: all")
    parser.add_argument("--reward", metavar="NAME|FILE.py[:FUNCTION]", help="default: the built-in of each data_source")
    parser.add_argument(
        "--reward-model",
        nargs="+",
        metavar="KEY=VALUE",
        help="grade with a model, alone or beside --reward: keys of reward_model.*, such as model.path=DIR kind=judge",
    )
    parser.add_argument("--reward-workers", type=int, default=2, help="processes for rewards; 0 runs them inline")
    parser.add_argument(
        "--max-unscorable-rate", type=float, default=0.1, help="above this share it is an error (default: %(default)s)"
    )
    parser.add_argument("--out", metavar="FILE.jsonl", help="also write every answer here")


def run(args: argparse.Namespace) -> int:
    """Prints one line per data source and every metric."""
    from cohort.assemble.inference import load_inference
    from cohort.data.dataset import build_prompts
    from cohort.data.files import load_rows
    from cohort.rewards.unscorable import check_unscorable
    from cohort.rollout.collect import collect
    from cohort.trainer.evaluate import evaluate

    sampling = sampling_of(args)
    rows = load_rows(args.data, key="--data")
    inference = load_inference(args.model, device=args.device, dtype=args.dtype, engine=args.engine)
    prompts = build_prompts(rows, inference.tokenizer, prompt_key=args.prompt_key, max_samples=args.max_samples)
    reward = build_reward(args, inference, prompts)
    try:
        reward.check(prompts)
        work = evaluate(
            prompts,
            n=args.n,
            environment=inference.environment,
            sampler=inference.sampler,
            sampling=sampling,
            reward=reward,
            seed=args.seed,
            collect=collect,
            batch_size=args.batch_size,
        )
        evaluation = inference.event_loop.run(work)
    finally:
        reward.close()
        inference.event_loop.close()
    report(evaluation, args.out)
    check_unscorable([rollout.score for rollout in evaluation.rollouts], args.max_unscorable_rate)
    return 0


def build_reward(args: argparse.Namespace, inference: Inference, prompts: list[Prompt]) -> RewardRunner | MixedReward:
    """The functions that grade, the model, or the sum of both."""
    from rich.console import Console

    from cohort.assemble.reward_model import build_grader
    from cohort.data.tokenizer import prefill
    from cohort.models.build import pick_device
    from cohort.rewards.mixed import MixedReward
    from cohort.rewards.runner import RewardRunner

    live: dict[str, object] = {"sampler": inference.sampler, "tokenizer": inference.tokenizer}
    start = prefill(inference.tokenizer)
    section = reward_model(args.reward_model) if args.reward_model else None
    runner = None
    if args.reward or not section:
        functions = [reward_function(args.reward, prompts)]
        runner = RewardRunner(functions, num_workers=args.reward_workers, prefill=start, live=live)
    if not section:
        assert runner is not None
        return runner
    grader = build_grader(
        section,
        device=pick_device(args.device),
        tokenizer=inference.tokenizer,
        live=live,
        engine=args.engine,
        slots=128,
        say=Console(soft_wrap=True, highlight=False).print,
    )
    return MixedReward(grader, functions=runner, weight=section.weight, prefill=start, live=live)


def reward_model(words: list[str]) -> RewardModel:
    """The section that ``--reward-model KEY=VALUE ...`` describes; judged like a training command."""
    from cohort.config.load import from_arguments

    keys = [word if word.startswith("reward_model.") else f"reward_model.{word}" for word in words]
    run = ["actor_rollout_ref.model.path=starter", "data.task=arithmetic", "reward_model.enable=True"]
    return from_arguments([*run, *keys], config_name="grpo").config.reward_model


def reward_function(name: str | None, prompts: list[Prompt]) -> RewardFunction:
    """The reward that ``--reward`` names, or the built-in of each data source."""
    from cohort.rewards.custom import load_custom
    from cohort.rewards.registry import built_in, by_data_source

    if name is None:
        return by_data_source(prompt.data_source for prompt in prompts)
    path, _, function = name.partition(":")
    return load_custom(path, function or "compute_score") if path.endswith(".py") else built_in(name)


def report(evaluation: Evaluation, out: str | None) -> None:
    """Prints the evaluation; with ``out`` also writes every answer."""
    from pathlib import Path

    from rich.console import Console

    from cohort.tracking.dumps import write_jsonl

    console = Console(soft_wrap=True, highlight=False)
    for summary in evaluation.summaries:
        interval = summary.interval
        console.print(
            f"{summary.data_source}: {summary.variable} {interval.mean:.4f} "
            f"(95% interval {interval.low:.4f} to {interval.high:.4f}), {summary.answers} answers to "
            f"{summary.prompts} prompts, {summary.length:.1f} tokens each, {summary.ended:.1%} ended by themselves, "
            f"{summary.unscorable} unscorable"
        )
    for name, value in sorted(evaluation.metrics.items()):
        console.print(f"  {name} = {value:.6g}")
    if out:
        write_jsonl(Path(out), 0, evaluation.rollouts)
        console.print(f"answers: {out}")
