"""The model that everything is measured on: a Qwen3 of five million parameters with random weights."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

VOCABULARY, PAD, EOS = 2048, 0, 1
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 6, 256, 8, 4, 32, 704


def make_model() -> Any:
    """The model, in float32 and eval mode; the same weights each time."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=INTERMEDIATE,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One word per id, so that texts have exact lengths."""
    words = {"<pad>": PAD, "<eos>": EOS} | {f"w{i}": i for i in range(2, VOCABULARY)}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


def save_model(folder: Path) -> Path:
    """Writes the model and its tokenizer as a Hugging Face folder."""
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def prompt_texts(count: int, tokens: int) -> list[str]:
    """Different random prompts of exactly ``tokens`` tokens."""
    draw = random.Random(1)
    return [" ".join(f"w{draw.randrange(2, VOCABULARY)}" for _ in range(tokens)) for _ in range(count)]


def reward(completion: str) -> float:
    """Different words in an answer: as cheap as a reward can be, and rarely equal within a group."""
    return float(len(set(completion.split())))


def linear_flops(*, decoder_tokens: int, head_tokens: int) -> float:
    """Floating-point operations of a forward pass in the linear layers; attention and norms are left out.

    Args:
        decoder_tokens: tokens that go through the decoder layers.
        head_tokens: tokens whose logits are computed.
    """
    attention = WIDTH * HEAD_DIM * (HEADS + 2 * KV_HEADS) + HEADS * HEAD_DIM * WIDTH
    layer = attention + 3 * WIDTH * INTERMEDIATE
    return 2.0 * (decoder_tokens * LAYERS * layer + head_tokens * VOCABULARY * WIDTH)
