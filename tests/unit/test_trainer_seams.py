"""What algorithms may ask of the step: greedy answers, other groups, rejected tokens, weights, choices, a critic."""

from dataclasses import replace

import pytest
import torch

from cohort.algorithms.registry import Advantages
from cohort.algorithms.signatures import TokenLoss
from cohort.errors import UserError
from cohort.metrics import Last, read
from cohort.models.micro import Budget
from cohort.protocols import Update
from cohort.trainer.advantage import Advantage
from cohort.trainer.evidence import baseline_scores, reward_parts
from cohort.trainer.selection import Selection
from cohort.types import Experience, Score
from tests.rig import build_parts, build_trainer

SEEN: dict[str, torch.Tensor] = {}
"""What the estimator was given last."""


def constant(rewards, mask, group, **needs):
    """Every token is worth 1."""
    SEEN.clear()
    SEEN.update(group=group, rewards=rewards, **needs)
    return Advantages(mask.clone(), mask.clone())


def trainer_of(estimator: Advantage, **options):
    return build_trainer(build_parts(), advantage=estimator, **options)


def gradient_of(trainer, groups, **changes) -> list[torch.Tensor]:
    """The weights after one learning step on fixed groups, flattened."""
    from cohort.trainer.measure import Stopwatch

    for name, value in changes.items():
        setattr(trainer, name, value)
    trainer.learn(groups, Stopwatch())
    return [tensor.detach().clone() for _, tensor in trainer.actor.weights()]


def test_a_greedy_answer_stands_beside_its_group_and_does_not_train():
    trainer = trainer_of(Advantage(function=constant, reads=("baseline",), group_baseline=False), n=3)
    record = trainer.step()
    assert [len(group.rollouts) for group in record.groups] == [3] * 4
    greedy = [group.baseline for group in record.collected]
    assert all(rollout is not None and rollout.score is not None for rollout in greedy)
    expected = [rollout.score.value for rollout in greedy for _ in range(3)]
    assert SEEN["baseline"].tolist() == pytest.approx(expected)
    assert record.experience.batch.rows == 12
    trainer.close()


def test_greedy_answers_are_greedy():
    trainer = trainer_of(Advantage(function=constant, reads=("baseline",), group_baseline=False), n=2)
    first = trainer.collect(trainer.prompts.batch(0, 4))
    trainer.plan = replace(trainer.plan, seed=99)  # other draws
    second = trainer.collect(trainer.prompts.batch(0, 4))
    texts = [[group.baseline.response_ids for group in groups if group.baseline] for groups in (first, second)]
    assert texts[0] == texts[1]
    assert [g.rollouts[0].response_ids for g in first] != [g.rollouts[0].response_ids for g in second]
    trainer.close()


def test_a_group_whose_greedy_answer_was_not_scored_does_not_train():
    def reward(rollout):
        failed = rollout.sample == 2 and rollout.prompt.row == 1  # n = 2: sample 2 is the greedy one
        return Score(value=None, reason="no") if failed else 1.0

    trainer = trainer_of(Advantage(function=constant, reads=("baseline",), group_baseline=False), n=2, reward=reward)
    record = trainer.step()
    assert [group.prompt.row for group in record.groups] == [0, 2, 3]
    trainer.close()


def test_a_group_without_a_greedy_answer_is_named():
    trainer = build_trainer(build_parts())
    groups = trainer.collect(trainer.prompts.batch(0, 1))
    with pytest.raises(ValueError, match="row 0 has no scored greedy answer"):
        baseline_scores(groups)
    trainer.close()


def test_parts_of_the_reward_reach_the_estimator_and_a_missing_one_is_nan():
    def reward(rollout):
        parts = {"right": 1.0} if rollout.sample else {"right": 0.0, "short": 2.0}
        return Score(value=1.0, parts=parts)

    trainer = trainer_of(Advantage(function=constant, reads=("parts",), parts=("short", "right")), n=2, reward=reward)
    trainer.step()
    parts = SEEN["parts"]
    assert parts[0].tolist() == [2.0, 0.0] and parts[1, 0].isnan() and parts[1, 1] == 1.0
    with pytest.raises(ValueError, match="no part 'long'; it has: right, short"):
        reward_parts(trainer.collect(trainer.prompts.batch(0, 1)), ["long"])
    trainer.close()


def test_answers_may_be_compared_over_another_key_than_the_prompt():
    trainer = trainer_of(Advantage(function=constant, group_by="level"), n=2)
    levels = ["easy", "hard", "easy", "easy", "hard", "hard"]
    trainer.prompts.prompts = [
        replace(p, columns={"level": level}) for p, level in zip(trainer.prompts.prompts, levels, strict=True)
    ]
    record = trainer.step()
    assert SEEN["group"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert record.experience.batch.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    trainer.advantage = replace(trainer.advantage, group_by="size")
    with pytest.raises(UserError, match="algorithm.group_by=size: data row 4 has no such column; it has: level"):
        trainer.step()
    trainer.close()


def test_groups_of_one_are_counted():
    def reward(rollout):
        return Score(value=None, reason="no") if rollout.sample and not rollout.prompt.row else 1.0

    from cohort.trainer.screen import Screen

    trainer = build_trainer(build_parts(), reward=reward, n=2, screen=Screen(max_unscorable_rate=0.5))
    assert read(trainer.step().metrics)["training/groups_of_one"] == 1
    trainer.close()


def test_statistics_are_computed_when_somebody_reads_them_and_only_then():
    trainer = trainer_of(Advantage(function=constant, reads=("old_log_probs", "sum_pi_squared")))
    record = trainer.step()
    mask = record.experience.batch.mask > 0
    assert (SEEN["sum_pi_squared"][mask] > 0).all()
    torch.testing.assert_close(SEEN["old_log_probs"], record.log_probs)
    assert record.experience.old_log_probs is None  # one update: the ratio is exactly 1 whatever was computed
    trainer.close()
    trainer = trainer_of(Advantage(function=constant, reads=("values",)))
    with pytest.raises(ValueError, match="the advantage needs 'values', which this run does not compute"):
        trainer.step()
    trainer.close()


def test_cut_answers_stay_in_their_groups_statistics_and_do_not_train():
    trainer = build_trainer(build_parts(), tokens=6, n=4)
    groups = trainer.collect(trainer.prompts.batch(0, 4))
    cut = torch.tensor([r.finish_reason == "length" for g in groups for r in g.rollouts])
    assert cut.any()
    from cohort.trainer.measure import Stopwatch

    trainer.plan = replace(trainer.plan, overlong_filter=True)
    record = trainer.learn(groups, Stopwatch())
    trains = record.experience.mask.sum(1) > 0
    assert (trains == ~cut).all()
    assert record.experience.advantages[cut].abs().sum() > 0
    trainer.close()


def test_what_was_not_kept_is_as_if_it_were_not_there():
    """Rejecting rows gives the gradient of a batch without them; weight 0 keeps them in the denominator."""
    from tests.batches import UNEVEN, make_batch, make_experience

    experience = make_experience(make_batch(UNEVEN, seed=0), seed=0)
    rows = torch.arange(experience.batch.rows) % 2 == 0
    keep = rows[:, None].expand_as(experience.batch.mask).float()

    def update(minibatch: Experience) -> dict[str, float]:
        actor = build_parts(budget=Budget(max_tokens=64)).actor
        return read(actor.update(minibatch).metrics)

    names = ("actor/loss", "actor/grad_norm", "actor/entropy", "actor/ppo_kl")
    without = update(experience.select(rows.nonzero()[:, 0]))
    rejected = update(replace(experience, keep=keep))
    assert [rejected[name] for name in names] == pytest.approx([without[name] for name in names], rel=1e-4)
    weighed = update(replace(experience, weights=keep))
    share = float((keep * experience.batch.mask).sum() / experience.batch.mask.sum())
    assert weighed["actor/loss"] == pytest.approx(share * without["actor/loss"], rel=1e-4)
    whole, doubled = update(experience), update(replace(experience, weights=2 * torch.ones_like(keep)))
    assert doubled["actor/grad_norm"] == pytest.approx(2 * whole["actor/grad_norm"], rel=1e-4)


CALLS: list[tuple[torch.Tensor, ...]] = []
"""What the loss's choice was given, call by call."""


def first_half(log_probs, old_log_probs, advantages, mask, uniforms):
    CALLS.append((log_probs.clone(), old_log_probs.clone(), uniforms.clone()))
    return (uniforms < 0.5).float() * mask


def selected_loss(log_probs, old_log_probs, advantages, mask, *, selected):
    return TokenLoss(loss=-advantages * log_probs * selected, diagnostics={})


def selecting_trainer(**options):
    parts = build_parts()
    parts.actor.objective = replace(parts.actor.objective, policy_loss=selected_loss, needs=("selected",))
    CALLS.clear()
    return build_trainer(parts, selection=Selection(select=first_half, seed=5), minibatch=2, **options)


def test_a_loss_chooses_over_the_whole_minibatch_with_current_log_probs():
    trainer = selecting_trainer()
    record = trainer.step()
    (now, old, chance), (later, old_later, other_chance) = CALLS
    assert now.shape[0] == 8 and chance.shape == now.shape
    torch.testing.assert_close(now, old)  # the first update: what was computed before it is current
    assert (later - old_later).abs().max() > 1e-6  # the weights have moved since
    assert not torch.equal(chance, other_chance)
    assert "timing_s/select" in read(record.metrics)
    again = selecting_trainer()
    again.step()
    assert torch.equal(CALLS[1][2], other_chance)  # the chance is named, not drawn
    trainer.close()
    again.close()


def test_only_the_most_uncertain_tokens_may_train():
    def above_median(entropy, mask):
        return (entropy >= entropy[mask > 0].median()).float() * mask

    trainer = build_trainer(build_parts(), selection=Selection(token_mask=above_median))
    groups = trainer.collect(trainer.prompts.batch(0, 4))
    plain = build_trainer(build_parts())
    with_all = gradient_of(plain, groups)
    with_half = gradient_of(trainer, groups)
    assert any(not torch.equal(x, y) for x, y in zip(with_all, with_half, strict=True))
    trainer.close()
    plain.close()


class CountingCritic:
    """A critic that values everything at 0.5 and counts its updates."""

    def __init__(self) -> None:
        self.updates = 0
        self.advanced = 0

    def values(self, batch):
        return 0.5 * batch.mask

    def update(self, minibatch):
        assert minibatch.values is not None and minibatch.returns is not None
        self.updates += 1
        return Update(metrics={"critic/vf_loss": Last(0.0)}, stats=None, warning="odd")  # type: ignore[arg-type]

    def advance(self):
        self.advanced += 1


def test_the_critic_warms_up_alone():
    critic = CountingCritic()
    trainer = trainer_of(Advantage(function=constant, reads=("values",)), critic=critic)
    trainer.plan = replace(trainer.plan, critic_warmup=1, minibatch=2)
    before = [tensor.detach().clone() for _, tensor in trainer.actor.weights()]
    record = trainer.step()
    assert all(torch.equal(x, y) for x, (_, y) in zip(before, trainer.actor.weights(), strict=True))
    assert (critic.updates, critic.advanced) == (2, 1)
    assert list(record.warnings) == ["odd", "odd"]
    assert read(record.metrics)["training/rollout_probs_diff_max"] < 1e-4  # the trainer's log-probs are there
    record = trainer.step()
    assert any(not torch.equal(x, y) for x, (_, y) in zip(before, trainer.actor.weights(), strict=True))
    assert critic.updates == 4 and record.experience.returns is not None
    trainer.close()


class Bypass:
    """The sampler's log-probs stand in for the old ones."""

    needs = frozenset()
    bypass = True

    def __call__(self, evidence):
        return evidence, {}


def test_bypass_skips_the_pass_that_it_replaces():
    trainer = build_trainer(build_parts(), minibatch=2, correction=Bypass())
    record = trainer.step()
    metrics = read(record.metrics)
    assert "timing_s/old_log_prob" not in metrics
    assert record.experience.old_log_probs is record.experience.batch.rollout_log_probs
    assert 0 < metrics["training/rollout_probs_diff_max"] < 0.1  # of the trainer's own log-probs, not of a copy
    trainer.close()
