"""Rules of the section ``reward_model.*``: what must hold between its keys, and which do nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cohort.config.convert import show
from cohort.config.schema import Config
from cohort.errors import UserError

KEY = "reward_model"


def check_reward_model(config: Config) -> None:
    """Cross-checks of the section.

    Raises:
        UserError: naming the key, its value and what would be legal.
    """
    section = config.reward_model
    if not section.enable:
        return
    judge = section.judge
    if section.kind == "classifier" and section.model.path is None:
        raise UserError(
            f"{KEY}.model.path=null: {KEY}.enable=True needs a sequence classifier; give a Hugging Face folder or hub "
            f"name, or set {KEY}.kind=judge to ask a language model"
        )
    for name, value in (("weight", section.weight), ("scale", section.scale)):
        if value == 0:
            raise UserError(f"{KEY}.{name}=0: the model would run and count nothing; set {KEY}.enable=False instead")
    if section.kind == "classifier" and section.activation == "softmax" and section.label is None:
        raise UserError(
            f"{KEY}.activation=softmax: of one label it is always 1; name a label of several with {KEY}.label, "
            f"or set {KEY}.activation=sigmoid"
        )
    if section.kind != "judge":
        return
    if judge.worst == judge.best:
        raise UserError(f"{KEY}.judge.worst={judge.worst:g}: {KEY}.judge.best is the same; make them differ")
    try:
        groups = re.compile(judge.pattern).groups
    except re.error as error:
        raise UserError(f"{KEY}.judge.pattern={show(judge.pattern)}: not a regular expression ({error})") from None
    if not groups:
        raise UserError(f"{KEY}.judge.pattern={show(judge.pattern)}: put the number in brackets, as in (\\d+)")
    if judge.n > 1 and judge.temperature == 0:
        raise UserError(
            f"{KEY}.judge.n={judge.n}: with {KEY}.judge.temperature=0 all judgements are the same; set n=1, or a "
            "temperature above 0"
        )


def idle_reward_model(config: Config) -> Iterator[tuple[str, str]]:
    """Keys of the section that do nothing beside the others, each with the reason."""
    section = config.reward_model
    source = ("path", "tokenizer_path", "custom_chat_template", "trust_remote_code")
    of_classifier = (
        *("label", "activation", "truncation"),
        *("forward_max_token_len_per_gpu", "micro_batch_size_per_gpu", "use_dynamic_bsz"),
    )
    of_judge = ("template", "pattern", "worst", "best", "n", "temperature", "max_tokens", "apply_chat_template_kwargs")
    if not section.enable:
        every = ("kind", "weight", "scale", "shift", "max_length", "dtype", *of_classifier)
        names = (*every, *(f"model.{name}" for name in source), *(f"judge.{name}" for name in of_judge))
        yield from ((f"{KEY}.{name}", f"{KEY}.enable=False") for name in names)
    elif section.kind == "classifier":
        yield from ((f"{KEY}.judge.{name}", f"{KEY}.kind=classifier") for name in of_judge)
        if section.use_dynamic_bsz:
            yield f"{KEY}.micro_batch_size_per_gpu", "use_dynamic_bsz=True cuts by tokens alone"
    else:
        yield from ((f"{KEY}.{name}", f"{KEY}.kind=judge") for name in of_classifier)
        if section.model.path is None:
            names = ("model.tokenizer_path", "model.custom_chat_template", "model.trust_remote_code", "dtype")
            yield from ((f"{KEY}.{name}", f"{KEY}.model.path=null: the policy judges") for name in names)
