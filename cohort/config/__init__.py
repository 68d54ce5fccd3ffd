"""Configuration: verl's dotted keys as one tree of frozen dataclasses, built strictly.

``build`` is the only judge and imports no torch; ``load`` composes presets and overrides with Hydra.
"""

from cohort.config.build import amend, build
from cohort.config.rules import describe_batch
from cohort.config.schema import Config

__all__ = ["Config", "amend", "build", "describe_batch"]
