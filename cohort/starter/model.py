"""The starter model's shape: Qwen3, 136 thousand parameters, heads of 32 (the smallest that vLLM serves on a CPU)."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from cohort.starter.tokenizer import EOS, PAD, VOCABULARY

CONTEXT = 256
"""Longest prompt and response together, in tokens."""


def starter_config() -> Qwen3Config:
    """Two layers are the least that copy and add. Untied head, because tying saves nothing at this vocabulary."""
    return Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=CONTEXT,
        initializer_range=0.05,  # the usual 0.02 starts a model this narrow too small
        tie_word_embeddings=False,
        attention_dropout=0.0,
        pad_token_id=VOCABULARY[PAD],
        eos_token_id=VOCABULARY[EOS],
        bos_token_id=None,
        dtype="float32",
    )


def new_model(seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised float32 model. The caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(starter_config())
    model.generation_config = GenerationConfig(eos_token_id=VOCABULARY[EOS], pad_token_id=VOCABULARY[PAD])
    return model
