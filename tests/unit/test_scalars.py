"""Every number of a step that its samples determine, computed again from ``rollouts/*.parquet`` alone."""

import random
from dataclasses import replace

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from cohort.algorithms.correction import correct
from cohort.algorithms.correction_settings import Correction, Rule
from cohort.metrics import read
from cohort.tracking.jsonl import read_metrics
from cohort.tracking.rollouts import RolloutTracker
from cohort.tracking.samples import AUTHORS, read_outcomes, read_step
from cohort.tracking.scalars import VERDICTS, cohorts, scalars, verdict
from cohort.trainer import measure
from cohort.trainer.verdict import Verdict, judge
from cohort.types import Author, FinishReason, Group, Score
from tests import records
from tests.tiny_run import tiny_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny")


NO_FUNCTION_OF_THE_SAMPLES = {
    # the updates: losses, gradients, the weights they were taken at
    "actor/loss",
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/kl_coef",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "actor/entropy",
    "actor/grad_norm",
    "actor/lr",
    "actor/weights_changed_share",
    "actor/skipped_updates",
    "critic/vf_loss",
    "critic/vf_clipfrac",
    "critic/vpred_mean",
    "critic/grad_norm",
    "critic/lr",
    "critic/weights_changed_share",
    "critic/skipped_updates",
    "training/updates",
    # the place in the data
    "training/epoch",
    # time and memory
    "timing_s/gen",
    "timing_s/old_log_prob",
    "timing_s/ref",
    "timing_s/values",
    "timing_s/adv",
    "timing_s/update_critic",
    "timing_s/update_actor",
    "timing_s/update_weights",
    "timing_s/step",
    "timing_per_token_ms/gen",
    "timing_per_token_ms/ref",
    "timing_per_token_ms/values",
    "timing_per_token_ms/adv",
    "timing_per_token_ms/update_critic",
    "timing_per_token_ms/update_actor",
    "perf/time_per_step",
    "perf/throughput",
    "perf/cpu_memory_used_gb",
    "perf/max_memory_allocated_gb",
}
"""Everything that this run logs and that its samples do not determine. Beside these, in other runs:
``training/groups_of_one``, ``training/filtered_rollouts``, ``actor/reward_kl_penalty*``, ``rollout_corr/rollout_is_*``
and ``rollout_corr/rollout_rs_*`` need a setting as well; of dynamic sampling, ``batches`` and ``dropped_valid``."""


def test_every_scalar_of_a_step_follows_from_its_samples(run_folder):
    rows = read_metrics(run_folder / "metrics.jsonl")
    assert len(rows) == 2
    for row in rows:
        step = row.pop("step")
        found = scalars(read_step(run_folder / "rollouts", step))
        assert set(row) - set(found) <= NO_FUNCTION_OF_THE_SAMPLES, "a new number: compute it, or say that it cannot be"
        assert not set(found) & NO_FUNCTION_OF_THE_SAMPLES
        compared = set(found) & set(row)
        for name in compared:
            assert found[name] == pytest.approx(row[name], rel=1e-6, abs=1e-6), name
        assert {"critic/values/mean", "critic/vf_explained_var", "reward/acc/mean", "reward/share/mean"} <= compared
        assert {"rollout_corr/chi2_seq", "training/rollout_probs_diff_std", "timing_s/reward/max"} <= compared
        assert len(compared) >= 55
        assert row["training/unscorable"] == 1


def test_the_file_says_whatever_a_step_can_hold(tmp_path):
    """A step with dropped groups, ungraded answers, tool tokens and a sampler that disagrees."""
    collected = records.groups(6, 4, skill=0.5, step=2)
    for number, value in ((1, 1.0), (2, 0.0)):
        equal = [replace(r, score=Score(value=value, seconds=0.5)) for r in collected[number].rollouts]
        collected[number] = replace(collected[number], rollouts=tuple(equal))
    cut = [replace(r, finish_reason=FinishReason.LENGTH, score=Score(value=0.5)) for r in collected[3].rollouts]
    collected[3] = replace(collected[3], rollouts=tuple(cut))
    collected[4] = replace(collected[4], rollouts=tuple(replace(r, score=None) for r in collected[4].rollouts))
    record = replace(records.record(2, [collected[0], collected[5]]), metrics={}, collected=collected)
    apart = record.log_probs + 0.2 * torch.randn(record.log_probs.shape, generator=torch.Generator().manual_seed(0))
    record = replace(record, log_probs=apart * record.experience.batch.mask)
    clock = measure.Stopwatch()
    clock.seconds["step"] = 1.0
    logged = read(measure.measure(record, clock, epoch=0.0).metrics)
    RolloutTracker(tmp_path).samples(record)
    found = scalars(read_step(tmp_path, 2))
    left = {name for name in logged if name not in found}
    assert left <= NO_FUNCTION_OF_THE_SAMPLES
    for name in set(logged) & set(found):
        assert found[name] == pytest.approx(logged[name], rel=1e-6, abs=1e-6), name
    assert found["training/groups_all_unscorable"] == found["training/groups_all_truncated"] == 1
    assert found["dynamic_sampling/kept_share"] == pytest.approx(2 / 6)


def test_a_correction_follows_from_the_samples_and_its_settings(tmp_path):
    """``rollout_corr/rollout_is_*`` and ``rollout_rs_*``: the file has every tensor that they are made of."""
    settings = Correction(is_level="token", threshold=1.5, rules=(Rule(statistic="token_k1", lower=0.9, upper=1.2),))
    record = records.record(1, records.groups(3, 4, skill=0.5))
    batch = record.experience.batch
    apart = 0.2 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(0)) * batch.mask
    old = batch.rollout_log_probs + apart
    done = correct(old, batch.rollout_log_probs, batch.mask, settings)
    experience = replace(record.experience, old_log_probs=old, keep=done.keep, weights=done.weights)
    RolloutTracker(tmp_path).samples(replace(record, experience=experience))
    samples = read_step(tmp_path, 1)

    def padded(columns):
        return pad_sequence([torch.tensor(column) for column in columns], batch_first=True)

    mask = padded([[float(a == Author.MODEL) for a in s.author] for s in samples])
    again = correct(
        padded([s.old_log_probs for s in samples]), padded([s.rollout_log_probs for s in samples]), mask, settings
    )
    assert again.named().keys() == done.named().keys()
    for name, value in done.named().items():
        assert float(again.named()[name]) == pytest.approx(float(value), rel=1e-6, abs=1e-6), name
    assert torch.equal(padded([s.keep for s in samples]), done.keep)
    assert torch.equal(padded([s.weights for s in samples]), done.weights)
    assert 0 < float(done.named()["rollout_corr/rollout_rs_masked_fraction"]) < 1


def test_verdicts_are_those_of_the_trainer(tmp_path):
    draw = random.Random(0)
    groups = []
    for row in range(60):
        asked = records.prompt(row)
        flat = draw.choice([None, 0.0, 0.5, 1.0])
        rollouts = []
        for sample in range(draw.randrange(1, 4)):
            value = draw.choice([0.0, 1.0]) if flat is None else flat
            parts = draw.choice([{}, {"acc": 1.0}, {"acc": float("nan")}, {"acc": "yes"}, {"acc": True}, {"acc": 0}])
            score = Score(value=None if draw.random() < 0.2 else value, parts=parts)
            finish = draw.choice([FinishReason.LENGTH, FinishReason.LENGTH, FinishReason.STOP])
            rollouts.append(records.rollout(asked, sample, score, tokens=draw.randrange(0, 3), finish=finish))
        groups.append(Group(prompt=asked, rollouts=tuple(rollouts)))
    graded = [replace(r, score=replace(r.score, value=r.score.value or 0.0)) for r in groups[0].rollouts]
    record = records.record(1, [replace(groups[0], rollouts=tuple(graded))], groups)
    RolloutTracker(tmp_path).samples(record)
    outcomes = read_outcomes(tmp_path, 1)
    found = [verdict(group) for group in cohorts(outcomes).values()]
    assert found == [str(judge(group)) for group in groups]
    assert set(found) == set(VERDICTS) == {str(v) for v in Verdict}


def test_authors_are_those_of_the_types():
    assert [name.upper() for name in AUTHORS] == [author.name for author in Author]


def test_outcomes_are_the_samples_without_their_tokens(run_folder):
    assert read_outcomes(run_folder / "rollouts", 2) == [s.outcome for s in read_step(run_folder / "rollouts", 2)]
    (group,) = {s.group for s in read_step(run_folder / "rollouts", 2, group=3)}
    assert group == 3
