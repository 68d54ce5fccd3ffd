"""Cohort: reinforcement-learning post-training of language models, GRPO, PPO and their family.

A *cohort* is the group of answers sampled for one prompt; everything group-relative happens
inside it. Start with ``cohort/trainer/trainer.py``: the training step is one page.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cohort.assemble.python import train as train

try:
    __version__ = version("cohort-rl")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``cohort.train`` on first use, so that ``import cohort`` stays light."""
    if name == "train":
        from cohort.assemble.python import train

        return train
    raise AttributeError(f"module 'cohort' has no attribute {name!r}")
