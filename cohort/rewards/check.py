"""Asks, before anything is sampled, whether the data has what the rewards need."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cohort.errors import UserError
from cohort.rewards.base import PROVIDED, RewardFunction, parameters
from cohort.types import Prompt


def check_rewards(functions: Sequence[RewardFunction], prompts: Sequence[Prompt], live: Collection[str] = ()) -> None:
    """Compares what the functions ask for with what there is.

    Args:
        functions: the rewards.
        prompts: the data.
        live: names of objects of the trainer, such as ``sampler``, that ``async def`` functions may use.

    Raises:
        UserError: a parameter that nobody provides, a column that some rows lack, a live object wanted by a
            plain function.
    """
    present: dict[str, None] = {}
    for prompt in prompts:
        present.update(dict.fromkeys(prompt.columns))
    for function in functions:
        for name in parameters(function).required:
            if name in PROVIDED or (name in live and function.is_async):
                continue
            if name in live:
                raise UserError(f"reward `{function.name}` asks for `{name}`: only an `async def` reward can have it")
            if name not in present:
                raise UserError(
                    f"reward `{function.name}` needs `{name}`; your data has: {', '.join(present) or 'no columns'}; "
                    f"and every reward can have: {', '.join(PROVIDED)}"
                )
            lacking = [prompt.row for prompt in prompts if name not in prompt.columns]
            if lacking:
                raise UserError(
                    f"reward `{function.name}` needs `{name}`, which {len(lacking)} of {len(prompts)} rows lack, "
                    f"first row {lacking[0] + 1}; give the parameter a default or fill the column"
                )
