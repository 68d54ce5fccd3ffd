"""Cohort: reinforcement-learning post-training of language models, GRPO, PPO and their family.

A *cohort* is the group of answers sampled for one prompt; everything group-relative happens
inside it. Start with ``cohort/trainer/trainer.py``: the training step is one page.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cohort.algorithms.registry import Advantages as Advantages
    from cohort.algorithms.registry import TokenLoss as TokenLoss
    from cohort.algorithms.registry import register_advantage as register_advantage
    from cohort.algorithms.registry import register_policy_loss as register_policy_loss
    from cohort.assemble.python import train as train

try:
    __version__ = version("cohort-rl")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0.1.0"


PLACES = {
    "train": "cohort.assemble.python",
    "register_advantage": "cohort.algorithms.registry",
    "register_policy_loss": "cohort.algorithms.registry",
    "Advantages": "cohort.algorithms.registry",
    "TokenLoss": "cohort.algorithms.registry",
}
"""Where the names of this module come from."""


def __getattr__(name: str) -> Any:
    """The names of ``PLACES`` on first use, so that ``import cohort`` stays light."""
    if name in PLACES:
        return getattr(import_module(PLACES[name]), name)
    raise AttributeError(f"module 'cohort' has no attribute {name!r}")
