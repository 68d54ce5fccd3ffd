"""Validation metrics against golden numbers and a slow, literal transcription of the definition."""

import math
from collections import defaultdict

import numpy as np
import pytest

from cohort.trainer.evaluate import Result, confidence_interval, validation_metrics, wilson


def results(*prompts, source="d", **extra):
    """Results of prompts given as (values, predictions)."""
    return [
        Result(data_source=source, prompt=p, sample=s, score=value, parts={"pred": pred}, **extra)
        for p, (values, preds) in enumerate(prompts)
        for s, (value, pred) in enumerate(zip(values, preds, strict=True))
    ]


def bootstrap(rows, size, reduce):
    """1000 resamples with numpy's global generator, as the reference implementation words it."""
    np.random.seed(42)
    drawn = [reduce([rows[i] for i in np.random.choice(len(rows), size=size, replace=True)]) for _ in range(1000)]
    return float(np.mean(drawn)), float(np.std(drawn))


def majority(rows):
    votes = defaultdict(list)
    for value, pred in rows:
        votes[pred].append(value)
    return votes[max(votes, key=lambda pred: len(votes[pred]))][0]


def test_golden_numbers():
    metrics = validation_metrics(results(([1, 0, 1, 0], "abac"), ([1, 0], "zz")))
    # the second prompt has two answers: it has no mean@4, and it counts in best@2
    expected = {
        "mean@4": 0.5,
        "std@4": 0.5,
        "best@2/mean": 0.77,
        "worst@2/mean": 0.246,
        "maj@2/mean": 0.513,
        "best@4/mean": 0.94,
        "worst@4/mean": 0.056,
        "maj@4/mean": 0.598,
    }
    found = {name.split("/reward/")[1]: value for name, value in metrics.items() if "/reward/" in name}
    # golden numbers of metrics that both prompts share are means over the two
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=5e-4), name


def test_bootstrap_is_the_literal_one():
    rng = np.random.RandomState(0)
    values = rng.rand(7).round(2).tolist()
    preds = rng.choice(list("abc"), 7).tolist()
    metrics = validation_metrics(results((values, preds)))
    rows = list(zip(values, preds, strict=True))
    for n in (2, 4, 7):
        section = "val-core" if n == 7 else "val-aux"
        for kind, reduce, where in (
            ("best", lambda r: max(v for v, _ in r), section),
            ("worst", lambda r: min(v for v, _ in r), "val-aux"),
            ("maj", majority, section),
        ):
            mean, std = bootstrap(rows, n, reduce)
            assert metrics[f"{where}/d/reward/{kind}@{n}/mean"] == pytest.approx(mean, abs=1e-12)
            assert metrics[f"{where}/d/reward/{kind}@{n}/std"] == pytest.approx(std, abs=1e-12)


def test_global_random_state_is_left_alone():
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    validation_metrics(results(([1, 0, 1], "abc")))
    confidence_interval([[0.3, 0.7], [0.1, 0.2]])
    assert (np.random.get_state()[1] == before).all()


def test_names():
    rows = [
        Result(data_source="m", prompt=p, score=1.0, parts={"acc": 1.0, "note": "x", "pred": "4"}, turns=2 + p)
        for p in range(3)
    ]
    metrics = validation_metrics(rows)
    assert metrics["val-core/m/acc/mean@1"] == 1
    assert metrics["val-aux/m/reward/mean@1"] == 1  # acc is the core variable where there is one
    assert not any("/note/" in name or "/pred/" in name for name in metrics)  # strings are not variables
    assert [metrics[f"val-aux/num_turns/{k}"] for k in ("min", "max", "mean")] == [2, 4, 3]
    assert not any("std@" in name or "best@" in name for name in metrics)  # with one answer there is no spread


def test_core_is_the_largest_n():
    names = set(validation_metrics(results(([1, 0, 1, 0], "abac"))))
    core = {name for name in names if name.startswith("val-core/")}
    assert core == {"val-core/d/reward/mean@4"} | {
        f"val-core/d/reward/{kind}@4/{stat}" for kind in ("best", "maj") for stat in ("mean", "std")
    }
    assert "val-aux/d/reward/worst@4/mean" in names
    assert "val-aux/d/reward/best@2/mean" in names


def test_sources_are_kept_apart():
    metrics = validation_metrics(results(([1], "a"), source="a") + results(([0], "b"), source="b"))
    assert (metrics["val-core/a/reward/mean@1"], metrics["val-core/b/reward/mean@1"]) == (1, 0)


def test_unscorable_is_counted_and_never_zero():
    rows = [
        *results(([1, 1, 0, 0], "aabb")),
        Result(data_source="d", prompt=1, score=None, reason="timeout"),
        Result(data_source="d", prompt=2, sample=0, score=1.0),
        Result(data_source="d", prompt=2, sample=1, score=None, reason="timeout"),
    ]
    metrics = validation_metrics(rows)
    assert metrics["val-aux/d/unscorable"] == 2
    assert metrics["val-core/d/reward/mean@4"] == 0.5
    assert metrics["val-aux/d/reward/mean@1"] == 1  # the prompt with one scored answer left
    only = validation_metrics([Result(data_source="d", prompt=0, score=None, reason="x")])
    assert only["val-aux/d/unscorable"] == 1
    assert not any(name.startswith("val-core") for name in only)


def test_wilson_interval():
    # Newcombe 1998, Statistics in Medicine 17, table I: 81 of 263 and 15 of 148, method 3
    assert wilson(81 / 263, 263).low == pytest.approx(0.2553, abs=5e-5)
    assert wilson(81 / 263, 263).high == pytest.approx(0.3662, abs=5e-5)
    assert wilson(15 / 148, 148).low == pytest.approx(0.0624, abs=5e-5)
    assert wilson(15 / 148, 148).high == pytest.approx(0.1605, abs=5e-5)


def test_interval_with_one_answer_per_prompt_is_wilson():
    assert confidence_interval([[1.0]] * 81 + [[0.0]] * 182) == wilson(81 / 263, 263)


def test_repeated_answers_add_no_certainty():
    once = confidence_interval([[1.0], [0.0], [1.0], [0.0], [1.0]])
    copied = confidence_interval([[1.0] * 8, [0.0] * 8, [1.0] * 8, [0.0] * 8, [1.0] * 8])
    assert (copied.mean, copied.low, copied.high) == pytest.approx((once.mean, once.low, once.high))


def test_independent_answers_narrow_the_interval():
    rng = np.random.RandomState(1)
    answers = (rng.rand(200, 8) < 0.5).astype(float)
    narrow, wide = confidence_interval(answers.tolist()), confidence_interval(answers[:, :1].tolist())
    assert narrow.high - narrow.low < 0.5 * (wide.high - wide.low)


@pytest.mark.parametrize("skill", [0.05, 0.5, 0.95])
def test_interval_covers_the_truth(skill):
    """Prompts differ in difficulty; intervals of 60 prompts x 4 answers hold the true mean 95% of the time."""
    rng = np.random.RandomState(3)
    covered = 0
    for _ in range(400):
        difficulty = rng.beta(2 * skill, 2 * (1 - skill), 60)
        interval = confidence_interval((rng.rand(60, 4) < difficulty[:, None]).astype(float).tolist())
        covered += interval.low <= skill <= interval.high
    assert 0.91 <= covered / 400 <= 0.995


def test_interval_at_the_ends_has_width():
    perfect = confidence_interval([[1.0, 1.0]] * 20)
    assert perfect.mean == perfect.high == 1
    assert perfect.low == pytest.approx(wilson(1.0, 20).low)
    assert 0.8 < perfect.low < 0.9


def test_interval_of_graded_scores_is_a_bootstrap():
    values = [[0.2, 0.4], [0.9], [0.5, 0.1, 0.3]]
    interval = confidence_interval(values)
    assert interval.mean == pytest.approx((0.3 + 0.9 + 0.3) / 3)
    assert 0.3 <= interval.low < interval.mean < interval.high <= 0.9
    assert confidence_interval(values) == interval


def test_interval_of_nothing():
    assert math.isnan(confidence_interval([]).mean)
