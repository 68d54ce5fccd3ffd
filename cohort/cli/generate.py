"""``cohort generate --model DIR "prompt"``: answers, printed."""

from __future__ import annotations

import argparse

from cohort.cli.sampling_options import add_sampling_options, sampling_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="what to ask")
    add_sampling_options(parser, temperature=0.0)


def run(args: argparse.Namespace) -> int:
    """Prints ``n`` answers to each prompt."""
    from rich.console import Console
    from rich.text import Text

    from cohort.assemble.inference import load_inference
    from cohort.data.dataset import build_prompts
    from cohort.rollout.collect import collect

    sampling = sampling_of(args)
    inference = load_inference(args.model, device=args.device, dtype=args.dtype, engine=args.engine)
    prompts = build_prompts([{"prompt": prompt} for prompt in args.prompts], inference.tokenizer)
    work = collect(
        prompts,
        n=args.n,
        environment=inference.environment,
        sampler=inference.sampler,
        sampling=sampling,
        reward=None,
        seed=args.seed,
        step=0,
    )
    console = Console(soft_wrap=True)
    for prompt, group in zip(args.prompts, inference.event_loop.run(work), strict=True):
        console.print(Text(prompt, style="bold"))
        for rollout in group.rollouts:
            if rollout.score and rollout.score.reason:
                raise RuntimeError(rollout.score.reason)
            ended = "" if rollout.finish_reason == "stop" else f"  [{rollout.finish_reason}]"
            console.print(Text(f"  {rollout.text.strip()}{ended}"))
    inference.event_loop.close()
    return 0
