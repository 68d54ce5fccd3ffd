"""Shared fixtures. Shapes in the signatures of algorithms/ are checked at run time in every test."""

import os
import signal
import threading

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

hook = install_import_hook("cohort.algorithms", "beartype.beartype")
hook.__enter__()

import pytest
import torch

from tests.tiny import byte_tokenizer

torch.set_num_threads(1)
if threading.current_thread() is threading.main_thread():
    # A shell that starts this in the background has SIGINT ignored, here and in every child; the tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tokenizer():
    """A byte tokenizer with a chat template: ids 0-255 are bytes, then <pad>, <eos>, <user>, <assistant>, <system>."""
    return byte_tokenizer()
