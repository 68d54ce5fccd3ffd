"""A model folder ready to answer: what ``cohort eval`` and ``cohort generate`` run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cohort.assemble.samplers import make_sampler
from cohort.data.tokenizer import eos_ids, load_tokenizer
from cohort.models.build import load_model, pick_device
from cohort.models.precision import resolve_precision
from cohort.protocols import Sampler
from cohort.rollout.environment import SingleTurn
from cohort.rollout.event_loop import EventLoop

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A sampler with what it takes to use it."""

    tokenizer: PreTrainedTokenizerBase
    sampler: Sampler
    environment: SingleTurn
    event_loop: EventLoop


def load_inference(
    path: str, *, device: str = "auto", dtype: str = "auto", engine: str = "native", slots: int = 128
) -> Inference:
    """Loads a model folder; ``starter`` is the starter model.

    Raises:
        UserError: if there is no such model, or the engine cannot run it.
    """
    if path == "starter":
        from cohort.starter.build import starter_model

        path = str(starter_model())
    tokenizer = load_tokenizer(path, key="--model")
    where = pick_device(device)
    model = load_model(path, device=where)
    compute = resolve_precision(where, model.num_parameters(), dtype)
    sampler = make_sampler(
        engine,
        model,
        tokenizer=tokenizer,
        eos_ids=eos_ids(tokenizer, model.config, model.generation_config),
        dtype=compute,
        slots=slots,
    )
    sampler.load(model.state_dict().items(), 0)
    return Inference(tokenizer=tokenizer, sampler=sampler, environment=SingleTurn(tokenizer), event_loop=EventLoop())
