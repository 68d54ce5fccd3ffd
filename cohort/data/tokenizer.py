"""The tokenizer: loading it, rendering prompts, and which ids end a turn."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.errors import UserError
from cohort.types import Message

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

PROBE = "probe"
RESERVED_TEMPLATE_KWARGS = ("add_generation_prompt", "continue_final_message", "conversation", "messages", "tokenize")


def load_tokenizer(
    path: str | Path,
    *,
    chat_template: str | None = None,
    trust_remote_code: bool = False,
    key: str = "actor_rollout_ref.model.path",
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub name.

    Args:
        path: a folder, or a name on the hub.
        chat_template: replaces the tokenizer's own: the template's text, or a file that holds it.
        trust_remote_code: allows code that ships with the model.
        key: the setting that named the folder, for messages.

    Raises:
        UserError: if there is no tokenizer at ``path``.
    """
    from transformers import AutoTokenizer

    place = os.path.expanduser(path)
    if str(path).startswith((".", "/", "~")) and not Path(place).is_dir():
        raise UserError(f"{key}={path}: no such folder; give a Hugging Face folder or hub name")
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        what = "has no tokenizer that loads" if Path(place).is_dir() else "is no folder, and no hub model within reach"
        raise UserError(f"{key}={path} {what} ({str(error).splitlines()[0]})") from error
    if chat_template is not None:
        tokenizer.chat_template = _template_text(chat_template)
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        # Nothing of ours looks at padding, but Hugging Face's generate() and saved folders want an id.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _template_text(chat_template: str) -> str:
    if "{" in chat_template:
        return chat_template
    path = Path(os.path.expanduser(chat_template))
    if not path.is_file():
        raise UserError(f"actor_rollout_ref.model.custom_chat_template={chat_template}: neither a template nor a file")
    return path.read_text(encoding="utf-8")


def check_template_kwargs(
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: Mapping[str, object],
    *,
    key: str = "data.apply_chat_template_kwargs",
) -> None:
    """Refuses template variables that the chat template does not read.

    Args:
        tokenizer: has the template.
        template_kwargs: the variables.
        key: the setting that named them, for messages.

    Raises:
        UserError: naming the variable.
    """
    for name in template_kwargs:
        if name in RESERVED_TEMPLATE_KWARGS:
            raise UserError(f"{key}.{name} is set by Cohort itself; remove it")
        if not tokenizer.chat_template:
            raise UserError(f"{key}.{name} has no effect: the tokenizer has no chat template")
        if not any(re.search(rf"\b{re.escape(name)}\b", text) for text in _templates(tokenizer)):
            raise UserError(f"{key}.{name} has no effect: the model's chat template does not read `{name}`")


def _templates(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    template = tokenizer.chat_template
    return list(template.values()) if isinstance(template, dict) else [str(template)]


def render(
    tokenizer: PreTrainedTokenizerBase, messages_or_text: str | Sequence[Message], **template_kwargs: Any
) -> tuple[tuple[int, ...], str]:
    """The exact ids that are sent for a prompt, and their text.

    Messages go through the chat template with the header of the answer opened. Where the last message is
    the assistant's, its text is continued instead. A string is one user message where the tokenizer has a
    chat template, and is encoded as it stands where it has none.

    Raises:
        jinja2.TemplateError: if the template refuses the messages.
        UserError: messages without a chat template.
    """
    text = render_text(tokenizer, messages_or_text, **template_kwargs)
    ids = encode(tokenizer, [text])[0]
    return ids, text if tokenizer.chat_template else decode(tokenizer, ids)


def render_text(
    tokenizer: PreTrainedTokenizerBase, messages_or_text: str | Sequence[Message], **template_kwargs: Any
) -> str:
    """The text that ``render`` encodes."""
    if not tokenizer.chat_template:
        if isinstance(messages_or_text, str):
            return messages_or_text
        raise UserError(
            "the prompts are messages, but the tokenizer has no chat template; give "
            "actor_rollout_ref.model.custom_chat_template, or prompts that are plain strings"
        )
    messages = as_messages(messages_or_text)
    continued = messages[-1]["role"] == "assistant"
    ending = {"continue_final_message": True} if continued else {"add_generation_prompt": True}
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **ending, **template_kwargs))


def as_messages(messages_or_text: str | Sequence[Message]) -> list[dict[str, Any]]:
    """A prompt as chat messages. Fields that are None are gone: parquet fills them in."""
    if isinstance(messages_or_text, str):
        return [{"role": "user", "content": messages_or_text}]
    return [{name: value for name, value in message.items() if value is not None} for message in messages_or_text]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Ids of rendered texts. A chat template has written its special tokens already, so none are added to it."""
    return [tuple(ids) for ids in tokenizer(list(texts), add_special_tokens=not tokenizer.chat_template)["input_ids"]]  # pyright: ignore[reportGeneralTypeIssues]


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Text of ids, special tokens included."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def eos_ids(
    tokenizer: PreTrainedTokenizerBase,
    model_config: PretrainedConfig | None = None,
    generation_config: GenerationConfig | None = None,
    **template_kwargs: Any,
) -> tuple[int, ...]:
    """Every id that ends a response, sorted.

    The union of what the tokenizer, the model's configuration (its text part too) and its generation
    configuration declare, and the special token with which the chat template ends an assistant's turn.
    """
    found = set(_declared(tokenizer.eos_token_id))
    if model_config is not None:
        declared = model_config.to_dict()
        text_part = declared.get("text_config") or {}
        found.update(_declared(declared.get("eos_token_id")), _declared(text_part.get("eos_token_id")))
    if generation_config is not None:
        found.update(_declared(generation_config.to_dict().get("eos_token_id")))
    turn_end = turn_end_id(tokenizer, **template_kwargs)
    if turn_end is not None:
        found.add(turn_end)
    return tuple(sorted(found))


def _declared(value: object) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [int(item) for item in value] if isinstance(value, Iterable) else []


def turn_end_id(tokenizer: PreTrainedTokenizerBase, **template_kwargs: Any) -> int | None:
    """The special token right after an assistant's content in the chat template; None if there is none."""
    text = _rendered_probe(tokenizer, [{"role": "assistant", "content": PROBE}], template_kwargs)
    if text is None or PROBE not in text:
        return None
    special = set(tokenizer.all_special_ids)
    special.update(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
    for token in tokenizer(text[text.rindex(PROBE) + len(PROBE) :], add_special_tokens=False)["input_ids"]:  # pyright: ignore[reportGeneralTypeIssues]
        if token in special:
            return int(token)
        if str(tokenizer.decode([token])).strip():
            return None
    return None


def prefill(tokenizer: PreTrainedTokenizerBase, **template_kwargs: Any) -> str:
    r"""What the chat template writes into the answer before the model does, such as ``"<think>\n"``; often "".

    A reward that looks for an opening ``<think>`` must see it (``RewardRunner(prefill=...)``). It is the
    part of the generation prompt that past assistant turns do not start with.
    """
    tail = [{"role": "assistant", "content": PROBE}, {"role": "user", "content": "next"}]
    past = _rendered_probe(tokenizer, tail, template_kwargs)
    closed = _rendered_probe(tokenizer, [], template_kwargs)
    opened = _rendered_probe(tokenizer, [], template_kwargs, add_generation_prompt=True)
    if past is None or closed is None or opened is None or PROBE not in past:
        return ""
    header = _common(past[len(_common(past, closed)) :], opened[len(closed) :])
    return opened[len(closed) + len(header) :]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What stands around an assistant's content, apart from the header that the prompt ends with.

    Attributes:
        opening: what the prompt holds of the answer already, see ``prefill``.
        before: white space that the template writes before the content, such as the space of Mistral's.
        after: white space between the content and ``end``.
        end: the id that ends the turn.
    """

    opening: str
    before: str
    after: str
    end: int


def assistant_turn(tokenizer: PreTrainedTokenizerBase, **template_kwargs: Any) -> Turn:
    """How an answer is written behind its prompt: as the chat template does, or as bare text with the EOS id.

    Raises:
        UserError: if neither the template nor the tokenizer has an id that ends an answer.
    """
    special = turn_end_id(tokenizer, **template_kwargs)
    end = tokenizer.eos_token_id if special is None else special
    if not isinstance(end, int):
        raise UserError("the tokenizer has no EOS id, and the chat template ends no turn: an answer could never end")
    content = {"role": "assistant", "content": PROBE}
    last = _rendered_probe(tokenizer, [content], template_kwargs)
    past = _rendered_probe(tokenizer, [content, {"role": "user", "content": "next"}], template_kwargs)
    opened = _rendered_probe(tokenizer, [], template_kwargs, add_generation_prompt=True)
    before = after = ""
    if past is not None and opened is not None and PROBE in past:
        before = past[len(_common(past, opened)) : past.index(PROBE)]
    if special is not None and last is not None:
        after = last[last.rindex(PROBE) + len(PROBE) :].partition(decode(tokenizer, [special]))[0]
    return Turn(
        opening=prefill(tokenizer, **template_kwargs), before=before if before.isspace() else "", after=after, end=end
    )


def _common(a: str, b: str) -> str:
    return os.path.commonprefix([a, b])  # noqa: RUF071 - characters are meant


def _rendered_probe(
    tokenizer: PreTrainedTokenizerBase, tail: list[dict[str, str]], template_kwargs: Mapping[str, Any], **ending: bool
) -> str | None:
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        return None
    messages = [{"role": "user", "content": "question"}, *tail]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **ending, **template_kwargs))
    except TemplateError:  # a template that refuses this conversation has nothing to tell about it
        return None
