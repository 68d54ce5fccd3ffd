"""The starter model for tests: the one in the user's cache, trained on first use."""

from functools import cache
from pathlib import Path

from cohort.starter.build import starter_model


@cache
def starter_folder() -> Path:
    return starter_model()
