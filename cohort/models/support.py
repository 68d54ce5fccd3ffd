"""Which layouts an architecture can take, proved on a few tokens rather than assumed from its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cohort.errors import UserError
from cohort.models.forward import causal_lm, token_stats
from cohort.models.layout import Layout
from cohort.models.value import head_name, token_values
from cohort.types import Batch

TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Largest log-prob difference that is rounding; 0.2 for narrower types."""


def settle_layout(model: nn.Module, layout: Layout) -> tuple[Layout, str]:
    """The layout the architecture takes exactly, and the reason where it is not the one asked for.

    Shared prompts and packing need full causal attention in every layer. Other decoders run as padded rows through
    their own attention. Whatever is chosen is compared with the model's own logits on a probe.

    Returns:
        The layout, and one sentence for the person; empty where ``layout`` stands.

    Raises:
        UserError: naming the class, if its own log-probs cannot be reproduced (say, it scales logits after the head).
    """
    return _settle(
        model,
        layout,
        _log_prob_error,
        "its own log-probs differ by {:.2g} from those of the head applied to its last hidden state",
    )


def settle_value_layout(model: nn.Module, layout: Layout) -> tuple[Layout, str]:
    """The same for a value model: its values are compared with its own outputs, alone and unpadded.

    Raises:
        UserError: naming the class, if they differ (say, it sees later tokens, as encoders do).
    """
    return _settle(
        model,
        layout,
        _value_error,
        "its own outputs differ by {:.2g} from those of a head on the hidden states of a causal decoder",
    )


def _settle(
    model: nn.Module, layout: Layout, error: Callable[[nn.Module, Layout], float], complaint: str
) -> tuple[Layout, str]:
    lm = causal_lm(model)
    reason = _not_fully_causal(lm)
    settled, note = layout, ""
    if reason and (layout.packed or layout.share_prompt):
        settled = replace(layout, packed=False, share_prompt=False)
        note = f"{type(lm).__name__} {reason}: its rows are padded and prompts are not shared (slower, same numbers)"
    worst = error(model, settled)
    limit = TOLERANCE.get(lm.dtype, 0.2)
    if not worst <= limit:
        raise UserError(
            f"{type(lm).__name__} is not supported: {complaint.format(worst)}; "
            "use a decoder such as Qwen2, Qwen3, Llama, Mistral or GPT-2"
        )
    return settled, note


def _not_fully_causal(lm: PreTrainedModel) -> str:
    """Why attention is not plainly causal in every layer; empty if it is."""
    config: dict[str, Any] = lm.config.get_text_config().to_dict()
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    window = config.get("sliding_window")
    if kinds:
        return f"has layers with {', '.join(sorted(kinds))}"
    if "layer_types" not in config and window and window < config.get("max_position_embeddings", 0):
        return f"has a sliding window of {window} tokens"
    if not lm._supports_attention_backend:
        return "does not take an attention function of ours"
    return ""


def _probe(lm: PreTrainedModel) -> Batch:
    """A few rows: two answers of one prompt and one of another."""
    ids = 3 + torch.arange(24).view(3, 8) * 7 % max(lm.config.get_text_config().vocab_size - 3, 1)
    ids[1, :3] = ids[0, :3]
    lengths = torch.tensor([5, 4, 2])
    return Batch(
        ids=ids,
        prompt_lengths=torch.tensor([3, 3, 4]),
        response_lengths=lengths,
        mask=(torch.arange(5) < lengths[:, None]).float(),
        group=torch.tensor([0, 0, 1]),
        rollout_log_probs=torch.zeros(3, 5),
        policy_versions=torch.zeros(3, 5, dtype=torch.long),
        truncated=torch.zeros(3),
    )


@torch.no_grad()
def _log_prob_error(model: nn.Module, layout: Layout) -> float:
    """Largest difference between ``token_stats`` and the log-softmax of the model's own logits."""
    lm = causal_lm(model)
    batch = _probe(lm)
    ours = token_stats(model, batch, temperature=1.0, layout=layout).log_probs.cpu()
    worst = [_plain(lm, batch, row) - ours[row, : int(batch.response_lengths[row])] for row in range(batch.rows)]
    return float(torch.cat(worst).abs().max())


@torch.no_grad()
def _value_error(model: nn.Module, layout: Layout) -> float:
    """Largest difference between ``token_values`` and the model's own outputs, under a head that is not 0."""
    lm = causal_lm(model)
    batch = _probe(lm)
    weight: Any = lm.get_submodule(head_name(lm)).weight
    kept = weight.clone()
    weight.copy_(torch.linspace(-1, 1, weight.shape[1]) / weight.shape[1] ** 0.5)
    ours = token_values(model, batch, layout=layout).cpu()
    worst = [
        _outputs(lm, batch, row)[:, 0] - ours[row, : int(batch.response_lengths[row])] for row in range(batch.rows)
    ]
    weight.copy_(kept)
    return float(torch.cat(worst).abs().max())


def _plain(lm: PreTrainedModel, batch: Batch, row: int) -> Tensor:
    """Log-probs of one row from the model's own logits, alone and unpadded."""
    prompt, end = int(batch.prompt_lengths[row]), int(batch.prompt_lengths[row] + batch.response_lengths[row])
    return _outputs(lm, batch, row).log_softmax(-1).gather(1, batch.ids[row, prompt:end, None])[:, 0]


def _outputs(lm: PreTrainedModel, batch: Batch, row: int) -> Tensor:
    """What the model itself puts out before each response token of one row, in float64."""
    prompt, end = int(batch.prompt_lengths[row]), int(batch.prompt_lengths[row] + batch.response_lengths[row])
    ids = batch.ids[row : row + 1, :end]
    return lm(input_ids=ids.to(lm.device), use_cache=False).logits[0, prompt - 1 : -1].cpu().double()
