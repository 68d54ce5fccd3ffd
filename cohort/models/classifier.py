"""Sequence classifiers from Hugging Face folders: load one, and read its logits at the last token of each row.

Hugging Face's decoders with a classification head take a row's logits at the rightmost token that is not
``config.pad_token_id``. Where that id is a row's own last token (padding with EOS is common) they look one token too
early, and without a padding id they refuse batches. Here the id that fills a micro-batch is one that no row of it ends
with, so the rightmost other token is always the row's own last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from cohort.errors import UserError
from cohort.models.micro import UNLIMITED, Budget
from cohort.models.precision import cast_parameters
from cohort.models.quiet import no_progress_bars

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Largest difference between a row alone and in a batch, in units of 1 + |logit|; 0.1 for narrower types."""

Row = Sequence[int]


def load_classifier(path: str | Path, *, device: torch.device | str, trust_remote_code: bool = False) -> Any:
    """A sequence classifier in float32 and eval mode.

    Args:
        path: a local folder, or a name on the hub.
        device: where it goes.
        trust_remote_code: run model code that comes with the folder.

    Raises:
        UserError: one line, if there is no such model, it is no sequence classifier, or its folder lacks weights (a
            causal language model has no head that was trained to score).
    """
    name = str(path)
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        with no_progress_bars():
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                name,
                config=config,
                dtype=torch.float32,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
        model, report = loaded
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot load a sequence classifier from {name}: {reason[:300]}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise UserError(
            f"{name} is no trained sequence classifier: it lacks {len(missing)} weights of {type(model).__name__}, the "
            f"first is {missing[0]}"
        )
    return model.to(device)


class Classifier:
    """A frozen sequence classifier.

    Args:
        model: from ``load_classifier``; frozen here, and held in ``compute_dtype`` from now on.
        compute_dtype: None is the model's own.
        budget: what one pass may hold, padding included. Memory and speed only.

    Raises:
        UserError: if a row scores otherwise in a batch than alone.
    """

    def __init__(
        self, model: PreTrainedModel, *, compute_dtype: torch.dtype | None = None, budget: Budget = UNLIMITED
    ) -> None:
        self.model = cast_parameters(model.eval().requires_grad_(False), compute_dtype or model.dtype)
        self.budget = budget
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        if budget.max_rows != 1:
            self._prove()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the logits, in order."""
        names: Any = self.model.config.id2label
        return tuple(str(names[i]) for i in sorted(names))

    @property
    def longest_input(self) -> int | None:
        """Tokens that the model can read; None where it has no limit."""
        config = self.model.config.get_text_config()
        positions = int(config.max_position_embeddings) if hasattr(config, "max_position_embeddings") else 0
        return positions if positions > 0 else None

    @torch.no_grad()
    def logits(self, rows: Sequence[Row]) -> Tensor:
        """Logits at the last token of each row, float32, on the CPU  # (R, labels).

        Rows are cut into micro-batches by length, longest first; the result is in the order of ``rows``.
        """
        out = torch.zeros(len(rows), len(self.labels))
        for chosen in self.plan([len(row) for row in rows]):
            out[chosen] = self._forward([rows[i] for i in chosen])
        return out

    def plan(self, lengths: Sequence[int]) -> list[list[int]]:
        """Row indices of each micro-batch; together every row once. A row over the budget goes alone."""
        most = min(self.budget.max_rows or len(lengths), self.vocabulary - 1)  # an id must be left to fill with
        micros: list[list[int]] = []
        for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            full = micros and (
                len(micros[-1]) >= most
                or (
                    self.budget.max_tokens is not None
                    and (len(micros[-1]) + 1) * lengths[micros[-1][0]] > self.budget.max_tokens
                )
            )
            if not micros or full:
                micros.append([])
            micros[-1].append(row)
        return micros

    def _forward(self, rows: Sequence[Row]) -> Tensor:
        ends = {row[-1] for row in rows}
        filler = next(token for token in range(self.vocabulary) if token not in ends)
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), filler)
        attended = torch.zeros(len(rows), width, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            attended[i, : len(row)] = 1
        config = self.model.config
        config.pad_token_id = config.get_text_config().pad_token_id = filler  # what its pooling skips; see the module
        device = self.model.device
        logits = self.model(input_ids=ids.to(device), attention_mask=attended.to(device)).logits
        return logits.reshape(len(rows), -1).float().cpu()

    def _prove(self) -> None:
        """Compares three probe rows, alone and together: one of them ends with the id its folder calls padding."""
        declared = self.model.config.get_text_config().pad_token_id
        last = declared if isinstance(declared, int) and 0 <= declared < self.vocabulary else 0
        probe = [token % self.vocabulary for token in range(5, 12)]
        rows = [probe, probe[:3], [*probe[:4], last]]
        alone = torch.cat([self._forward([row]) for row in rows])
        worst = float(((self._forward(rows) - alone).abs() / (1 + alone.abs())).max())
        if not worst <= TOLERANCE.get(self.model.dtype, 0.1):
            raise UserError(
                f"{type(self.model).__name__} scores an answer otherwise in a batch than alone (by {worst:.2g}); set "
                "reward_model.micro_batch_size_per_gpu=1 and reward_model.use_dynamic_bsz=False to score one at a time"
            )
