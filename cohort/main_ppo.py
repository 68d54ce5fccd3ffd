"""``python -m cohort.main_ppo key=value ...``: the same as ``cohort train``, from verl's defaults."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cohort.cli.main import guarded, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Trains from the preset ``verl`` unless ``--config-name`` says otherwise.

    Returns:
        the exit code, as ``cohort train``.
    """
    return guarded(train, list(sys.argv[1:] if argv is None else argv))


def train(argv: Sequence[str]) -> int:
    """``cohort train`` with another preset; the last ``--config-name`` wins."""
    return run_command("cohort.cli.train", ["--config-name", "verl", *argv], prog="python -m cohort.main_ppo")


if __name__ == "__main__":
    sys.exit(main())
