"""``trainer.*``: how long, where, and what is written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cohort.config.schema.limits import Count, Every, Positive, Range, Seed

Logger = Literal["console", "jsonl", "tensorboard", "file", "rollouts"]


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The run."""

    project_name: str = "cohort"
    """First part of the run folder's name."""
    experiment_name: str = "run"
    """Second part of the run folder's name."""
    default_local_dir: str | None = None
    """The run folder; null means runs/PROJECT/EXPERIMENT. A folder in use gets a numbered sibling."""
    device: str = "auto"
    """auto (CUDA, else the CPU), cpu, cuda, cuda:N or mps."""
    threads: Count | None = None
    """CPU threads for matrix products; null leaves PyTorch's choice. Exact repetition needs the same number."""
    seed: Seed = 1
    """Names the whole run; data.seed, rollout.seed and actor.data_loader_seed follow it unless they are set."""
    nnodes: Annotated[int, Range(low=1, high=1)] = 1
    """Machines. One for now."""
    n_gpus_per_node: Count = 1
    """Replicas of the model that share the work of an update, on GPUs or on CPU cores."""
    total_epochs: Count = 30
    """Passes over the training data, unless total_training_steps or max_minutes ends the run before."""
    total_training_steps: Count | None = None
    """Training steps of the whole run; null follows total_epochs."""
    critic_warmup: Annotated[int, Range(low=0)] = 0
    """Training steps in which the critic learns alone, before the actor's first update."""
    max_minutes: Positive | None = None
    """End the run after the step in which this much training time has passed."""
    logger: tuple[Logger, ...] = ("console", "jsonl")
    """Where numbers go, beside metrics.jsonl and rollouts/*.parquet, which are always written. file is jsonl."""
    sample_freq: Every = 10
    """Show a few sample answers on the console every so many steps; -1 never."""
    log_val_generations: Annotated[int, Range(low=0)] = 0
    """Validation answers that the console shows after each validation, the same ones each time."""
    rollout_data_dir: str | None = None
    """Folder that also gets every training sample as STEP.jsonl; rollouts/*.parquet is always written."""
    validation_data_dir: str | None = None
    """Folder that gets every validation sample as STEP.jsonl."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate once and leave."""
    test_freq: Every = -1
    """Validate every so many steps, and after the last; -1 never."""
    save_freq: Every = -1
    """Save a checkpoint every so many steps, and after the last; -1 never."""
    max_actor_ckpt_to_keep: Count | None = None
    """Keep only the newest so many checkpoints; null keeps all."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """auto goes on from the run folder's newest checkpoint, disable starts anew, resume_path takes resume_from_path."""
    resume_from_path: str | None = None
    """The checkpoint folder to go on from, with resume_mode=resume_path."""

    @property
    def run_folder(self) -> str:
        """The folder that is asked for, before a number is added to one in use."""
        return self.default_local_dir or f"runs/{self.project_name}/{self.experiment_name}"
