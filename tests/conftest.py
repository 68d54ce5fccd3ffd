"""Shared fixtures. Shapes in the signatures of algorithms/ are checked at run time in every test."""

import os

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


@pytest.fixture(scope="session")
def tokenizer():
    """A byte tokenizer with a chat template: ids 0-255 are bytes, then <pad>, <eos>, <user>, <assistant>, <system>."""
    return byte_tokenizer()
