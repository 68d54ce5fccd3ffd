"""``cohort explain NAME``: formula, paper, keys and pitfalls of a preset, an algorithm, a reward or a metric."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cohort.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EXAMPLES = """\
examples:
  cohort explain                       every name, by kind
  cohort explain grpo                  the preset and the estimator of that name
  cohort explain actor/ppo_kl          what a logged number means, and its healthy range
  cohort explain advantage --rewards 1,0,1 --estimator grpo
  cohort explain advantage --rewards=-1,0,1,1 --groups 0,0,1,1 --lengths 3,2,4,1 --estimator rloo
  cohort explain advantage --rewards 1,0 --estimator gae --values "0.1,0.2,0.3;0.5" --option lam=0.95
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description, parser.epilog = __doc__, EXAMPLES
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to explain; `advantage` works an example")
    example = parser.add_argument_group("the worked example; lists have commas, rows of tokens have semicolons between")
    example.add_argument("--estimator", metavar="NAME", help="advantage estimator (default: grpo)")
    example.add_argument("--rewards", metavar="LIST", help="score of each answer; write --rewards=-1,0 for a minus")
    example.add_argument("--groups", metavar="LIST", help="group of each answer (default: all in one)")
    example.add_argument("--lengths", metavar="LIST", help="tokens of each answer (default: 3 each)")
    example.add_argument("--baseline", metavar="LIST", help="remax: score of the greedy answer, one or one per answer")
    example.add_argument("--values", metavar="ROWS", help="gae: value of each token, one row per answer")
    example.add_argument("--parts", metavar="ROWS", help="gdpo: score of each answer, one row per part of the reward")
    example.add_argument("--old-log-probs", metavar="ROWS", help="optimal token baseline: log-prob of each token")
    example.add_argument(
        "--sum-pi-squared", metavar="ROWS", help="optimal token baseline: sum of squared probabilities"
    )
    example.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="option of the estimator")


def run(args: argparse.Namespace) -> int:
    """Prints what there is to say."""
    from rich.console import Console
    from rich.table import Table

    from cohort.explain import catalogue, show

    console = Console()
    if args.name == catalogue.WORKED:
        from rich.measure import Measurement

        from cohort.explain.example import Given, worked

        pieces = list(worked(Given(**{k: v for k, v in vars(args).items() if k != "name"})))
        wide = Console(width=1000)
        widths = (Measurement.get(wide, wide.options, piece).maximum for piece in pieces if isinstance(piece, Table))
        _print(Console(width=max(console.width, *widths)), pieces)
        return 0
    for option, value in vars(args).items():
        if option != "name" and value:
            word = option.replace("_", "-")
            raise UserError(f"--{word} belongs to the worked example: cohort explain {catalogue.WORKED} --{word} ...")
    if args.name is None:
        _print(console, show.overview())
        return 0
    found = catalogue.find(args.name)

    from cohort.explain.entries import explain

    _print(console, show.lines([explain(kind, name) for kind, name in found]))
    return 0


def _print(console: Console, renderables: Iterable[RenderableType]) -> None:
    for renderable in renderables:
        console.print(renderable, highlight=False)
