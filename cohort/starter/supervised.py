"""The starter model's training: next-token prediction on solved additions, stopped by measured accuracy.

The demonstrations are all correct, in two styles at random: some work the sum out column by column, some give
the answer alone. A model this small learns the first style in half a minute and hardly adds in its head at
all, so it starts out right where it happens to work the sum out and mostly wrong where it answers at once.
What reinforcement learning finds out from the reward is that working pays, and then how to work without slips.
Both styles parse and end properly, so form is not what it has to learn. (bench/LOG.md: without the second style,
stopping early on the way up gives less and less certainly.)

When to stop is decided by sampling answers to problems that supervised learning never sees and grading them
with the same reward that reinforcement learning uses later: the way up is steep, and the number of steps it
takes differs between machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from cohort.data.tasks import arithmetic
from cohort.rewards.arithmetic import compute_score
from cohort.starter.model import CONTEXT, new_model
from cohort.starter.tokenizer import EOS, build_tokenizer, prompt_text

Progress = Callable[[str], None]
"""Receives one line of text now and then."""

LONGEST_ANSWER = 32
"""Response limit in tokens; a worked answer with its ``<eos>`` takes at most 26."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides how the starter model turns out.

    Attributes:
        seed: names the initial weights, the demonstrations and the draws of the measurements.
        worked: share of demonstrations that are worked out; the others give the answer alone.
        batch_size: demonstrations per step; problems hardly ever come twice.
        lr: AdamW's learning rate after the warm-up; no weight decay.
        warmup_steps: steps of linear warm-up.
        betas: AdamW's.
        clip_grad: largest gradient norm.
        target: sampled accuracy at which training stops.
        watch_from: mean probability of a whole demonstration from which on accuracy is measured. That mean
            costs nothing, and about twice it is the sampled accuracy: an answer has two styles.
        measure_every: steps between measurements.
        measured: problems per measurement.
        max_steps: where training gives up.
        log_every: steps between lines of progress.
    """

    seed: int = 0
    worked: float = 0.45
    batch_size: int = 128
    lr: float = 4e-3
    warmup_steps: int = 20
    betas: tuple[float, float] = (0.9, 0.95)
    clip_grad: float = 1.0
    target: float = 0.40
    watch_from: float = 0.15
    measure_every: int = 10
    measured: int = 512
    max_steps: int = 1000
    log_every: int = 25


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Shares of the answers to a set of problems.

    Attributes:
        right: answers with the right number that also ended.
        parsed: answers that ended with ``<eos>`` and from which the reward read a number.
    """

    right: float
    parsed: float


@dataclass(frozen=True, kw_only=True)
class Starter:
    """A trained starter model.

    Attributes:
        model: the weights, float32.
        tokenizer: its tokenizer.
        steps: optimiser steps taken.
        seconds: wall time they took, measurements included.
    """

    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    steps: int
    seconds: float


def train(recipe: Recipe, progress: Progress) -> Starter:
    """Trains until the sampled accuracy reaches ``recipe.target``.

    Runs on one thread: two are hardly faster at this size, and the weights then depend on nothing but the
    recipe, the library versions and the kind of CPU.

    Raises:
        RuntimeError: if the target is not reached within ``recipe.max_steps``.
    """
    start = time.perf_counter()
    with single_thread():
        tokenizer, model = build_tokenizer(CONTEXT), new_model(recipe.seed)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=0.0)
        unseen = arithmetic.rows("train", recipe.measured, recipe.seed)
        demonstrations = arithmetic.demonstrations(recipe.seed, recipe.batch_size, worked=recipe.worked)
        for step, batch in zip(range(1, recipe.max_steps + 1), demonstrations, strict=False):
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * min(1.0, step / recipe.warmup_steps)
            loss, whole = learn(model, optimizer, *encode(tokenizer, batch), clip_grad=recipe.clip_grad)
            if step % recipe.log_every == 0:
                progress(f"starter model: step {step}, loss {loss:.3f}, {time.perf_counter() - start:.0f} s")
            if step % recipe.measure_every or whole < recipe.watch_from:
                continue
            sampled = measure(model, tokenizer, unseen, seed=step)
            progress(f"starter model: step {step}, {sampled.right:.0%} of sampled answers right")
            if sampled.right >= recipe.target:
                return Starter(model=model.eval(), tokenizer=tokenizer, steps=step, seconds=time.perf_counter() - start)
    raise RuntimeError(
        f"after {recipe.max_steps} steps the starter model is not yet right {recipe.target:.0%} of the time"
    )


def encode(tokenizer: PreTrainedTokenizerFast, batch: Sequence[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Ids of the demonstrations, right-padded, and the mask of the tokens to learn.

    Returns:
        ids  # (B, L), and mask  # (B, L), 1.0 on the answer and its ``<eos>``
    """
    texts = [prompt_text(question) + answer + EOS for question, answer in batch]
    encoded = tokenizer(texts, padding=True, padding_side="right", add_special_tokens=False, return_tensors="pt")
    prompts = torch.tensor([len(question) + 2 for question, _ in batch])  # a token per character and two roles
    position = torch.arange(encoded["input_ids"].shape[1])
    return encoded["input_ids"], encoded["attention_mask"] * (position >= prompts[:, None]).float()


def learn(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, ids: Tensor, mask: Tensor, *, clip_grad: float
) -> tuple[float, float]:
    """One step on the mean cross-entropy of the masked tokens.

    Args:
        model: what learns.
        optimizer: its optimiser.
        ids: demonstrations                    # (B, L)
        mask: 1.0 on the tokens to learn       # (B, L)
        clip_grad: largest gradient norm.

    Returns:
        The loss, and the mean probability of a whole demonstration, both before the step.
    """
    # Padding is on the right, where causal attention does not see it: no attention mask is needed.
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none") * mask[:, 1:]  # (B, L - 1)
    loss = losses.sum() / mask[:, 1:].sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
    optimizer.step()
    return float(loss.detach()), float((-losses.detach().sum(1)).exp().mean())


@torch.no_grad()
def measure(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[dict[str, Any]],
    *,
    seed: int,
    greedy: bool = False,
) -> Accuracy:
    """Answers every problem once, at temperature 1 or greedily, and grades with the task's reward."""
    texts = [prompt_text(row["prompt"][0]["content"]) for row in rows]
    prompts = tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
    settings = GenerationConfig(
        max_new_tokens=LONGEST_ANSWER,
        do_sample=not greedy,
        **({} if greedy else {"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ids = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids=prompts["input_ids"], attention_mask=prompts["attention_mask"], generation_config=settings
        )
    answers = ids[:, prompts["input_ids"].shape[1] :]  # (B, T)
    ended = (answers == tokenizer.eos_token_id).any(1).tolist()
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    scores = [
        compute_score(arithmetic.DATA_SOURCE, text, row["reward_model"]["ground_truth"])
        for text, row in zip(texts, rows, strict=True)
    ]
    return Accuracy(
        right=sum(score["acc"] * end for score, end in zip(scores, ended, strict=True)) / len(rows),
        parsed=sum(score["parsed"] * end for score, end in zip(scores, ended, strict=True)) / len(rows),
    )


@contextmanager
def single_thread() -> Iterator[None]:
    """One torch thread inside the block; the caller's number afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
