"""Starting and ending the Ray processes of a run on this machine."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray


@contextmanager
def local_cluster(replicas: int) -> Iterator[None]:
    """A Ray cluster on this machine for the block, with one CPU core per replica; one that is up already is used.

    The replicas import from where this process does, so code that is not installed works too.
    """
    if ray.is_initialized():
        yield
        return
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0"),
    }
    ray.init(
        num_cpus=replicas,
        include_dashboard=False,
        object_store_memory=512 * 2**20,
        log_to_driver=False,
        logging_level=logging.WARNING,
        runtime_env={"env_vars": environment},
    )
    try:
        yield
    finally:
        ray.shutdown()
