"""Back ends by name, absent packages, the fan-out, TensorBoard and curves."""

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cohort.errors import UserError
from cohort.metrics import read
from cohort.tracking import base
from cohort.tracking.base import Run, Trackers, build_trackers, check_names, register_tracker
from cohort.tracking.console import Console
from cohort.tracking.curves import draw_curves, smoothed
from cohort.tracking.jsonl import JsonlTracker, read_metrics
from cohort.tracking.rollouts import RolloutTracker, steps
from tests import records


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wandb", r"'wandb' is not supported; use console, jsonl or tensorboard"),
        ("swanlab", "use console, jsonl or tensorboard"),
        ("mlflow", "use console, jsonl or tensorboard"),
        ("tensorbord", "did you mean 'tensorboard'"),
        ("consol", "did you mean 'console'"),
        ("zzz", "choose from console, file, jsonl, rollouts, tensorboard"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(UserError, match=message) as caught:
        check_names(["console", name])
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("trainer.logger: ")


def test_an_absent_package_names_its_extra(tmp_path, monkeypatch):
    known = importlib.util.find_spec
    monkeypatch.setattr(base, "find_spec", lambda name: None if name == "tensorboard" else known(name))
    with pytest.raises(UserError, match=r'pip install "cohort-rl\[tensorboard\]"'):
        build_trackers(["tensorboard"], Run(folder=tmp_path, total_steps=1))


def test_every_run_has_its_numbers_and_samples(tmp_path):
    trackers = build_trackers([], Run(folder=tmp_path, total_steps=1))
    assert [type(t) for t in trackers.trackers] == [JsonlTracker, RolloutTracker]
    twice = build_trackers(["jsonl", "file", "rollouts"], Run(folder=tmp_path, total_steps=1))
    assert [type(t) for t in twice.trackers] == [JsonlTracker, RolloutTracker]


def test_a_run_folder(tmp_path):
    run = Run(folder=tmp_path, total_steps=2, rollout_folder=tmp_path / "dump", validation_folder=tmp_path / "val")
    trackers = build_trackers(["tensorboard"], run)
    evaluation = records.evaluation(4, 2, skill=0.5)
    trackers.validation(0, evaluation)
    trackers.log(0, evaluation.metrics)
    for step in (1, 2):
        record = records.record(step, records.groups(2, 2, skill=0.5, step=step))
        trackers.step(record)
        trackers.log(step, read(record.metrics))
    trackers.note("all is well")
    trackers.close()
    trackers.close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert steps(tmp_path / "rollouts") == [1, 2]
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["1.jsonl", "2.jsonl"]
    assert [p.name for p in (tmp_path / "val").iterdir()] == ["0.jsonl"]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_tensorboard_holds_every_scalar(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = build_trackers(["tensorboard"], Run(folder=tmp_path, total_steps=2))
    trackers.log(1, {"critic/score/mean": 0.25, "actor/lr": 1e-6})
    trackers.log(2, {"critic/score/mean": 0.5, "actor/lr": 1e-6})
    trackers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["actor/lr", "critic/score/mean"]
    assert [(e.step, e.value) for e in events.Scalars("critic/score/mean")] == [(1, 0.25), (2, 0.5)]


def test_the_console_that_is_given_is_used(tmp_path):
    console = Console(total_steps=3)
    trackers = build_trackers(["console"], Run(folder=tmp_path, total_steps=3, console=console))
    assert trackers.trackers[0] is console


def test_a_back_end_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "TRACKERS", dict(base.TRACKERS))

    @dataclass
    class Best:
        """Remembers the best score: all that a tracker needs is log() and close()."""

        score: float = 0.0

        def log(self, step, metrics):
            self.score = max(self.score, metrics.get("critic/score/mean", 0.0))

        def close(self): ...

    best = Best()
    register_tracker("best", lambda run: best)
    trackers = build_trackers(["best"], Run(folder=tmp_path, total_steps=3))
    for step, score in enumerate((0.1, 0.9, 0.3), 1):
        trackers.step(records.record(step, records.groups(1, 2, skill=0.5)))
        trackers.log(step, {"critic/score/mean": score})
    trackers.note("not for it")
    assert best.score == 0.9


@dataclass
class Closes:
    order: list = field(default_factory=list)
    fails: bool = False

    def log(self, step, metrics): ...

    def close(self):
        self.order.append(self)
        if self.fails:
            raise OSError("disk full")


def test_one_that_fails_to_close_keeps_no_other_open():
    first, second, third = Closes(), Closes(fails=True), Closes()
    with pytest.raises(OSError, match="disk full"):
        Trackers([first, second, third]).close()
    assert first.order
    assert third.order


# --- curves


def log_run(folder: Path, count: int, **numbers):
    tracker = JsonlTracker(folder / "metrics.jsonl")
    tracker.log(0, records.evaluation(10, 2, skill=0.4, greedy=0.5).metrics)
    for step in range(1, count + 1):
        tracker.log(step, {"critic/score/mean": step / count, "actor/grad_norm": float("nan"), **numbers})
    tracker.close()


@pytest.mark.parametrize("count", [0, 1, 30])
def test_curves_of_any_length(tmp_path, count):
    log_run(tmp_path, count)
    path = draw_curves(tmp_path)
    assert path == tmp_path / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_numbers_no_picture(tmp_path):
    JsonlTracker(tmp_path / "metrics.jsonl").close()
    assert draw_curves(tmp_path) is None


def test_drawing_leaves_the_plotting_of_a_notebook_alone(tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    log_run(tmp_path, 3)
    draw_curves(tmp_path)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_panels_read_what_the_run_logs():
    from cohort.tracking.curves import PANELS

    row = {
        "step": 1.0,
        **read(records.metrics(records.groups(2, 2, skill=0.5))),
        **records.evaluation(4, 2, skill=0.5, greedy=0.7).metrics,
        **dict.fromkeys(("actor/entropy", "actor/grad_norm", "actor/kl_loss", "training/rollout_probs_diff_mean"), 1.0),
    }
    drawn = {panel.title: panel.series([row]) for panel in PANELS}
    assert all(drawn.values()), drawn
    sampled, greedy = drawn["Validation"]
    assert (sampled.label, greedy.label) == ("sampled", "greedy")
    for line in drawn["Validation"]:
        assert line.low[0] <= line.values[0] <= line.high[0]


def test_moving_average():
    assert smoothed([1.0, 2.0, 3.0, float("nan")], 2) == [1.0, 1.5, 2.5, 3.0]
