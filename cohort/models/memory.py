"""Memory that a training process has freed stays with it.

glibc hands each large block back to the system when it is freed, and the next pass has to fault its pages in again,
one by one. Between the passes of a training step the same sizes come and go all the time: keeping them saves about a
tenth of the update of a model with five million parameters on a CPU, and more with larger vocabularies.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Names of mallopt(3), from malloc.h."""
SETTINGS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 128 << 20}
"""No block of its own for large requests, no end of the heap given back below 2 GiB, growth in steps of 128 MiB."""


def keep_freed_memory() -> bool:
    """Lets malloc keep what is freed, for the life of this process; the peak of memory grows a little.

    Returns:
        Whether the C library listened: glibc does, others have no such setting.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(library.mallopt(name, value) == 1 for name, value in SETTINGS.items())
