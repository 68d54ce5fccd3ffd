"""``cohort COMMAND ...``: picks the command, and turns user errors into one line and exit code 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from cohort import __version__
from cohort.errors import UserError

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("cohort.cli.train", "train a model by reinforcement learning"),
    "data": ("cohort.cli.data", "make or convert data sets"),
    "eval": ("cohort.cli.evaluate", "score a model's answers on a data set"),
    "generate": ("cohort.cli.generate", "sample answers to a prompt"),
    "show": ("cohort.cli.show", "look at the answers of a finished or running training"),
    "explain": ("cohort.cli.explain", "explain a preset, an algorithm, a reward or a logged number"),
}
"""Command to (module, what it does). A module has ``add_arguments(parser)`` and ``run(args) -> int``."""

USER_ERROR, INTERRUPTED = 2, 130


class Command(Protocol):
    """What a module in ``COMMANDS`` offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the command's arguments, its description and its examples."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Does the work; the result is the exit code."""
        ...


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, and whose options may stand between other words.

    Attributes:
        nested: it has commands of its own, which argparse cannot mix with options.
    """

    nested = False

    def add_subparsers(self, **settings: Any) -> argparse._SubParsersAction[Any]:
        """Declares commands within this one."""
        self.nested = True
        return super().add_subparsers(**settings)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments, wherever options stand."""
        return self.parse_args(argv) if self.nested else self.parse_intermixed_args(argv)

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage."""
        raise UserError(f"{self.prog}: {message}; {self.prog} --help shows what it takes")


def main(argv: Sequence[str] | None = None) -> int:
    """The ``cohort`` command.

    Returns:
        0 if all went well, 2 for bad input, 130 after Ctrl-C. Other failures keep their traceback.
    """
    return guarded(dispatch, list(sys.argv[1:] if argv is None else argv))


def guarded(command: Dispatch, argv: Sequence[str]) -> int:
    """Runs ``command(argv)`` and turns a UserError or Ctrl-C into one line and an exit code."""
    try:
        return command(argv)
    except UserError as problem:
        sys.stderr.write(f"error: {problem}\n")
        return USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED


class Dispatch(Protocol):
    """A command line without its program name, to an exit code."""

    def __call__(self, argv: Sequence[str], /) -> int:
        """Does the work."""
        ...


def dispatch(argv: Sequence[str]) -> int:
    """Runs the subcommand that ``argv`` names."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return 0
    if argv[0] in ("-V", "--version"):
        sys.stdout.write(f"cohort {__version__}\n")
        return 0
    name = argv[0]
    if name not in COMMANDS:
        from cohort.config.nearest import nearest_words

        close = nearest_words(name, COMMANDS, most=1)
        guess = f"did you mean {close[0]}?" if close else f"commands: {', '.join(COMMANDS)}"
        raise UserError(f"cohort {name}: no such command; {guess}")
    return run_command(COMMANDS[name][0], argv[1:], prog=f"cohort {name}")


def run_command(module: str, argv: Sequence[str], *, prog: str) -> int:
    """Imports a command's module, parses ``argv`` with its arguments, and runs it."""
    command = cast(Command, import_module(module))
    parser = Parser(prog=prog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    command.add_arguments(parser)
    try:
        args = parser.read(argv)
    except SystemExit as leave:  # --help
        return int(leave.code or 0)
    return command.run(args)


def overview() -> str:
    """The text of ``cohort --help``."""
    commands = "\n".join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items())
    return (
        "usage: cohort COMMAND ...\n\n"
        "Reinforcement-learning post-training of language models.\n\n"
        f"commands:\n{commands}\n\n"
        "cohort train            without arguments: build a small model and watch it learn, on two CPU cores\n"
        "cohort COMMAND --help   what a command takes\n"
        "cohort --version        which version this is\n"
    )


if __name__ == "__main__":
    sys.exit(main())
