"""The files of a run: two steps of a tiny trainer with a reference and a critic."""

from pathlib import Path

from cohort.metrics import read
from cohort.tracking.jsonl import JsonlTracker
from cohort.tracking.pieces import TokenTexts
from cohort.tracking.rollouts import RolloutTracker
from cohort.types import Score
from tests.rig import build_parts, build_trainer
from tests.tiny import byte_tokenizer


def spoken(rollout):
    """A score with parts; some answers cannot be graded."""
    ids = rollout.response_ids
    if rollout.prompt.row == 1 and rollout.sample == 2:
        return Score(value=None, reason="Traceback\nValueError: no number", seconds=0.25)
    share = sum(token < 128 for token in ids) / max(len(ids), 1)
    return Score(value=round(share), parts={"acc": float(share > 0.6), "share": share, "pred": "x"}, seconds=0.001)


def texts():
    """The text of each token of the byte tokenizer."""
    tokenizer = byte_tokenizer()
    return TokenTexts(lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False), tokenizer("a")["input_ids"])


def tiny_run(folder: Path) -> Path:
    """Writes ``metrics.jsonl`` and ``rollouts/`` into ``folder``, and returns it."""
    trainer = build_trainer(build_parts(reference=True, critic=True, kl_coef=0.1), reward=spoken, minibatch=2)
    numbers, samples = JsonlTracker(folder / "metrics.jsonl"), RolloutTracker(folder / "rollouts", pieces=texts())
    for _ in range(2):
        record = trainer.step()
        samples.samples(record)
        numbers.log(record.step, read(record.metrics))
    numbers.close()
    trainer.close()
    return folder
