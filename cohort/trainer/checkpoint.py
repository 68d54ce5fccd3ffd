"""Checkpoints: one folder per saved step, published whole or not at all.

    checkpoints/step_20/
        hf/            a Hugging Face folder, loadable by from_pretrained, tokenizer included
        state.pt       parameters, optimiser, schedule: what an exact resume needs
        critic/        hf/ and state.pt of the critic, where there is one
        trainer.json   step, data position, KL coefficient
        prompts.json   what the order of prompts follows, where it follows anything but seed and position

Draws and data order are functions of the seed and the step, so there is no random state to save.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import torch

from cohort.errors import UserError
from cohort.protocols import ObservingSource
from cohort.trainer.trainer import Trainer

STEP = re.compile(r"step_(\d+)")


class Checkpoints:
    """Saves and restores a trainer under one folder.

    Args:
        folder: where ``step_N`` folders go.
        keep: newest checkpoints to keep; None keeps all.
    """

    def __init__(self, folder: Path, *, keep: int | None = None) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, trainer: Trainer) -> Path:
        """Writes a checkpoint under a temporary name, then renames it: a half-written one is never found."""
        target = self.folder / f"step_{trainer.steps}"
        partial = self.folder / f".partial_step_{trainer.steps}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        trainer.actor.save(partial / "hf")
        torch.save(dict(trainer.actor.state()), partial / "state.pt")
        if trainer.critic:
            trainer.critic.save(partial / "critic" / "hf")
            torch.save(dict(trainer.critic.state()), partial / "critic" / "state.pt")
        facts = {
            "step": trainer.steps,
            "position": trainer.position,
            "kl_coef": trainer.kl_reward.coef if trainer.kl_reward else None,
        }
        (partial / "trainer.json").write_text(json.dumps(facts, indent=1))
        if isinstance(trainer.prompts, ObservingSource) and (seen := trainer.prompts.state()):
            (partial / "prompts.json").write_text(json.dumps(seen))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        self._prune()
        return target

    def restore(self, trainer: Trainer, folder: Path) -> None:
        """Puts ``trainer`` where the checkpoint was taken.

        Raises:
            UserError: if ``folder`` is not a checkpoint, or one without the critic that this run has.
        """
        facts_file = folder / "trainer.json"
        if not facts_file.is_file():
            raise UserError(f"{folder} is not a checkpoint: it has no trainer.json; give a step_N folder of a run")
        facts = json.loads(facts_file.read_text())
        critic_file = folder / "critic" / "state.pt"
        if trainer.critic and not critic_file.is_file():
            raise UserError(
                f"{folder} has no critic, and this run has one; start anew from its weights with "
                f"actor_rollout_ref.model.path={folder / 'hf'}"
            )
        trainer.actor.load_state(torch.load(folder / "state.pt", weights_only=True))
        if trainer.critic:
            trainer.critic.load_state(torch.load(critic_file, weights_only=True))
        trainer.steps = facts["step"]
        trainer.position = facts["position"]
        if trainer.kl_reward:
            trainer.kl_reward.coef = facts["kl_coef"]
        if isinstance(trainer.prompts, ObservingSource) and (folder / "prompts.json").is_file():
            trainer.prompts.load_state(json.loads((folder / "prompts.json").read_text()))
        trainer.publish()

    def latest(self) -> Path | None:
        """The newest checkpoint of the run, None if there is none."""
        return max(self._all(), key=step_of, default=None)

    def _all(self) -> list[Path]:
        return [path for path in self.folder.glob("step_*") if STEP.fullmatch(path.name)]

    def _prune(self) -> None:
        if self.keep is None:
            return
        for path in sorted(self._all(), key=step_of)[: -self.keep]:
            shutil.rmtree(path)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint folder's name."""
    match = STEP.fullmatch(checkpoint.name)
    if match is None:
        raise UserError(f"{checkpoint} is not named step_N")
    return int(match[1])
