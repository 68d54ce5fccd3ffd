"""metrics.jsonl, rollouts/*.parquet, JSONL dumps: what is written can be read back, and the step computed from it."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from cohort.errors import UserError
from cohort.metrics import read
from cohort.tracking.dumps import DumpTracker, dump_jsonl
from cohort.tracking.jsonl import JsonlTracker, dump_line, read_metrics
from cohort.tracking.jsontext import to_json
from cohort.tracking.rollouts import RolloutTracker, Sample, read_step, step_path, steps
from cohort.trainer.measure import Stopwatch, measure
from cohort.types import Author, FinishReason, Score
from tests import records

# --- metrics.jsonl


def test_jsonl_lines_are_there_at_once(tmp_path):
    tracker = JsonlTracker(tmp_path / "run" / "metrics.jsonl")
    tracker.log(1, {"critic/score/mean": 0.1, "training/groups": 4})
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == [
        {"step": 1, "critic/score/mean": 0.1, "training/groups": 4.0}
    ]
    tracker.close()
    tracker.close()


def test_jsonl_is_strict_json_and_loses_nothing(tmp_path):
    numbers = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1 / 3, "e": 1e-300}
    line = dump_line(3, numbers)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    parsed = json.loads(line, parse_constant=refuse)
    assert parsed["a"] is parsed["b"] is parsed["c"] is None
    assert parsed["nonfinite"] == {"a": "nan", "b": "inf", "c": "-inf"}
    (tmp_path / "m.jsonl").write_text(line + "\n")
    (row,) = read_metrics(tmp_path / "m.jsonl")
    assert math.isnan(row.pop("a"))
    assert row == {"step": 3, "b": math.inf, "c": -math.inf, "d": 1 / 3, "e": 1e-300}


def test_jsonl_resume_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = JsonlTracker(path)
    for step in range(6):
        first.log(step, {"x": step})
    first.close()
    with path.open("a") as file:
        file.write('{"step": 6, "x"')  # the process died here
    second = JsonlTracker(path, first_step=3)
    second.log(4, {"x": 40})
    second.close()
    assert [(row["step"], row["x"]) for row in read_metrics(path)] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 40)]
    assert list(tmp_path.iterdir()) == [path]


# --- rollouts/*.parquet


@pytest.fixture
def record():
    """A step of 4 groups of 3; one sample could not be scored and one group is gone."""
    collected = records.groups(4, 3, skill=0.5, step=2)
    failed = Score(value=None, reason="Traceback\nValueError: no number", parts={"acc": math.nan}, seconds=0.5)
    lost = replace(collected[1].rollouts[1], score=failed)
    cut = replace(collected[0].rollouts[0], finish_reason=FinishReason.LENGTH)
    collected[0] = replace(collected[0], rollouts=(cut, *collected[0].rollouts[1:]))
    collected[1] = replace(collected[1], rollouts=(collected[1].rollouts[0], lost, collected[1].rollouts[2]))
    kept = [
        replace(group, rollouts=tuple(r for r in group.rollouts if r.score.value is not None))
        for group in (collected[0], collected[1], collected[3])
    ]
    return records.record(2, kept, collected)


@pytest.fixture
def samples(record, tmp_path):
    tracker = RolloutTracker(tmp_path / "rollouts")
    tracker.samples(record)
    tracker.close()
    return read_step(tmp_path / "rollouts", 2)


def test_every_sample_is_there_in_order(record, samples):
    assert [(s.group, s.sample) for s in samples] == [(g, s) for g in range(4) for s in range(3)]
    rollouts = [r for group in record.collected for r in group.rollouts]
    for sample, rollout in zip(samples, rollouts, strict=True):
        assert sample.step == 2
        assert sample.row == rollout.prompt.row
        assert tuple(sample.ids) == rollout.ids
        assert sample.ids[: sample.prompt_length] == list(rollout.prompt.ids)
        assert (sample.prompt, sample.response) == (rollout.prompt.text, rollout.text)
        assert sample.ground_truth == rollout.prompt.ground_truth
        assert sample.data_source == "arithmetic"
        assert [Author(a) for a in sample.author] == list(rollout.authors)
        assert tuple(sample.policy_versions) == rollout.policy_versions
        assert sample.rollout_log_probs == pytest.approx(rollout.log_probs, rel=1e-6)
        assert sample.finish_reason == rollout.finish_reason


def test_a_sample_that_did_not_train_has_a_reason_and_no_advantage(samples):
    failed = samples[4]
    assert failed.score is None
    assert "ValueError: no number" in failed.unscorable_reason
    assert failed.reward_parts == {"acc": "nan"}
    assert failed.reward_seconds == 0.5
    assert [s.trained for s in samples] == [True] * 4 + [False] + [True] + [False] * 3 + [True] * 3
    for sample in samples:
        per_token = [sample.advantages, sample.rewards, sample.log_probs, sample.ref_log_probs, sample.entropy]
        assert all((x is None) != sample.trained for x in per_token)
        assert all(x is None or len(x) == len(sample.author) for x in per_token)
        assert sample.old_log_probs is sample.values is sample.returns is None  # the step had none


def test_tensors_land_on_their_sample(record, samples):
    trained = [s for s in samples if s.trained]
    experience = record.experience
    for b, sample in enumerate(trained):
        T = len(sample.author)
        for column, tensor in (
            ("advantages", experience.advantages),
            ("ref_log_probs", experience.ref_log_probs),
            ("log_probs", record.log_probs),
            ("entropy", record.entropy),
            ("rewards", record.rewards),
        ):
            np.testing.assert_array_equal(np.float32(getattr(sample, column)), tensor[b, :T].numpy())
        mask = [float(a == Author.MODEL) for a in sample.author]
        assert mask == experience.batch.mask[b, :T].tolist()


def test_the_step_can_be_computed_from_the_file_alone(record, samples):
    """Every scalar of data, agreement and groups, against what the trainer's own measuring says."""
    clock = Stopwatch()
    clock.seconds["step"] = 1.0
    expected = read(measure(replace(record, metrics={}), clock, epoch=0.5).metrics)
    on_mask = record.experience.batch.mask.bool()
    expected["actor/entropy"] = float(record.entropy[on_mask].mean())  # reported by the actor's update
    found = recompute(samples)
    for name, value in found.items():
        assert value == pytest.approx(expected[name], rel=1e-5, abs=1e-7, nan_ok=True), name
    needed = {
        name
        for name in expected
        if name.split("/")[0] in ("critic", "response_length", "prompt_length", "num_turns", "reward", "response")
        or name.startswith(("training/groups", "training/unscorable", "training/rollout_probs_diff"))
        or name in ("actor/entropy", "rollout_corr/kl", "rollout_corr/k3_kl")
    }
    assert needed <= set(found), needed - set(found)


def recompute(samples: list[Sample]) -> dict[str, float]:
    """The scalars of a step, by numpy, from nothing but the rows of its file."""
    trained = [s for s in samples if s.trained]

    def spread(prefix, values):
        values = np.asarray(values, float)
        return {f"{prefix}/mean": values.mean(), f"{prefix}/max": values.max(), f"{prefix}/min": values.min()}

    def tokens(column):
        written = [np.asarray(s.author) == Author.MODEL for s in trained]
        return np.concatenate([np.asarray(getattr(s, column))[m] for s, m in zip(trained, written, strict=True)])

    difference = tokens("log_probs") - tokens("rollout_log_probs")
    shift = np.abs(np.exp(tokens("log_probs")) - np.exp(tokens("rollout_log_probs")))
    found = {
        **spread("critic/score", [s.score for s in trained]),
        **spread("critic/rewards", [np.sum(s.rewards) for s in trained]),
        **spread("critic/advantages", tokens("advantages")),
        **spread("response_length", [np.sum(np.asarray(s.author) == Author.MODEL) for s in samples]),
        **spread("prompt_length", [s.prompt_length for s in samples]),
        **spread("num_turns", [s.turns for s in samples]),
        "response_length/clip_ratio": np.mean([s.finish_reason == "length" for s in samples]),
        "response/aborted_ratio": np.mean([s.finish_reason == "abort" for s in samples]),
        "actor/entropy": tokens("entropy").mean(),
        "training/unscorable": sum(s.score is None for s in samples),
        "training/rollout_probs_diff_mean": shift.mean(),
        "training/rollout_probs_diff_max": shift.max(),
        "training/rollout_probs_diff_std": shift.std(ddof=1),
        "rollout_corr/kl": -difference.mean(),
        "rollout_corr/k3_kl": (np.exp(difference) - difference - 1).mean(),
    }
    for name in ("acc", "format"):
        values = [float(s.reward_parts[name]) for s in samples if name in s.reward_parts and s.score is not None]
        found[f"reward/{name}/mean"] = float(np.mean(values))
    cohorts = [[s for s in samples if s.group == g] for g in {s.group for s in samples}]
    scores = [[s.score for s in cohort if s.score is not None] for cohort in cohorts]
    cut = [all(s.finish_reason == "length" for s in cohort) for cohort in cohorts]
    flat = [set(v) for v in scores]
    found |= {
        "training/groups": len(cohorts),
        "training/groups_with_signal": sum(len(v) > 1 for v in flat),
        "training/groups_all_unscorable": sum(not v for v in flat),
        "training/groups_all_truncated": sum(len(v) == 1 and c for v, c in zip(flat, cut, strict=True)),
        "training/groups_all_equal": 0,
        "training/groups_all_right": sum(len(v) == 1 and not c and max(v) > 0 for v, c in zip(flat, cut, strict=True)),
        "training/groups_all_wrong": sum(len(v) == 1 and not c and max(v) <= 0 for v, c in zip(flat, cut, strict=True)),
    }
    return found


def test_without_collected_every_sample_trained(tmp_path):
    RolloutTracker(tmp_path).samples(records.record(1, records.groups(2, 2, skill=0.5)))
    assert all(s.trained for s in read_step(tmp_path, 1))


def test_a_file_that_is_there_is_whole(tmp_path, record, monkeypatch):
    tracker = RolloutTracker(tmp_path)

    def dies(table, path, **settings):
        path.write_bytes(b"PAR1")
        raise OSError("No space left on device")

    monkeypatch.setattr(pq, "write_table", dies)
    with pytest.raises(OSError, match="No space left"):
        tracker.samples(record)
    assert steps(tmp_path) == []
    RolloutTracker(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_resume_drops_the_files_of_later_steps(tmp_path):
    tracker = RolloutTracker(tmp_path)
    for step in (1, 2, 3):
        tracker.samples(records.record(step, records.groups(1, 2, skill=0.5, step=step)))
    RolloutTracker(tmp_path, first_step=2)
    assert steps(tmp_path) == [1, 2]
    assert step_path(tmp_path, 2).name == "step_000002.parquet"
    with pytest.raises(UserError, match="no samples of step 3; it has steps 1 to 2"):
        read_step(tmp_path, 3)


# --- JSONL dumps


def test_dumps_in_the_form_of_verl(tmp_path, record):
    tracker = DumpTracker(training=tmp_path / "train", validation=tmp_path / "val")
    tracker.samples(record)
    tracker.validation(0, records.evaluation(3, 2, skill=0.5))
    lines = [json.loads(line) for line in (tmp_path / "train" / "2.jsonl").read_text().splitlines()]
    assert len(lines) == 12
    assert {"input", "output", "gts", "score", "step", "acc", "format", "pred"} <= set(lines[0])
    assert lines[0]["step"] == 2
    assert lines[4]["score"] is None
    assert "ValueError" in lines[4]["unscorable"]
    assert len((tmp_path / "val" / "0.jsonl").read_text().splitlines()) == 6
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["2.jsonl"]


def test_dump_returns_its_path_and_keeps_text(tmp_path):
    asked = records.prompt(0, text="Größe? 数", ground_truth={"a": [1, 2]})
    path = dump_jsonl(tmp_path / "new", 7, [records.rollout(asked, 0, Score(value=1.0), text="ja\n数")])
    text = path.read_text(encoding="utf-8")
    assert "Größe? 数" in text
    assert json.loads(text) == {"input": "Größe? 数", "output": "ja\n数", "gts": {"a": [1, 2]}, "score": 1.0, "step": 7}


def test_no_folder_no_dump(tmp_path, record):
    tracker = DumpTracker(training=None, validation=None)
    tracker.samples(record)
    tracker.validation(0, records.evaluation(1, 1, skill=1))


def test_any_value_becomes_json():
    value = {"n": np.int64(3), "a": np.array([1.5, math.nan]), "t": (1, None, True), 4: b"x", "s": {"k"}}
    assert json.loads(to_json(value)) == {
        "n": 3,
        "a": [1.5, "nan"],
        "t": [1, None, True],
        "4": "b'x'",
        "s": ["k"],
    }
