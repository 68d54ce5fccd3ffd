"""Cohort: reinforcement-learning post-training of language models, GRPO, PPO and their family.

A *cohort* is the group of answers sampled for one prompt; everything group-relative happens
inside it. Start with ``cohort/trainer/trainer.py``: the training step is one page.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("cohort-rl")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0.1.0"
