"""The model that the engine samples from: the training module itself, or one cast copy of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from cohort.errors import UserError
from cohort.rollout.holding import base_model, cast_copy, longest_input
from cohort.rollout.native.attention import NAME, Plan
from cohort.rollout.native.kv_cache import Geometry

PROBE_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}
"""Mean logit difference, in standard deviations of the logits, that is rounding; 0.1 in half types."""


class HeldModel:
    """A decoder with full causal attention, run on packed tokens with attention over slots.

    Args:
        model: a Hugging Face causal LM, or a ``PeftModel`` around one.
        dtype: None or the model's own type holds ``model`` itself; another type holds one cast copy,
            adapters left out, which ``load`` fills.
        max_model_len: the longest completion with its prompt; None is the model's own limit.

    Attributes:
        module: what is called.
        base: the Hugging Face model inside it.
        copied: whether it is a copy.
        geometry: shape of its keys and values.
        max_model_len: the longest input.

    Raises:
        UserError: naming the class, if its attention is anything but plain full causal attention.
    """

    def __init__(
        self, model: nn.Module, *, dtype: torch.dtype | None, max_model_len: int | None, own_copy: bool = False
    ) -> None:
        own = base_model(model).dtype
        self.copied = own_copy or (dtype is not None and dtype != own)
        self.module = cast_copy(model, dtype or own) if self.copied else model
        self.base = base_model(self.module)
        self.max_model_len = longest_input(self.base, max_model_len)
        reason = _not_fully_causal(self.base, self.max_model_len)
        if reason:
            raise _refusal(self.base, reason)
        self.geometry = self._probe()

    @torch.no_grad()
    def forward(self, ids: Tensor, positions: Tensor, plan: Plan, keep: Sequence[int] | None = None) -> Tensor:
        """Logits of packed tokens.

        Args:
            ids: # (N,)
            positions: position of each token in its completion   # (N,)
            plan: what each token attends to.
            keep: tokens whose logits are wanted; None is all of them.

        Returns:
            # (N, V) or (len(keep), V)
        """
        index = 0 if keep is None else torch.tensor(keep, device=ids.device)
        with _sampling_mode(self.module, self.base):
            output = self.module(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=index,
                cohort_plan=plan,
            )
        return output.logits[0]

    @torch.no_grad()
    def _probe(self) -> Geometry:
        """Runs a few tokens the model's way and ours: the answers must agree, whatever the class is called."""
        vocabulary = int(self.base.config.get_text_config().vocab_size)
        ids = torch.arange(1, min(9, self.max_model_len), device=self.base.device) * 5 % vocabulary
        plain = _Recorder()
        positions = torch.arange(len(ids), device=ids.device)
        try:
            ours = self.forward(ids, positions, plain).double()
        except TypeError as failure:
            if "cohort_plan" not in str(failure):
                raise
            raise _refusal(self.base, "it does not hand its options to its attention") from failure
        training = self.module.training
        theirs = self.module.eval()(input_ids=ids[None], use_cache=False).logits[0].double()
        self.module.train(training)
        if not plain.shapes or len(plain.shapes) != self.base.config.get_text_config().num_hidden_layers:
            raise _refusal(self.base, "not every layer is attention that can be replaced")
        if len(set(plain.shapes.values())) > 1:
            raise _refusal(self.base, "its layers differ in the shape of their keys and values")
        error = float((ours - theirs).abs().mean() / theirs.std())
        if not error <= PROBE_TOLERANCE.get(self.base.dtype, 0.1):
            raise _refusal(self.base, f"plain causal attention changes its logits by {error:.2g} standard deviations")
        kv_heads, key_dim, value_dim, dtype = plain.shapes[0]
        return Geometry(
            layers=len(plain.shapes),
            kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            dtype=dtype,
            device=self.base.device,
        )


class _Recorder:
    """A plan without a cache: plain causal attention that notes the shapes it sees."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int, torch.dtype]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.shapes[layer] = (k.shape[1], k.shape[2], v.shape[2], k.dtype)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        gqa = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa)[0].transpose(0, 1)


@contextmanager
def _sampling_mode(module: nn.Module, base: PreTrainedModel) -> Iterator[None]:
    """Our attention and no dropout, for the length of one forward pass: the trainer owns the module."""
    attention, training = base.config._attn_implementation, module.training
    base.config._attn_implementation = NAME
    if training:
        module.eval()
    try:
        yield
    finally:
        base.config._attn_implementation = attention
        if training:
            module.train()


def _refusal(base: PreTrainedModel, reason: str) -> UserError:
    return UserError(f"rollout.name=native cannot run {type(base).__name__}: {reason}; use rollout.name=hf")


def _not_fully_causal(base: PreTrainedModel, max_model_len: int) -> str:
    """Why the model cannot be run, as far as its config says; empty if nothing speaks against it."""
    config: dict[str, Any] = base.config.get_text_config().to_dict()
    kinds = set(config.get("layer_types") or ())
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    windowed = "sliding_attention" in kinds if kinds else window is not None
    if base.config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if kinds - {"full_attention", "sliding_attention"}:
        return f"it has layers of {', '.join(sorted(kinds - {'full_attention', 'sliding_attention'}))}"
    if windowed and (window or 0) < max_model_len:
        return f"its sliding window of {window} tokens is shorter than the longest input of {max_model_len}"
    if not base._supports_attention_backend:
        return "its attention cannot be replaced"
    return ""
