"""A character tokenizer with a chat template: printable ASCII and the newline, everything else is ``<unk>``.

<user>47+85=<assistant>7+5=12 4+8+1=13 #### 132<eos>
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
ROLES = ("<system>", "<user>", "<assistant>")
SPECIALS = (PAD, EOS, UNK, *ROLES)
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
VOCABULARY = {token: index for index, token in enumerate((*SPECIALS, *CHARACTERS))}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    """One token per character; the six special tokens come first."""
    core = Tokenizer(models.BPE(vocab=dict(VOCABULARY), merges=[], unk_token=UNK))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=list(ROLES),
        model_max_length=max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prompt_text(question: str) -> str:
    """What the chat template makes of one user message, ready for the answer."""
    return f"<user>{question}<assistant>"
