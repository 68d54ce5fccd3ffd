"""The training step, in one process and over two Ray replicas: the same tests, the same numbers."""

import copy
import inspect
from functools import partial

import pytest
import torch

from cohort.algorithms.gae import gae
from cohort.errors import UserError
from cohort.metrics import read
from cohort.models.value import load_value_model
from cohort.trainer.advantage import Advantage
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.kl import KLController
from cohort.trainer.screen import Screen
from cohort.trainer.trainer import Trainer
from cohort.types import Score
from tests.rig import build_parts, build_trainer
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def cluster():
    from cohort.distributed.placement import local_cluster

    with local_cluster(2):
        yield


@pytest.fixture(params=["local", "ray"])
def make(request):
    """``make(**settings of build_parts, **settings of build_trainer)`` -> Trainer."""
    opened = []

    def build(*, of_parts=None, **of_trainer) -> Trainer:
        settings = dict(of_parts or {})
        if request.param == "local":
            trainer = build_trainer(build_parts(**settings), **of_trainer)
        else:
            from cohort.distributed.critic import RemoteCritic
            from cohort.distributed.workers import Parts, RemotePolicy, RemoteReference, Replicas

            request.getfixturevalue("cluster")
            replicas = Replicas(partial(build_parts, **settings), replicas=2)
            opened.append(replicas)
            reference = RemoteReference(replicas) if settings.get("reference") else None
            critic = RemoteCritic(replicas) if settings.get("critic") else None
            parts = Parts(actor=RemotePolicy(replicas), reference=reference, critic=critic)
            trainer = build_trainer(
                parts, sampler_model=tiny_model(dtype=settings.get("dtype", torch.float32)), **of_trainer
            )
        opened.append(trainer)
        return trainer

    yield build
    for thing in reversed(opened):
        thing.close()


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.actor.weights()}


def test_a_step_collects_learns_and_publishes(make):
    trainer = make()
    before = weights(trainer)
    record = trainer.step()
    metrics = read(record.metrics)
    assert [len(group.rollouts) for group in record.groups] == [4, 4, 4, 4]
    assert trainer.steps == 1 and trainer.position == 4
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(trainer).items())
    assert metrics["actor/grad_norm"] > 0
    assert metrics["training/rollout_probs_diff_max"] < 1e-4
    assert metrics["training/groups"] == 4
    second = trainer.step()  # the sampler has the new weights, and says so on every token
    versions = {v for g in second.groups for r in g.rollouts for v in r.policy_versions}
    assert versions == {1}
    assert read(second.metrics)["training/rollout_probs_diff_max"] < 1e-4


def test_one_update_has_ratio_one_exactly(make):
    trainer = make(minibatch=4)
    record = trainer.step()
    metrics = read(record.metrics)
    assert record.experience.old_log_probs is None
    assert metrics["actor/pg_clipfrac"] == metrics["actor/ppo_kl"] == metrics["actor/pg_clipfrac_lower"] == 0
    assert "timing_s/old_log_prob" not in metrics


def test_several_updates_start_within_rounding_of_ratio_one(make):
    trainer = make(minibatch=2, of_parts={"lr": 1e-12})
    record = trainer.step()
    assert record.experience.old_log_probs is not None
    assert abs(read(record.metrics)["actor/ppo_kl"]) < 1e-5
    assert read(record.metrics)["training/updates"] == 2


def test_no_signal_no_change(make):
    trainer = make(reward=lambda rollout: 1.0)
    before = weights(trainer)
    metrics = read(trainer.step().metrics)
    assert metrics["training/groups_with_signal"] == 0
    assert metrics["training/groups_all_right"] + metrics["training/groups_all_truncated"] == 4
    for name, tensor in weights(trainer).items():
        assert torch.equal(before[name], tensor), name


def test_kl_in_the_loss_and_in_the_reward(make):
    trainer = make(
        of_parts={"reference": True, "kl_coef": 0.1}, kl_reward=KLController(coef=0.5, kind="k1", target=0.1)
    )
    record = trainer.step()
    metrics = read(record.metrics)
    assert metrics["actor/kl_loss"] > 0
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    assert trainer.kl_reward is not None and trainer.kl_reward.coef != 0.5
    scores = sum(r.score.value for g in record.groups for r in g.rollouts)
    kl = (record.log_probs - record.experience.ref_log_probs) * record.experience.batch.mask
    torch.testing.assert_close(record.rewards.sum(), torch.tensor(scores) - 0.5 * kl.sum(), rtol=1e-4, atol=1e-4)


def test_an_unscorable_rollout_leaves_its_group(make):
    def reward(rollout):
        return Score(value=None, reason="no answer key") if rollout.sample == 0 else float(rollout.sample)

    trainer = make(reward=reward, screen=Screen(max_unscorable_rate=0.25))
    record = trainer.step()
    assert [len(group.rollouts) for group in record.groups] == [3, 3, 3, 3]
    assert read(record.metrics)["training/unscorable"] == 4
    assert read(record.metrics)["critic/score/mean"] == 2.0  # 1, 2, 3: not dragged down by a 0
    sums = (record.experience.advantages[:, 0]).view(4, 3).sum(1)
    torch.testing.assert_close(sums, torch.zeros(4), atol=1e-5, rtol=0)


def test_too_many_unscorable_rollouts_stop_the_run_before_the_update(make):
    trainer = make(reward=lambda rollout: Score(value=None, reason="Traceback: KeyError: 'answer'"))
    before = weights(trainer)
    with pytest.raises(UserError, match="(?s)16 of 16.*KeyError: 'answer'"):
        trainer.step()
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(trainer).items())


def test_a_critic_learns_beside_the_actor(make):
    trainer = make(of_parts={"critic": True}, minibatch=2)
    before, critic = weights(trainer), copy.deepcopy(trainer.critic.state()["parameters"])
    record = trainer.step()
    metrics, experience = read(record.metrics), record.experience
    assert experience.values is not None
    assert experience.returns is not None
    mask = experience.batch.mask
    torch.testing.assert_close(experience.advantages, (experience.returns - experience.values) * mask)
    assert metrics["critic/vf_loss"] > 0
    assert metrics["critic/skipped_updates"] == metrics["actor/skipped_updates"] == 0
    assert metrics["timing_s/values"] > 0
    assert metrics["timing_s/update_critic"] > 0
    spread = ((experience.returns - experience.values)[mask > 0].var(), experience.returns[mask > 0].var())
    assert metrics["critic/vf_explained_var"] == pytest.approx(float(1 - spread[0] / spread[1]), rel=1e-2)
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(trainer).items())
    assert any(not torch.equal(critic[name], tensor) for name, tensor in trainer.critic.state()["parameters"].items())


def test_the_actor_waits_while_the_critic_warms_up(make):
    trainer = make(of_parts={"critic": True}, critic_warmup=1)
    before = weights(trainer)
    record = trainer.step()
    metrics = read(record.metrics)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(trainer).items())
    assert metrics["critic/grad_norm"] > 0
    assert not any(name.startswith("actor/") for name in metrics)
    assert 0 < metrics["training/rollout_probs_diff_max"] < 1e-4  # measured, although no update passed
    assert read(trainer.step().metrics)["actor/grad_norm"] > 0
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(trainer).items())


def test_a_run_with_a_critic_resumes_exactly(make, tmp_path):
    trainer = make(of_parts={"critic": True}, minibatch=2)
    trainer.step()
    folder = Checkpoints(tmp_path).save(trainer)
    trainer.step()
    straight = [copy.deepcopy(part.state()["parameters"]) for part in (trainer.actor, trainer.critic)]
    Checkpoints(tmp_path).restore(trainer, folder)
    trainer.step()
    for expected, part in zip(straight, (trainer.actor, trainer.critic), strict=True):
        for name, tensor in part.state()["parameters"].items():
            assert torch.equal(tensor, expected[name]), name
    assert load_value_model(folder / "critic" / "hf", device="cpu").config.num_labels == 1


@pytest.mark.slow
def test_ppo_learns_with_one_answer_per_prompt():
    """GAE over a critic from three steps of warm-up, two epochs of two minibatches: the score rises by a tenth."""
    trainer = build_trainer(
        build_parts(critic=True, lr=3e-3),
        n=1,
        prompts=16,
        minibatch=8,
        epochs=2,
        tokens=8,
        critic_warmup=3,
        advantage=Advantage(function=partial(gae, lam=0.95), reads=("values",), group_baseline=False),
    )
    seen = [read(trainer.step().metrics) for _ in range(25)]
    trainer.close()
    scores = [metrics["critic/score/mean"] for metrics in seen]
    assert sum(scores[-6:]) / 6 > sum(scores[:6]) / 6 + 0.08
    assert seen[-1]["critic/vf_loss"] < 0.1 * seen[0]["critic/vf_loss"]
    assert seen[-1]["critic/vf_explained_var"] > seen[0]["critic/vf_explained_var"]


def test_a_checkpoint_without_a_critic_is_not_gone_on_from_with_one(tmp_path):
    folder = Checkpoints(tmp_path).save(build_trainer(build_parts()))
    with pytest.raises(UserError, match="has no critic"):
        Checkpoints(tmp_path).restore(build_trainer(build_parts(critic=True)), folder)


def test_two_replicas_of_a_critic_take_the_steps_of_one_process(cluster):
    """Five SGD steps on fixed rollouts, the last with fewer rows than replicas: weights equal to 1e-6."""
    from cohort.distributed.critic import RemoteCritic
    from cohort.distributed.workers import Replicas
    from tests.batches import UNEVEN, make_batch, make_experience

    settings = {"optimizer": "SGD", "lr": 0.05, "critic": True}
    local = build_parts(**settings).critic
    replicas = Replicas(partial(build_parts, **settings), replicas=2)
    remote = RemoteCritic(replicas)
    for step in range(5):
        batch = make_batch(UNEVEN if step < 4 else [(5, [8])], seed=step)
        torch.testing.assert_close(local.values(batch), remote.values(batch), atol=1e-5, rtol=1e-5)
        experience = make_experience(batch, seed=step)
        here, there = local.update(experience), remote.update(experience)
        local.advance(), remote.advance()
        a, b = read(here.metrics), read(there.metrics)
        assert a.keys() == b.keys()
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name
    for name, tensor in local.state()["parameters"].items():
        torch.testing.assert_close(tensor, remote.state()["parameters"][name], atol=1e-6, rtol=0)
    bad = make_experience(make_batch(UNEVEN))
    bad.returns[0, 0] = float("nan")
    update = remote.update(bad)
    assert read(update.metrics)["critic/skipped_updates"] == 1
    assert update.warning.startswith("critic update skipped: ")
    replicas.close()


def test_two_replicas_take_the_steps_of_one_process(cluster):
    """Five SGD steps on fixed rollouts: weights equal to 1e-6."""
    from cohort.distributed.workers import RemotePolicy, Replicas
    from tests.batches import UNEVEN, make_batch, make_experience

    settings = {"optimizer": "SGD", "lr": 0.05, "kl_coef": 0.1}
    local = build_parts(**settings).actor
    replicas = Replicas(partial(build_parts, **settings), replicas=2)
    remote = RemotePolicy(replicas)
    start = {name: tensor.detach().clone() for name, tensor in local.weights()}
    for step in range(5):
        experience = make_experience(make_batch(UNEVEN, seed=step), seed=step)
        here, there = local.update(experience), remote.update(experience)
        local.advance(), remote.advance()
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


def test_a_replica_without_rows_keeps_in_step(cluster):
    """One row, two replicas: the idle one takes the same step."""
    from cohort.distributed.workers import RemotePolicy, Replicas
    from tests.batches import make_batch, make_experience

    settings = {"optimizer": "SGD", "lr": 0.05}
    replicas = Replicas(partial(build_parts, **settings), replicas=2)
    remote, local = RemotePolicy(replicas), build_parts(**settings).actor
    experience = make_experience(make_batch([(5, [8])]))
    local.update(experience)
    remote.update(experience)
    for (name, ours), (_, theirs) in zip(local.weights(), remote.weights(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs, atol=1e-6, rtol=0, msg=name)
    replicas.close()


def test_four_calls_from_the_step_to_the_loss(monkeypatch):
    """DESIGN, principle 2: Trainer.step -> learn -> update -> objective -> loss."""
    trainer = build_trainer(build_parts())
    hops = []
    inner = trainer.actor.objective.policy_loss

    def spy(*args, **kwargs):
        names = [frame.function for frame in inspect.stack()]
        hops.append(names[1 : names.index("step") + 1])
        return inner(*args, **kwargs)

    object.__setattr__(trainer.actor.objective, "policy_loss", spy)
    trainer.step()
    trainer.close()
    assert hops and all(len(names) <= 4 for names in hops), hops[0]


def test_the_step_is_a_page():
    for function in (Trainer.step, Trainer.learn):
        assert len(inspect.getsource(function).splitlines()) <= 60


@pytest.fixture
def dirty_memory():
    """Every uninitialised allocation is full of NaN: what is read without having been written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_steps_are_reproducible(dirty_memory):
    first, second = (build_trainer(build_parts()) for _ in range(2))
    for _ in range(2):
        a, b = first.step(), second.step()
        assert [r.ids for g in a.groups for r in g.rollouts] == [r.ids for g in b.groups for r in g.rollouts]
        assert read(a.metrics)["training/rollout_probs_diff_max"] < 1e-4
    for (name, x), (_, y) in zip(first.actor.weights(), second.actor.weights(), strict=True):
        assert torch.equal(x, y), name
    first.close()
    second.close()
