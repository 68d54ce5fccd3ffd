"""``cohort show RUN``: the answers of a training step, with scores, advantages and coloured tokens.

Without --group it shows the group with the best mean score, the worst one and a random one. It reads the samples that
every run leaves in its folder, of a run that is under way too; no model is loaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from cohort.tracking.samples import Outcome

EXAMPLES = """\
examples:
  cohort show runs/cohort/quickstart --list             the steps: rewards, groups with a signal, lengths
  cohort show runs/cohort/quickstart                    three groups of the last step
  cohort show runs/cohort/quickstart --step 2 --group 5 --colour entropy
"""
COLOURS = ("author", "advantage", "kl", "entropy", "ratio")
"""Those of ``cohort.tracking.colours``, which is not imported for --help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description, parser.epilog = __doc__, EXAMPLES
    parser.add_argument("folder", metavar="RUN", help="a run folder")
    parser.add_argument("--list", action="store_true", help="list the steps instead")
    parser.add_argument("--step", type=int, metavar="N", help="the training step (default: the last)")
    parser.add_argument("--group", type=int, metavar="G", help="one group, by its number within the step")
    parser.add_argument(
        "--colour", choices=COLOURS, default="advantage", help="what a token's colour says (default: %(default)s)"
    )
    parser.add_argument("--answers", type=_count, default=8, metavar="K", help="answers per group; 0 shows all (8)")
    parser.add_argument(
        "--tokens", type=_count, default=300, metavar="K", help="tokens per answer, first and last; 0 shows all (300)"
    )
    parser.add_argument("--seed", type=int, default=0, help="names the random choices (default: %(default)s)")


def _count(word: str) -> int:
    value = int(word)
    if value < 0:
        raise argparse.ArgumentTypeError("0 or more is wanted")
    return value


def run(args: argparse.Namespace) -> int:
    """Prints the steps or the answers."""
    from rich.console import Console

    from cohort.tracking import samples

    folder = rollouts_folder(Path(args.folder).expanduser())
    steps = samples.steps(folder)
    if not steps:
        raise UserError(f"cohort show {args.folder}: the run has no samples yet: {folder} is empty")
    console = Console(highlight=False)
    if args.list:
        from cohort.tracking.display import step_table

        console.print(step_table(folder, [args.step] if args.step is not None else steps))
        return 0
    step = steps[-1] if args.step is None else args.step
    outcomes = samples.read_outcomes(folder, step)
    if not outcomes:
        raise UserError(f"cohort show {args.folder}: step {step} has no samples")
    show(console, args, folder, step, outcomes)
    return 0


def show(console: Console, args: argparse.Namespace, folder: Path, step: int, outcomes: list[Outcome]) -> None:
    """Prints the groups that were asked for, or those that are telling."""
    from rich.text import Text

    from cohort.tracking.colours import COLOURINGS
    from cohort.tracking.display import View, choose_groups, draw_group
    from cohort.tracking.samples import read_step
    from cohort.tracking.wording import plural

    view = View(
        colouring=COLOURINGS[args.colour],
        colours=console.color_system is not None and not console.no_color,
        width=console.width,
        answers=args.answers,
        tokens=args.tokens,
        seed=args.seed,
    )
    groups = sorted({outcome.group for outcome in outcomes})
    if args.group is None:
        chosen = choose_groups(outcomes, seed=args.seed)
    elif args.group in groups:
        chosen = [("", args.group)]
    else:
        there = f"groups {groups[0]} to {groups[-1]}" if len(groups) > 1 else f"group {groups[0]} alone"
        raise UserError(f"cohort show {args.folder}: step {step} has no group {args.group}; it has {there}")
    counts = f"{plural(len(groups), 'group')}, {plural(len(outcomes), 'answer')}"
    console.print(Text.assemble((f"step {step}", "bold"), f"  {counts}"))
    console.print(view.colouring.legend(colours=view.colours))
    for label, group in chosen:
        console.print()
        for piece in draw_group(label, read_step(folder, step, group=group), view):
            console.print(piece)


def rollouts_folder(run_folder: Path) -> Path:
    """The samples of a run.

    Args:
        run_folder: the run folder; the folder with the samples themselves will do too.

    Raises:
        UserError: if it is no run folder, naming the runs that are near.
    """
    from cohort.tracking.samples import steps

    if (run_folder / "rollouts").is_dir():
        return run_folder / "rollouts"
    if run_folder.is_dir() and steps(run_folder):
        return run_folder
    what = "this is no run folder" if run_folder.is_dir() else "there is no such folder"
    places = [run_folder] if run_folder.is_dir() else [run_folder.parent, Path("runs")]
    near = sorted(
        {found.parent for place in places for depth in ("*", "*/*") for found in place.glob(f"{depth}/rollouts")}
    )
    names = ", ".join(str(path) for path in near[:8]) + (f" and {len(near) - 8} more" if len(near) > 8 else "")
    there = f"runs there: {names}" if near else "name a folder that cohort train has written, such as runs/PROJECT/NAME"
    raise UserError(f"cohort show {run_folder}: {what}; {there}")
