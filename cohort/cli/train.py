"""``cohort train``: from the command line to a Config, and on to ``assemble``."""

from __future__ import annotations

import argparse
import sys

from cohort.cli.main import INTERRUPTED
from cohort.errors import UserError

DEFAULT_PRESET = "quickstart"

EXAMPLES = """\
presets: {presets}

examples:
  cohort train                                             the quickstart: a small model learns arithmetic
  cohort train --config-name grpo data.train_files=train.parquet actor_rollout_ref.model.path=MODEL
  cohort train trainer.total_training_steps=20 trainer.seed=2
  cohort train --config-name my.yaml                       a file of yours; its defaults may name a preset
  cohort train --keys lr                                   what can be set, and what it means
  cohort train --print-config                              the resolved config, without training

Keys are verl's; docs/config.md has them all. Lists are [a,b], quoted for the shell: trainer.logger='[console,jsonl]'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what ``cohort train`` takes."""
    from cohort.config.load import presets

    parser.description = "Train a model by reinforcement learning. Every setting is a key=value."
    parser.epilog = EXAMPLES.format(presets=", ".join(presets()))
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that replace the preset's")
    parser.add_argument(
        *("--config-name", "-cn"),
        default=DEFAULT_PRESET,
        metavar="PRESET",
        help="preset or YAML file to start from (default: %(default)s)",
    )
    parser.add_argument(
        *("--config-dir", "-cd", "--config-path", "-cp"),
        dest="config_dir",
        metavar="DIR",
        help="folder with YAML files of yours, for --config-name",
    )
    parser.add_argument("--print-config", action="store_true", help="print the resolved config and leave")
    parser.add_argument(
        "--keys", nargs="?", const="", metavar="TEXT", help="list the keys (that have TEXT in their name) and leave"
    )


def run(args: argparse.Namespace) -> int:
    """Trains, or prints what was asked for."""
    from cohort.config.load import from_arguments, to_yaml

    if args.keys is not None:
        sys.stdout.write(list_keys(args.keys))
        return 0
    loaded = from_arguments(args.overrides, config_name=args.config_name, config_dir=args.config_dir)
    for line in loaded.notes:
        sys.stderr.write(f"note: {line}\n")
    if args.print_config:
        sys.stdout.write(to_yaml(loaded.config))
        return 0
    from cohort.assemble.local import assemble  # torch and transformers, which --help and a bad key must not wait for

    outcome = assemble(loaded.config).fit()
    return INTERRUPTED if outcome.interrupted else 0


def list_keys(text: str) -> str:
    """The keys with ``text`` in their name, each with its default and its meaning."""
    from cohort.config.document import default_of
    from cohort.config.tree import keys

    found = [key for key in keys().values() if text.lower() in key.name.lower()]
    if not found:
        raise UserError(f"--keys {text}: no key has this in its name; cohort train --keys lists all")
    return "".join(f"{key.name}  ({default_of(key)})\n    {key.doc}\n" for key in found)
