"""The value model: a decoder with a scalar head, and V at each response token.

V of response token t is the value of the state *before* the token is written: everything up to and including token
t - 1 (for the first token, the prompt). It is read at the position whose hidden state also predicts token t, so the
log-prob and the value of a token come from the same place: ``Arrangement.source``. Text of the environment and of
templates is read, and has no value of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForTokenClassification, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GenericForTokenClassification
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from cohort.errors import UserError
from cohort.models.build import named, override
from cohort.models.forward import causal_lm, decode, spread
from cohort.models.layout import Layout, arrange
from cohort.models.quiet import no_load_report
from cohort.types import Batch


def load_value_model(
    path: str | Path,
    *,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
    override_config: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """A decoder with a head of one output, in eval mode, so that dropout is off for good.

    Takes the folder of a causal LM, whose head is left out; of a token classifier with one label, as
    ``LocalCritic.save`` writes it; or of a reward model (sequence classifier with one label), whose head is kept. A
    head that the folder does not have starts at 0: the first values are 0, in any process.

    Args:
        path: a local folder, or a name on the hub.
        device: where it goes.
        dtype: type of its weights; float32 for a model that is trained.
        trust_remote_code: run model code that comes with the folder.
        override_config: fields of the model's config to change.

    Raises:
        UserError: one line, if there is no such model, it is no decoder, its folder lacks weights, or it has more than
            one label.
    """
    name = named(path)
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        _one_label(config, name)
        override(config, override_config or {}, name)
        with no_load_report():
            loaded: Any = _value_class(config, name).from_pretrained(
                name,
                config=config,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # judged below
            )
        model, report = loaded
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot load a value model from {name}: {reason[:300]}") from error
    head = head_name(model)
    lacking = sorted(key for key in report["missing_keys"] if not key.startswith(f"{head}."))
    if lacking:
        raise UserError(f"{name} lacks {len(lacking)} weights of {type(model).__name__}, the first is {lacking[0]}")
    if report["mismatched_keys"]:
        first = min(str(entry[0]) for entry in report["mismatched_keys"])
        raise UserError(f"{name} has weights of other shapes than {type(model).__name__}, the first is {first}")
    with torch.no_grad():
        for key, parameter in model.get_submodule(head).named_parameters():
            if f"{head}.{key}" in report["missing_keys"]:
                parameter.zero_()
    return model.to(device).eval()


def _one_label(config: PretrainedConfig, name: str) -> None:
    """Sets the number of outputs, unless the folder has a head with another."""
    written = [kind for kind in config.architectures or () if kind.endswith("Classification")]
    if written and config.num_labels != 1:
        raise UserError(
            f"{name} is a {written[0]} with {config.num_labels} labels, and a value is one number; give a causal LM, "
            "or a classifier with one label"
        )
    config.num_labels = 1


def _value_class(config: PretrainedConfig, name: str) -> Any:
    """The token classifier of an architecture; where Transformers has none, one that is made like its others.

    A made class saves folders that Cohort loads, but not ``AutoModelForTokenClassification``.
    """
    kind = type(config)
    if kind in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING or kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForTokenClassification
    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING[kind]
    base = next((parent for parent in causal.__bases__ if issubclass(parent, PreTrainedModel)), None)
    if base is None:
        raise UserError(
            f"cannot make a value model of {causal.__name__} ({name}); use a decoder such as Qwen3 or Llama"
        )
    body = {"base_model_prefix": causal.base_model_prefix, "__module__": __name__}
    return type(
        causal.__name__.replace("ForCausalLM", "") + "ForTokenClassification",
        (GenericForTokenClassification, base),
        body,
    )


def head_name(model: PreTrainedModel) -> str:
    """Name of the linear layer that makes a value of a hidden state.

    Raises:
        UserError: if the model has anything else behind its backbone.
    """
    behind = {
        name: module
        for name, module in model.named_children()
        if name != model.base_model_prefix and any(True for _ in module.parameters())
    }
    if len(behind) == 1:
        name, module = behind.popitem()
        if isinstance(module, nn.Linear) and module.out_features == 1:
            return name
    raise UserError(
        f"{type(model).__name__} is not a backbone with a head of one output; use a decoder such as Qwen3 or Llama"
    )


def token_values(model: nn.Module, batch: Batch, *, layout: Layout) -> Tensor:
    """V at every response token that the model wrote; 0 where ``mask`` is 0  # (B, T).

    Differentiable if gradients are on. The result does not depend on ``layout`` beyond rounding.

    Args:
        model: from ``load_value_model``, or peft's wrapper around one, in eval mode. Its head computes in the type of
            its own weights, float32, whatever the backbone computes in.
        batch: the micro-batch; only the width of the result depends on its padding.
        layout: see ``Layout``.
    """
    if batch.media:
        raise UserError("the batch has media, and the critic takes text alone; use a text model and text prompts")
    lm = causal_lm(model)
    head: Any = lm.get_submodule(head_name(lm))
    B, T = batch.mask.shape
    if not (batch.mask > 0).any():
        return head.weight.new_zeros(B, T).detach()
    plan = arrange(batch.to("cpu"), layout).to(lm.device)
    states = decode(lm, plan, checkpointing=layout.checkpointing)  # (N, D)
    values = head(states.index_select(0, plan.source).to(head.weight.dtype))[:, 0]  # (M,)
    return spread(values, plan, (B, T))
