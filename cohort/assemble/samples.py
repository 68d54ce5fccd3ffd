"""Config -> which samples train, and in which order prompts come."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cohort.assemble.inputs import Inputs
from cohort.config.schema import Config
from cohort.data.columns import column, numbers
from cohort.data.curriculum import Adaptive, Curriculum, Mixed
from cohort.data.loader import ObservingOrder, Order, PromptLoader
from cohort.errors import UserError
from cohort.rewards.custom import read_object
from cohort.trainer.dynamic import DynamicSampling
from cohort.trainer.screen import Screen
from cohort.types import Prompt


def build_filter(config: Config, prompts: int, screen: Screen) -> DynamicSampling | None:
    """Dynamic sampling, if it is on."""
    chosen = config.algorithm.filter_groups
    if not chosen.enable:
        return None
    return DynamicSampling(
        prompts=prompts,
        metric=chosen.metric or "score",
        max_batches=chosen.max_num_gen_batches,
        batch_size=config.data.gen_batch_size,
        train_fewer=chosen.on_exhausted == "train",
        overlong_filter=config.algorithm.overlong_filter,
        screen=screen,
    )


def build_prompt_loader(config: Config, inputs: Inputs) -> PromptLoader:
    """The prompts in the order that the config names; also judges what is asked of the data's columns.

    Raises:
        UserError: if a row lacks a column that is named, or the file with an order cannot be used.
    """
    data, group_by = config.data, config.algorithm.group_by
    if config.trainer.val_only:
        return PromptLoader([*inputs.training, *inputs.validation])
    if group_by is not None:
        for prompt in inputs.training:
            column(prompt, group_by, key="algorithm.group_by")
    order = build_order(config, inputs.training) if inputs.training else None
    return PromptLoader(inputs.training, seed=data.seed, shuffle=data.shuffle, order=order)


def build_order(config: Config, prompts: Sequence[Prompt]) -> Order | None:
    """Another order than a permutation per epoch; None where none is asked for."""
    data, wanted = config.data, config.data.curriculum
    if data.sampler.class_path is not None and data.sampler.class_name is not None:
        return own_order(data.sampler.class_path, data.sampler.class_name, prompts, data.seed)
    if wanted.order is None:
        return None
    if wanted.order == "adaptive":
        return Adaptive(prompts, seed=data.seed, floor=wanted.floor, discount=wanted.discount)
    assert wanted.column is not None  # the rules ask for it
    difficulty = numbers(prompts, wanted.column, key="data.curriculum.column")
    if min(difficulty) == max(difficulty):
        raise UserError(
            f"data.curriculum.column={wanted.column}: every row has {difficulty[0]:g}, so there is nothing to order"
        )
    if wanted.order == "mixed":
        return Mixed(difficulty, seed=data.seed, classes=wanted.stages)
    return Curriculum(
        difficulty,
        seed=data.seed,
        length=wanted.steps * data.train_batch_size if wanted.steps else len(prompts),
        stages=wanted.stages,
        hardest_first=wanted.order == "hard_to_easy",
    )


def own_order(path: str, name: str, prompts: Sequence[Prompt], seed: int) -> Order:
    """The order that the class ``name`` of the file ``path`` makes.

    Raises:
        UserError: if there is no such class, or it cannot be made, or it does not keep the contract.
    """
    key = f"data.sampler.class_name={name}"
    make = read_object(path, name, path_key="data.sampler.class_path", name_key="data.sampler.class_name")()
    try:
        order = make(prompts, seed)
    except Exception as error:
        raise UserError(f"{key}: {name}(prompts, seed) raised {type(error).__name__}: {error}") from error
    if not isinstance(order, Order):
        raise UserError(
            f"{key}: it has no method index(position), which says which prompt, counted from 0, stands at a position "
            "of the run; docs/which_samples.md has an example"
        )
    partly = [part for part in ("observe", "state", "load_state") if hasattr(order, part)]
    if partly and not isinstance(order, ObservingOrder):
        raise UserError(
            f"{key}: it has {' and '.join(partly)}; an order that observes has observe, state and load_state"
        )
    PromptLoader(prompts, order=order).index(0)
    if isinstance(order, ObservingOrder):
        try:
            json.dumps(order.state())
        except TypeError as error:
            raise UserError(f"{key}: state() must be what JSON can hold: {error}") from error
    return order
