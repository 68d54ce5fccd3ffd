"""``reward_model.*`` -> the model that grades."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from cohort.assemble.samplers import make_sampler
from cohort.config.schema import RewardModel
from cohort.data.tokenizer import check_template_kwargs, eos_ids, load_tokenizer, render
from cohort.errors import UserError
from cohort.models.build import load_model
from cohort.models.classifier import Classifier, load_classifier
from cohort.models.micro import Budget
from cohort.models.precision import resolve_precision
from cohort.protocols import Sampler, Sampling
from cohort.rewards.judge import TEMPLATE, Judge, check_template
from cohort.rewards.mixed import Grader
from cohort.rewards.model import ClassifierReward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Say = Callable[[str], None]


def build_grader(
    section: RewardModel,
    *,
    device: torch.device,
    tokenizer: PreTrainedTokenizerBase,
    live: Mapping[str, object],
    engine: str,
    slots: int,
    say: Say,
) -> Grader:
    """The model that grades, loaded once and frozen; or a judge that asks the policy's own sampler.

    Args:
        section: what was configured.
        device: where it runs: that of the run.
        tokenizer: the policy's.
        live: holds the policy's ``sampler`` by the time a judge asks it.
        engine: the sampler of a judge of its own, ``native`` or ``hf``.
        slots: judgements that such a judge writes at a time.
        say: takes a line about what was loaded.

    Raises:
        UserError: for a folder, a label, a template or a length that cannot work.
    """
    if section.kind == "classifier":
        return _classifier(section, device, say)
    template = _template(section.judge.template)
    if section.model.path is None:
        say(f"reward model: the policy judges, {_weight(section)}")
        return _judge(section, template, tokenizer, lambda: cast(Sampler, live["sampler"]))
    path = _folder(section)
    own_tokenizer = _tokenizer(section, path)
    judge_of = _check_kwargs(section, own_tokenizer)
    model = load_model(path, device=device, trust_remote_code=section.model.trust_remote_code)
    dtype = resolve_precision(device, model.num_parameters(), section.dtype)
    sampler = make_sampler(
        engine,
        model,
        tokenizer=own_tokenizer,
        eos_ids=eos_ids(own_tokenizer, model.config, model.generation_config, **judge_of),
        dtype=dtype,
        slots=slots,
    )
    sampler.load(model.state_dict().items(), 0)
    say(f"reward model: judge {path}, {_facts(model.num_parameters(), dtype)}, {_weight(section)}")
    return _judge(section, template, own_tokenizer, lambda: sampler)


def _classifier(section: RewardModel, device: torch.device, say: Say) -> ClassifierReward:
    path = _folder(section)
    tokenizer = _tokenizer(section, path)
    model = load_classifier(path, device=device, trust_remote_code=section.model.trust_remote_code)
    dtype = resolve_precision(device, model.num_parameters(), section.dtype)
    rows = None if section.use_dynamic_bsz else section.micro_batch_size_per_gpu
    budget = Budget(max_tokens=section.forward_max_token_len_per_gpu, max_rows=rows)
    reward = ClassifierReward(
        Classifier(model, compute_dtype=dtype, budget=budget),
        cast(Any, tokenizer),
        label=section.label,
        activation=section.activation,
        scale=section.scale,
        shift=section.shift,
        max_length=section.max_length,
        truncation=section.truncation,
        say=say,
    )
    say(f"reward model: classifier {path}, {_facts(model.num_parameters(), dtype)}, {_weight(section)}")
    return reward


def _judge(
    section: RewardModel, template: str, tokenizer: PreTrainedTokenizerBase, sampler: Callable[[], Sampler]
) -> Judge:
    judge, kwargs = section.judge, _check_kwargs(section, tokenizer)

    def ids(messages: Sequence[dict[str, str]]) -> Sequence[int]:
        shown = messages if tokenizer.chat_template else messages[-1]["content"]
        return render(tokenizer, shown, **kwargs)[0]

    return Judge(
        sampler,
        render=ids,
        decode=lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True)),
        template=template,
        pattern=judge.pattern,
        worst=judge.worst,
        best=judge.best,
        n=judge.n,
        sampling=Sampling(temperature=judge.temperature, max_tokens=judge.max_tokens),
        scale=section.scale,
        shift=section.shift,
        max_length=section.max_length,
    )


def _check_kwargs(section: RewardModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    kwargs = dict(section.judge.apply_chat_template_kwargs)
    check_template_kwargs(tokenizer, kwargs, key="reward_model.judge.apply_chat_template_kwargs")
    return kwargs


def _folder(section: RewardModel) -> str:
    """The model's folder or hub name."""
    path = section.model.path
    assert path is not None
    if path == "starter":
        from cohort.starter.build import starter_model

        return str(starter_model())
    place = os.path.expanduser(path)
    if path.startswith((".", "/", "~")) and not Path(place).is_dir():
        raise UserError(f"reward_model.model.path={path}: no such folder; give a Hugging Face folder or hub name")
    return place


def _tokenizer(section: RewardModel, path: str) -> PreTrainedTokenizerBase:
    source = section.model
    return load_tokenizer(
        source.tokenizer_path or path,
        chat_template=source.custom_chat_template,
        trust_remote_code=source.trust_remote_code,
        key="reward_model.model.tokenizer_path" if source.tokenizer_path else "reward_model.model.path",
    )


def _template(given: str | None) -> str:
    """The judge's template: its text, or the file that holds it."""
    if given is None:
        return TEMPLATE
    if "{" not in given:
        path = Path(os.path.expanduser(given))
        if not path.is_file():
            raise UserError(f"reward_model.judge.template={given}: neither a text with {{answer}} in it nor a file")
        given = path.read_text(encoding="utf-8")
    check_template(given)
    return given


def _facts(parameters: int, dtype: torch.dtype) -> str:
    return f"{parameters / 1e6:.2f} M parameters, {str(dtype).removeprefix('torch.')}"


def _weight(section: RewardModel) -> str:
    return f"weight {section.weight:g}"
