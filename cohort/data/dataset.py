"""Data rows become prompts: rendered, measured on the exact ids that will be sent, filtered or cut."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from cohort.data.files import load_rows, place, write_rows
from cohort.data.order import permutation
from cohort.data.tokenizer import as_messages, check_template_kwargs, decode, encode, render_text
from cohort.errors import UserError
from cohort.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Truncation", "build_prompts", "load_rows", "truncate", "write_rows"]

Truncation = Literal["error", "left", "right", "middle"]
logger = logging.getLogger(__name__)
MEDIA_COLUMNS = ("images", "videos", "audios")


def build_prompts(
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    prompt_key: str = "prompt",
    max_length: int | None = None,
    filter_overlong: bool = False,
    truncation: Truncation = "error",
    max_samples: int = -1,
    shuffle: bool = False,
    seed: int = 0,
    template_kwargs: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = logger.warning,
) -> list[Prompt]:
    """Prompts from rows in verl's schema or in the plain form.

    verl's schema has ``data_source``, ``prompt`` (messages), ``ability``, ``reward_model.ground_truth`` and
    ``extra_info``. The plain form needs ``prompt`` alone (a string or messages). The answer key is
    ``reward_model.ground_truth``, or else the column ``ground_truth``, or else ``answer``. Every column
    reaches the reward by its name.

    Args:
        rows: from ``load_rows``, or any dicts.
        prompt_key: the column that holds the prompt.
        max_length: the most prompt tokens; None for no limit.
        filter_overlong: drop longer prompts, and say how many.
        truncation: what happens to longer prompts that are kept: an error, or keep the last tokens
            (``left``), the first (``right``), or the first and last halves (``middle``), as in verl v0.5.
        max_samples: cap on rows, applied before the filter: a seeded random subset with ``shuffle``, else
            the head; -1 takes all.
        shuffle: see ``max_samples``. The order of the result is that of the rows either way.
        seed: picks the subset.
        template_kwargs: further variables of the chat template.
        say: where the counts are printed.

    Raises:
        UserError: rows without a usable prompt, images, prompts that are too long with
            ``truncation="error"``, template variables without effect, or nothing left.
    """
    if truncation not in get_args(Truncation):
        raise UserError(f"data.truncation={truncation}: legal are {', '.join(get_args(Truncation))}")
    kwargs = dict(template_kwargs or {})
    check_template_kwargs(tokenizer, kwargs)
    chosen = _subset(len(rows), max_samples, shuffle, seed)
    texts = [_rendered(rows, i, prompt_key, tokenizer, kwargs) for i in chosen]
    ids = encode(tokenizer, texts) if texts else []
    prompts = [_prompt(rows[i], i, prompt_key, tokenizer, ids[k], texts[k]) for k, i in enumerate(chosen)]
    return (
        prompts if max_length is None else _fit(prompts, rows, tokenizer, max_length, filter_overlong, truncation, say)
    )


def _subset(total: int, max_samples: int, shuffle: bool, seed: int) -> list[int]:
    if max_samples < 0 or max_samples >= total:
        return list(range(total))
    if not shuffle:
        return list(range(max_samples))
    return sorted(int(i) for i in permutation(total, seed=seed)[:max_samples])


def _rendered(
    rows: Sequence[Mapping[str, Any]],
    i: int,
    prompt_key: str,
    tokenizer: PreTrainedTokenizerBase,
    kwargs: dict[str, Any],
) -> str:
    from jinja2 import TemplateError

    value = _prompt_value(rows, i, prompt_key)
    try:
        return render_text(tokenizer, value, **kwargs)
    except TemplateError as error:
        raise UserError(f"{place(rows, i)}: the chat template refuses the prompt ({error})") from error


def _prompt_value(rows: Sequence[Mapping[str, Any]], i: int, prompt_key: str) -> str | list[Message]:
    """The prompt of row ``i``, checked."""
    row = rows[i]
    if prompt_key not in row:
        raise UserError(f"{place(rows, i)}: no column `{prompt_key}` (data.prompt_key); the row has: {', '.join(row)}")
    for name in MEDIA_COLUMNS:
        if row.get(name):
            raise UserError(f"{place(rows, i)}: column `{name}` is not empty; only text prompts can be trained on yet")
    value = row[prompt_key]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        for message in value:
            if not (isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message):
                raise UserError(f"{place(rows, i)}: each message of `{prompt_key}` needs `role` and `content`")
        return list(value)
    raise UserError(
        f"{place(rows, i)}: `{prompt_key}` must be a string or a list of messages, not empty; it is {value!r:.60}"
    )


def _prompt(
    row: Mapping[str, Any], i: int, prompt_key: str, tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], text: str
) -> Prompt:
    graded = row.get("reward_model")
    if isinstance(graded, Mapping) and graded.get("ground_truth") is not None:
        ground_truth = graded["ground_truth"]
    else:
        ground_truth = row.get("ground_truth", row.get("answer"))
    return Prompt(
        row=i,
        ids=ids,
        text=text if tokenizer.chat_template else decode(tokenizer, ids),
        messages=tuple(as_messages(row[prompt_key])) if tokenizer.chat_template else (),
        data_source=str(row.get("data_source") or "unknown"),
        ground_truth=ground_truth,
        columns=row,
    )


def _fit(
    prompts: list[Prompt],
    rows: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    limit: int,
    filter_overlong: bool,
    truncation: Truncation,
    say: Callable[[str], None],
) -> list[Prompt]:
    """Filters, cuts or refuses what is longer than ``limit`` tokens."""
    long = [prompt for prompt in prompts if len(prompt.ids) > limit]
    longest = max(prompts, key=lambda prompt: len(prompt.ids), default=None)
    extreme = f"the longest has {len(longest.ids)} ({place(rows, longest.row)})" if longest else ""
    if filter_overlong:
        kept = [prompt for prompt in prompts if len(prompt.ids) <= limit]
        say(
            f"data.filter_overlong_prompts: kept {len(kept)} of {len(prompts)} prompts, dropped {len(long)} over "
            f"data.max_prompt_length={limit} tokens; {extreme}"
        )
        if not kept:
            raise UserError(f"every prompt is over data.max_prompt_length={limit} tokens; {extreme}")
        return kept
    if long and truncation == "error":
        raise UserError(
            f"{len(long)} of {len(prompts)} prompts are over data.max_prompt_length={limit} tokens and data.truncation="
            f"error; {extreme}. Raise the limit, or set data.filter_overlong_prompts=True or data.truncation=left"
        )
    if long:
        say(f"data.truncation={truncation}: cut {len(long)} of {len(prompts)} prompts to {limit} tokens; {extreme}")
    return [_cut(prompt, tokenizer, limit, truncation) if len(prompt.ids) > limit else prompt for prompt in prompts]


def _cut(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, limit: int, truncation: Truncation) -> Prompt:
    ids = truncate(prompt.ids, limit, truncation)
    return replace(prompt, ids=ids, text=decode(tokenizer, ids))


def truncate(ids: tuple[int, ...], limit: int, truncation: Truncation) -> tuple[int, ...]:
    """At most ``limit`` ids: the last (``left``), the first (``right``), or the first and last halves.

    Raises:
        ValueError: with ``error``, if there are more.
    """
    if len(ids) <= limit:
        return ids
    if truncation == "left":
        return ids[len(ids) - limit :]
    if truncation == "right":
        return ids[:limit]
    if truncation == "middle":
        first = limit // 2
        return ids[:first] + ids[len(ids) - (limit - first) :]
    raise ValueError(f"{len(ids)} ids are over {limit}")
