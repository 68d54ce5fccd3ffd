"""Hugging Face's progress bars and remarks, off: a run has one bar of its own and says what matters itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Transformers draws a bar even for one small file; not inside the block."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def no_load_report() -> Iterator[None]:
    """Transformers prints a table where a head is new, as a value head is; not inside the block."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
