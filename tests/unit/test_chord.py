"""CHORD in the training step: when demonstrations join an update, and what it then does."""

import json
from functools import partial

import pytest
import torch

from cohort.algorithms.schedules import chord_mu
from cohort.config.load import from_arguments
from cohort.config.rules import describe_batch
from cohort.data.demonstrations import DemonstrationLoader, build_demonstrations
from cohort.errors import UserError
from cohort.metrics import read
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.chord import Chord
from cohort.types import Demonstrations
from tests.batches import UNEVEN, make_batch, make_experience
from tests.rig import build_parts, build_trainer
from tests.tiny import byte_tokenizer, tiny_model
from tests.unit.test_trainer import cluster, make, weights

__all__ = ["cluster", "make"]  # fixtures

ROWS = [{"prompt": f"{i}+{i}=", "response": f"{2 * i} it is"} for i in range(11)]


def source() -> DemonstrationLoader:
    return DemonstrationLoader(build_demonstrations(ROWS, byte_tokenizer()), seed=1)


def chord(mu=0.5, **settings) -> Chord:
    schedule = mu if callable(mu) else lambda number: mu
    return Chord(**{"source": source(), "mu": schedule, "rows": 4, "updates": 2, **settings})


class Spy:
    """A source that keeps what was asked of it."""

    def __init__(self):
        self.inner, self.asked = source(), []

    def batch(self, position, size):
        self.asked.append((position, size))
        return self.inner.batch(position, size)


def test_updates_are_counted_over_steps():
    spy = Spy()
    mixed = chord(partial(chord_mu, warmup=2, decay=4, peak=0.8, valley=0.2), source=spy, phi=True, start=1)
    seen = [mixed(step, update) for step in (1, 2, 3, 4) for update in (0, 1)]
    assert seen[0] is None  # mu is 0: nothing is read
    assert spy.asked == [(4 * s, 4) for s in range(1, 8)]
    assert [round(d.weight, 6) for d in seen[1:]] == [0.4, 0.8, 0.712132, 0.5, 0.287868, 0.2, 0.2]
    assert all(d.phi for d in seen[1:])
    assert read(mixed.metrics(1, 0)) == {"actor/chord_mu": 0}
    assert read(mixed.metrics(2, 0)) == {"actor/chord_mu": 0.8}


def test_a_mu_of_zero_is_plain_reinforcement_learning_bit_for_bit():
    plain = build_trainer(build_parts(), minibatch=2)
    mixed = build_trainer(build_parts(), minibatch=2, chord=chord(0.0, source=Spy()))
    for _ in range(2):
        a, b = read(plain.step().metrics), read(mixed.step().metrics)
        assert b.pop("actor/chord_mu") == 0
        timeless = {k for k in a if not k.startswith(("timing", "perf"))}
        assert timeless == {k for k in b if not k.startswith(("timing", "perf"))}
        assert all(a[k] == b[k] for k in timeless)
    ours, theirs = weights(plain), weights(mixed)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert mixed.chord.source.asked == []
    plain.close(), mixed.close()


def test_a_mu_of_one_follows_the_demonstrations_alone():
    """Rollouts of another reward leave no trace: same weights, to the bit."""
    settings = {"minibatch": 2, "chord": chord(1.0)}
    rewards = (lambda r: float(r.sample), lambda r: -float(r.sample))
    trainers = [build_trainer(build_parts(), reward=reward, **settings) for reward in rewards]
    records = [trainer.step() for trainer in trainers]
    ours, theirs = (weights(trainer) for trainer in trainers)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    metrics = read(records[0].metrics)
    assert metrics["actor/loss"] == pytest.approx(metrics["actor/sft_loss"], rel=1e-6)
    assert metrics["actor/chord_mu"] == 1 and metrics["actor/grad_norm"] > 0
    for trainer in trainers:
        trainer.close()


def test_demonstrations_become_likelier(make):
    trainer = make(chord=chord(0.5, updates=1, rows=11), of_parts={"lr": 3e-3})
    nll = [read(trainer.step().metrics)["actor/sft_nll"] for _ in range(6)]
    assert nll[-1] < nll[0] - 0.3


def test_two_replicas_learn_what_one_process_learns(cluster):
    """Five SGD steps; in one of them a replica gets no demonstration, and metrics agree as well."""
    from cohort.distributed.workers import RemotePolicy, Replicas

    settings = {"optimizer": "SGD", "lr": 0.05, "kl_coef": 0.1}
    local = build_parts(**settings).actor
    replicas = Replicas(partial(build_parts, **settings), replicas=2)
    remote = RemotePolicy(replicas)
    start = {name: tensor.detach().clone() for name, tensor in local.weights()}
    for step, rows in enumerate((4, 7, 1, 2, 11)):
        experience = make_experience(make_batch(UNEVEN, seed=step), seed=step)
        shown = Demonstrations(batch=source().batch(step, rows), weight=0.6, phi=step % 2 == 1)
        here, there = (p.update(experience, demonstrations=shown) for p in (local, remote))
        a, b = read(here.metrics), read(there.metrics)
        assert a.keys() == b.keys()
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name
        torch.testing.assert_close(here.stats.log_probs, there.stats.log_probs, atol=1e-5, rtol=1e-5)
    ours, theirs = dict(local.weights()), dict(remote.weights())
    assert max(float((ours[name] - start[name]).abs().max()) for name in ours) > 1e-3
    for name in ours:
        torch.testing.assert_close(ours[name].detach(), theirs[name], atol=1e-6, rtol=0)
    replicas.close()


def test_a_resumed_run_reads_what_it_would_have_read(tmp_path):
    def fresh(spy):
        mixed = chord(partial(chord_mu, warmup=2, decay=6, peak=0.9, valley=0.1), source=spy, rows=3)
        return build_trainer(build_parts(), minibatch=2, chord=mixed)

    first, again = Spy(), Spy()
    whole, resumed = fresh(first), fresh(again)
    for _ in range(2):
        whole.step()
    folder = Checkpoints(tmp_path).save(whole)
    read_before = len(first.asked)
    Checkpoints(tmp_path).restore(resumed, folder)
    for _ in range(2):
        a, b = read(whole.step().metrics), read(resumed.step().metrics)
        assert {k: v for k, v in a.items() if not k.startswith(("timing", "perf"))} == {
            k: v for k, v in b.items() if not k.startswith(("timing", "perf"))
        }
    assert again.asked == first.asked[read_before:] != []
    ours, theirs = weights(whole), weights(resumed)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for trainer in (whole, resumed):
        trainer.close()


# --- config -------------------------------------------------------------------------------------

GIVEN = ["actor_rollout_ref.model.path=M", "data.train_files=[t.jsonl]"]
KEY = "algorithm.chord"


def load(*overrides):
    return from_arguments([*GIVEN, *overrides], config_name="chord")


def test_the_preset_is_the_papers_mixture():
    config = load(f"{KEY}.files=[e.jsonl]").config
    mixture = config.algorithm.chord
    assert mixture.enable and not mixture.phi
    assert (mixture.mu_peak, mixture.mu_valley, mixture.mu_warmup_steps, mixture.mu_decay_steps) == (0.9, 0.05, 0, 200)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n, mixture.batch_size) == (32, 8, 64)
    assert not config.actor_rollout_ref.actor.use_kl_loss and not config.algorithm.use_kl_in_reward
    said = " ".join(describe_batch(config))
    assert "learns from 64 demonstrations too; their weight mu falls from 0.9 to 0.05 over 200 updates" in said


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), f"{KEY}.files=\\[\\]: .*messages"),
        ((f"{KEY}.mu_peak=0.01",), f"{KEY}.mu_peak=0.01: it is below {KEY}.mu_valley=0.05"),
        ((f"{KEY}.mu_peak=0", f"{KEY}.mu_valley=0"), f"{KEY}.enable=False"),
        ((f"{KEY}.mu_decay_steps=0",), f"{KEY}.mu_decay_steps=0: .*never reached"),
        ((f"{KEY}.mu_peak=1.5",), "0 to 1; the nearest is 1"),
        ((f"{KEY}.mu_valley=-1",), "0 to 1; the nearest is 0"),
        ((f"{KEY}.mu_warmup_steps=-1",), "the nearest is 0"),
        ((f"{KEY}.batch_size=0",), "the nearest is 1"),
        ((f"{KEY}.max_length=0",), "the nearest is 1"),
        ((f"{KEY}.fils=[x]",), f"{KEY}.files"),
    ],
)
def test_what_cannot_work_is_refused(overrides, message):
    files = () if not overrides else (f"{KEY}.files=[e.jsonl]",)
    with pytest.raises(UserError, match=message):
        load(*files, *overrides)


def test_keys_without_effect_are_named():
    off = from_arguments([*GIVEN, f"{KEY}.mu_peak=0.5", "actor_rollout_ref.rollout.n=4"], config_name="grpo")
    assert f"no effect: {KEY}.mu_peak ({KEY}.enable=False)" in off.notes
    constant = load(f"{KEY}.files=[e.jsonl]", f"{KEY}.mu_peak=0.1", f"{KEY}.mu_valley=0.1", f"{KEY}.mu_decay_steps=9")
    assert f"no effect: {KEY}.mu_decay_steps (mu_peak and mu_valley are equal)" in constant.notes


def test_missing_and_bad_files_end_a_run_before_a_model_is_loaded(tmp_path):
    from cohort.assemble.local import assemble

    tiny_model().save_pretrained(tmp_path / "M")
    byte_tokenizer().save_pretrained(tmp_path / "M")
    (tmp_path / "bad.jsonl").write_text(json.dumps({"prompt": "x"}) + "\n")
    rows = [{"prompt": "one", "ground_truth": "1"}]
    for file, message in (
        ("nowhere.jsonl", f"{KEY}.files=.*no such file"),
        ("bad.jsonl", "bad.jsonl row 1: no column"),
    ):
        config = from_arguments(
            [f"actor_rollout_ref.model.path={tmp_path / 'M'}", "data.train_files=[t.jsonl]", "trainer.logger=[jsonl]",
             f"{KEY}.files=[{tmp_path / file}]"],
            config_name="chord",
        ).config  # fmt: skip
        with pytest.raises(UserError, match=message):
            assemble(config, rows=rows, reward=lambda solution_str: 1.0)
