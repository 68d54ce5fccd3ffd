"""Which layouts an architecture can take, proved on a few tokens rather than assumed from its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cohort.errors import UserError
from cohort.models.forward import causal_lm, token_stats
from cohort.models.layout import Layout
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
    lm = causal_lm(model)
    reason = _not_fully_causal(lm)
    settled, note = layout, ""
    if reason and (layout.packed or layout.share_prompt):
        settled = replace(layout, packed=False, share_prompt=False)
        note = f"{type(lm).__name__} {reason}: its rows are padded and prompts are not shared (slower, same numbers)"
    worst = _probe(model, settled)
    limit = TOLERANCE.get(lm.dtype, 0.2)
    if not worst <= limit:
        raise UserError(
            f"{type(lm).__name__} is not supported: its own log-probs differ by {worst:.2g} from those of the head "
            "applied to its last hidden state; use a decoder such as Qwen2, Qwen3, Llama, Mistral or GPT-2"
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


@torch.no_grad()
def _probe(model: nn.Module, layout: Layout) -> float:
    """Largest difference between ``token_stats`` and the log-softmax of the model's own logits."""
    lm = causal_lm(model)
    ids = 3 + torch.arange(24).view(3, 8) * 7 % max(lm.config.get_text_config().vocab_size - 3, 1)
    ids[1, :3] = ids[0, :3]  # two answers of one prompt
    lengths = torch.tensor([5, 4, 2])
    batch = Batch(
        ids=ids,
        prompt_lengths=torch.tensor([3, 3, 4]),
        response_lengths=lengths,
        mask=(torch.arange(5) < lengths[:, None]).float(),
        group=torch.tensor([0, 0, 1]),
        rollout_log_probs=torch.zeros(3, 5),
        policy_versions=torch.zeros(3, 5, dtype=torch.long),
        truncated=torch.zeros(3),
    )
    ours = token_stats(model, batch, temperature=1.0, layout=layout).log_probs.cpu()
    worst = [_plain(lm, batch, row) - ours[row, : lengths[row]] for row in range(3)]
    return float(torch.cat(worst).abs().max())


def _plain(lm: PreTrainedModel, batch: Batch, row: int) -> Tensor:
    """Log-probs of one row from the model's own logits, alone and unpadded."""
    prompt, end = int(batch.prompt_lengths[row]), int(batch.prompt_lengths[row] + batch.response_lengths[row])
    ids = batch.ids[row : row + 1, :end]
    logits = lm(input_ids=ids.to(lm.device), use_cache=False).logits[0, prompt - 1 : -1].cpu().double()
    return logits.log_softmax(-1).gather(1, ids[0, prompt:, None])[:, 0].to(torch.float64)
