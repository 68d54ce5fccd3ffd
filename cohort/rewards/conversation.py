"""What a model that grades is shown: the conversation as messages, or question and answer as text. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cohort.types import Message, Prompt, Rollout


def answer_text(rollout: Rollout, prefill: str = "") -> str:
    """The answer as every reward sees it: with what the chat template wrote into it, without special tokens."""
    return prefill + rollout.text if prefill and rollout.prompt.text.endswith(prefill) else rollout.text


def prompt_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The prompt as messages; a plain text is one user message."""
    return [dict(message) for message in prompt.messages] or [{"role": "user", "content": prompt.text}]


def conversation(prompt: Prompt, answer: str) -> list[dict[str, Any]]:
    """The prompt's messages with the answer as the assistant's; an answer that was begun in the prompt is continued."""
    messages = prompt_messages(prompt)
    if messages[-1]["role"] == "assistant":
        return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + answer}]
    return [*messages, {"role": "assistant", "content": answer}]


def question(prompt: Prompt) -> str:
    """The prompt as one text: the user's message, or all of them with their roles where there are several."""
    messages = prompt_messages(prompt)
    asked = [message for message in messages if message["role"] != "system"]
    return str(asked[0]["content"]) if len(asked) == 1 else transcript(messages)


def transcript(messages: Sequence[Message]) -> str:
    """Messages as text, a paragraph each."""
    return "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in messages)
