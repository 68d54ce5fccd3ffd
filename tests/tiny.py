"""Small random models and a byte tokenizer, all real Hugging Face objects."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
SPECIALS = ("<pad>", "<eos>", "<user>", "<assistant>", "<system>")
VOCAB = 256 + len(SPECIALS)


def byte_tokenizer(pad_is_eos: bool = False) -> PreTrainedTokenizerFast:
    """One token per byte, plus the specials; every string round-trips."""
    alphabet = sorted(ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIALS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<eos>",
        pad_token="<eos>" if pad_is_eos else "<pad>",
        additional_special_tokens=["<user>", "<assistant>", "<system>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(
    architecture: str = "qwen3", *, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 4.0, **overrides
):
    """A random two-layer causal LM. ``scale`` sharpens the head so that distributions are far from uniform."""
    size = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        eos_token_id=257,
        pad_token_id=256,
        attention_dropout=0.0,
        tie_word_embeddings=False,
    )
    moe = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True)
    gpt2 = dict(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        eos_token_id=257,
        bos_token_id=257,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
    )
    config = {
        "qwen3": lambda: Qwen3Config(**{**size, "head_dim": 8, **overrides}),
        "qwen2": lambda: Qwen2Config(**{**size, **overrides}),
        "llama": lambda: LlamaConfig(**{**size, **overrides}),
        "mistral": lambda: MistralConfig(**{**size, "sliding_window": None, **overrides}),
        "gpt2": lambda: GPT2Config(**{**gpt2, **overrides}),
        "qwen3_moe": lambda: Qwen3MoeConfig(**{**size, "head_dim": 8, **moe, **overrides}),
    }[architecture]()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    return model.eval()


def tiny_value_model(architecture: str = "qwen3", *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides):
    """The backbone of ``tiny_model`` with a random scalar head, so that values are not 0 from the start."""
    lm = tiny_model(architecture, seed=seed, **overrides)
    lm.config.num_labels = 1
    model = AutoModelForTokenClassification.from_config(lm.config, attn_implementation="sdpa")
    model.base_model.load_state_dict(lm.base_model.state_dict())
    head = model.get_submodule("classifier" if architecture == "gpt2" else "score")
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        head.weight.normal_(std=0.3, generator=generator)
        head.bias.fill_(0.1)
    return model.to(dtype).eval()


def tiny_classifier(architecture: str = "qwen3", *, labels: int = 1, seed: int = 0, **overrides):
    """A random two-layer sequence classifier with logits well apart."""
    from transformers import AutoModelForSequenceClassification, BertConfig

    if architecture == "bert":
        config = BertConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=512,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    else:
        config = tiny_model(architecture).config
    for name, value in {"num_labels": labels, **overrides}.items():
        setattr(config, name, value)
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    return model.eval()
