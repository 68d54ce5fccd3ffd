"""Rows with an expert's answer become rollouts: the ids that the model would have sampled, had it answered so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cohort.data.dataset import MEDIA_COLUMNS
from cohort.data.files import place
from cohort.data.loader import PromptLoader
from cohort.data.tokenizer import (
    as_messages,
    assistant_turn,
    check_template_kwargs,
    decode,
    encode,
    eos_ids,
    render_text,
)
from cohort.errors import UserError
from cohort.types import Author, Batch, FinishReason, Group, Message, Prompt, Rollout, Segment, collate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
KEY = "algorithm.chord"
RESPONSE_KEYS = ("response", "answer")
STREAM = 0x43484F5244
"""Added to the seed: the order of demonstrations has nothing to do with that of prompts."""


class DemonstrationLoader:
    """Serves demonstrations epoch after epoch; the order is a pure function of seed and position.

    Args:
        rollouts: one epoch's demonstrations.
        seed: names the permutations.
    """

    def __init__(self, rollouts: Sequence[Rollout], *, seed: int = 0) -> None:
        self.rollouts = rollouts
        self._order = PromptLoader([rollout.prompt for rollout in rollouts], seed=seed + STREAM)

    def __len__(self) -> int:
        return len(self.rollouts)

    def batch(self, position: int, size: int) -> Batch:
        """The ``size`` demonstrations from ``position`` on, a group of its own each.

        Each epoch has its own permutation; a batch that reaches its end goes on with the next one's.
        """
        chosen = [self.rollouts[self._order.index(p)] for p in range(position, position + size)]
        return collate([Group(prompt=rollout.prompt, rollouts=(rollout,)) for rollout in chosen])


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A row's question and its answer in words."""

    index: int
    prompt: str | list[Message]
    answer: str


def build_demonstrations(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt_key: str = "prompt",
    response_key: str | None = None,
    max_length: int | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = logger.warning,
) -> list[Rollout]:
    """Demonstrations from rows of ``messages``, or of a prompt and an answer.

    The last of ``messages`` must be the assistant's: it is the demonstration, the messages before it are the prompt.
    Other rows have their prompt in ``prompt_key`` and the answer as text in ``response_key``. The prompt is rendered as
    prompts are in training; the answer follows as it stands, then the end-of-turn id that the chat template writes (the
    EOS id where there is no template), so the ids are those of a sampled answer that ended by itself. Nothing is cut:
    demonstrations that are too long are left out, and counted.

    Args:
        rows: from ``load_rows``, or any dicts.
        prompt_key: the column of the prompt.
        response_key: the column of the answer; None takes ``messages`` where a row has it, else ``response``, else
            ``answer``.
        max_length: the most tokens of prompt and answer together; None for no limit.
        template_kwargs: further variables of the chat template.
        say: where the counts are printed.

    Returns:
        Rollouts whose one segment is the model's, in the order of the rows.

    Raises:
        UserError: rows without a question or an answer, with images, with an end of turn in the middle of the answer;
            a tokenizer that has no way to end an answer; or nothing left.
    """
    kwargs = dict(template_kwargs or {})
    check_template_kwargs(tokenizer, kwargs)
    pairs = [_pair(rows, i, prompt_key, response_key) for i in range(len(rows))]
    turn, stops = assistant_turn(tokenizer, **kwargs), frozenset(eos_ids(tokenizer, **kwargs))
    questions = [_rendered(rows, pair, tokenizer, kwargs) for pair in pairs]
    answers = [turn.before + pair.answer.removeprefix(turn.opening) + turn.after for pair in pairs]
    unopened = sum(not pair.answer.startswith(turn.opening) for pair in pairs)
    if unopened:
        say(
            f"{KEY}: the chat template opens every answer with {turn.opening!r}; {unopened} of {len(pairs)} "
            "demonstrations do not start so and are learnt as what follows it"
        )
    made = []
    for pair, question, (prompt, response) in zip(
        pairs, questions, _encode(tokenizer, questions, answers), strict=True
    ):
        ids = response if response and response[-1] == turn.end else (*response, turn.end)
        if inside := [token for token in ids[:-1] if token in stops]:
            raise UserError(
                f"{place(rows, pair.index)}: the answer holds {decode(tokenizer, inside[:1])!r} before its end, where "
                "the sampler would have stopped; take it out"
            )
        source = str(rows[pair.index].get("data_source") or "unknown")
        made.append(_rollout(pair, source, tokenizer, question, prompt, ids))
    return _fit(rows, made, max_length, say)


def _pair(rows: Sequence[Mapping[str, Any]], i: int, prompt_key: str, response_key: str | None) -> _Pair:
    """Question and answer of row ``i``, checked."""
    row = rows[i]
    for name in MEDIA_COLUMNS:
        if row.get(name):
            raise UserError(f"{place(rows, i)}: column `{name}` is not empty; only text can be learnt yet")
    if response_key is None and row.get("messages"):
        return _conversation(rows, i)
    names = RESPONSE_KEYS if response_key is None else (response_key,)
    found = [name for name in names if row.get(name) is not None]
    if not found:
        wanted = "`messages`, `response` or `answer`" if response_key is None else f"`{response_key}`"
        raise UserError(
            f"{place(rows, i)}: no column {wanted} to learn from; the row has: {', '.join(row)}. "
            f"Name the column with {KEY}.response_key"
        )
    if row.get(prompt_key) is None:
        raise UserError(f"{place(rows, i)}: no column `{prompt_key}` ({KEY}.prompt_key); the row has: {', '.join(row)}")
    prompt = row[prompt_key]
    if not prompt or not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise UserError(
            f"{place(rows, i)}: `{prompt_key}` must be a string or a list of messages, not empty; it is {prompt!r:.60}"
        )
    answer = _answer_text(rows, i, f"`{found[0]}`", row[found[0]])
    question = prompt if isinstance(prompt, str) else _messages(rows, i, prompt_key, prompt)
    return _Pair(index=i, prompt=question, answer=answer)


def _conversation(rows: Sequence[Mapping[str, Any]], i: int) -> _Pair:
    messages = _messages(rows, i, "messages", rows[i]["messages"])
    last = messages[-1]
    if last["role"] != "assistant" or len(messages) < 2:
        raise UserError(
            f"{place(rows, i)}: the last of `messages` is learnt, so it must be the assistant's, after at least one "
            f"other message; the roles are: {', '.join(str(message['role']) for message in messages)}"
        )
    lost = [name for name, value in as_messages([last])[0].items() if value and name not in ("role", "content")]
    if lost:
        raise UserError(
            f"{place(rows, i)}: the assistant's message has {', '.join(lost)}, and its content alone can be learnt; "
            "write the whole answer into content, as the model should write it"
        )
    return _Pair(
        index=i, prompt=messages[:-1], answer=_answer_text(rows, i, "the assistant's content", last["content"])
    )


def _messages(rows: Sequence[Mapping[str, Any]], i: int, name: str, value: object) -> list[Message]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise UserError(f"{place(rows, i)}: `{name}` must be a list of messages; it is {value!r:.60}")
    for message in value:
        if not (isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message):
            raise UserError(f"{place(rows, i)}: each message of `{name}` needs `role` and `content`")
    return list(value)


def _answer_text(rows: Sequence[Mapping[str, Any]], i: int, what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{place(rows, i)}: {what} must be text, not empty; it is {value!r:.60}")
    return value


def _rendered(
    rows: Sequence[Mapping[str, Any]], pair: _Pair, tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any]
) -> str:
    from jinja2 import TemplateError

    try:
        return render_text(tokenizer, pair.prompt, **kwargs)
    except TemplateError as error:
        raise UserError(f"{place(rows, pair.index)}: the chat template refuses the prompt ({error})") from error


def _encode(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], answers: Sequence[str]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ids of each prompt and of the answer behind it.

    Encoded together, so that tokenizers which treat the start of a text in a special way do not see one; where the two
    melt into one token at the border, the answer is encoded alone: the prompt's ids are those of training.
    """
    if not questions:
        return []
    prompts = encode(tokenizer, questions)
    joint = encode(tokenizer, [question + answer for question, answer in zip(questions, answers, strict=True)])
    alone: Any = tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    return [
        (prompt, whole[len(prompt) :] if whole[: len(prompt)] == prompt else tuple(own))
        for prompt, whole, own in zip(prompts, joint, alone, strict=True)
    ]


def _rollout(
    pair: _Pair,
    source: str,
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    prompt: tuple[int, ...],
    ids: tuple[int, ...],
) -> Rollout:
    """The demonstration as a finished trajectory. No sampler drew it: log-probs are 0 and versions -1."""
    templated = bool(tokenizer.chat_template)
    written = Segment(ids=ids, author=Author.MODEL, log_probs=(0.0,) * len(ids), policy_versions=(-1,) * len(ids))
    return Rollout(
        prompt=Prompt(
            row=pair.index,
            ids=prompt,
            text=question if templated else decode(tokenizer, prompt),
            messages=tuple(as_messages(pair.prompt)) if templated else (),
            data_source=source,
        ),
        sample=0,
        segments=(written,),
        finish_reason=FinishReason.STOP,
        text=pair.answer,
    )


def _fit(
    rows: Sequence[Mapping[str, Any]], made: list[Rollout], limit: int | None, say: Callable[[str], None]
) -> list[Rollout]:
    """Leaves out what is longer than ``limit`` tokens, and says so."""
    if not made:
        raise UserError(f"{KEY}.files: there are no demonstrations to learn from")
    longest = max(made, key=lambda rollout: len(rollout.ids))
    extreme = f"the longest has {len(longest.ids)} tokens ({place(rows, longest.prompt.row)})"
    kept = [rollout for rollout in made if limit is None or len(rollout.ids) <= limit]
    dropped = len(made) - len(kept)
    if not kept:
        raise UserError(f"{KEY}: every demonstration is over {limit} tokens with its prompt; {extreme}")
    if dropped:
        say(f"{KEY}: kept {len(kept)} of {len(made)} demonstrations, dropped {dropped} over {limit} tokens; {extreme}")
    return kept
