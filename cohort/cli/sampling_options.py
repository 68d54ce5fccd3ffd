"""The options that ``cohort eval`` and ``cohort generate`` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohort.protocols import Sampling


def add_sampling_options(parser: argparse.ArgumentParser, *, temperature: float) -> None:
    """Adds model, sampling and device options."""
    parser.add_argument("--model", required=True, metavar="DIR", help="Hugging Face folder or hub name, or `starter`")
    parser.add_argument("--temperature", type=float, default=temperature, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=-1, help="draw from the k likeliest tokens; -1 keeps all")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the likeliest tokens up to this mass")
    parser.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the likeliest")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest answer (default: %(default)s)")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends an answer; may be repeated")
    parser.add_argument("--n", type=int, default=1, help="answers per prompt (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="names the draws (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--engine", default="native", choices=("native", "hf"), help="(default: %(default)s)")


def sampling_of(args: argparse.Namespace) -> Sampling:
    """The settings that were asked for.

    Raises:
        UserError: for a number that means nothing.
    """
    from cohort.errors import UserError
    from cohort.protocols import Sampling

    for name, least in (("n", 1), ("max_tokens", 1)):
        if vars(args)[name] < least:
            raise UserError(f"--{name.replace('_', '-')}={vars(args)[name]}: give {least} or more")
    return Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
    )
