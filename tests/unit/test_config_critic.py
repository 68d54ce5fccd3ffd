"""``critic.*``: what follows the actor, what does nothing without a critic, what a PPO run says of itself."""

import pytest

from cohort.config import build
from cohort.config.critic import critic_runs
from cohort.config.load import from_keywords
from cohort.config.rules import describe_batch

ARR = "actor_rollout_ref"
GAE = {"algorithm.adv_estimator": "gae", f"{ARR}.model.path": "M"}


def notes_of(**values):
    notes = []
    config = build({**GAE, f"{ARR}.rollout.n": 2, **values}, note=notes.append)
    return config, notes


def test_the_critic_follows_the_actor():
    actor = {"ppo_mini_batch_size": 32, "ppo_epochs": 4, "shuffle": True, "use_dynamic_bsz": True}
    values = {f"{ARR}.actor.{key}": value for key, value in actor.items()}
    config = build({**GAE, **values, f"{ARR}.actor.loss_agg_mode": "token-sum", "data.max_response_length": 99})
    critic = config.critic
    assert (critic.ppo_mini_batch_size, critic.ppo_epochs, critic.shuffle, critic.use_dynamic_bsz) == (
        32,
        4,
        True,
        True,
    )
    assert (critic.loss_agg_mode, critic.loss_scale_factor, critic.model.path) == ("token-sum", 99, "M")
    assert critic.optim.lr == 1e-5
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert critic.forward_max_token_len_per_gpu == critic.ppo_max_token_len_per_gpu == 32768
    assert (config.algorithm.gamma, config.algorithm.lam, config.trainer.critic_warmup) == (1.0, 1.0, 0)


def test_a_critic_runs_where_the_advantage_needs_one():
    assert critic_runs(build(GAE))
    assert critic_runs(build({**GAE, "critic.enable": True}))
    assert not critic_runs(build({**GAE, "algorithm.adv_estimator": "grpo", f"{ARR}.rollout.n": 2}))


def test_one_answer_per_prompt_is_enough_for_ppo():
    assert build({**GAE, f"{ARR}.rollout.n": 1}).actor_rollout_ref.rollout.n == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("critic.optim.lr", 1e-4), ("critic.model.path", "X"), ("critic.cliprange_value", 0.2), ("critic.ppo_epochs", 3)],
)
def test_keys_of_a_critic_that_does_not_run_do_nothing(key, value):
    _, notes = notes_of(**{"algorithm.adv_estimator": "grpo", key: value})
    assert notes == [f"no effect: {key} (algorithm.adv_estimator=grpo has no critic)"]
    assert notes_of(**{"algorithm.adv_estimator": "grpo", "critic.enable": False})[1] == []


@pytest.mark.parametrize("key", ["algorithm.gamma", "algorithm.lam", "trainer.critic_warmup"])
def test_keys_of_ppo_do_nothing_in_grpo(key):
    _, notes = notes_of(**{"algorithm.adv_estimator": "grpo", key: 1})
    assert len(notes) == 1
    assert notes[0].startswith(f"no effect: {key} (algorithm.adv_estimator=grpo ")
    assert notes_of(**{key: 1})[1] == []


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        ({"critic.optim.min_lr_ratio": 0.1}, "critic.optim.min_lr_ratio (lr_scheduler_type=constant)"),
        ({"critic.model.lora_alpha": 8}, "critic.model.lora_alpha (lora_rank=0 trains all weights)"),
        ({"critic.loss_scale_factor": 8.0}, "critic.loss_scale_factor (loss_agg_mode=token-mean)"),
        (
            {"critic.optim.lr_warmup_steps": 2, "critic.optim.lr_warmup_steps_ratio": 0.1},
            "critic.optim.lr_warmup_steps_ratio (lr_warmup_steps=2)",
        ),
        (
            {"critic.use_dynamic_bsz": True, "critic.ppo_micro_batch_size_per_gpu": 2},
            "critic.ppo_micro_batch_size_per_gpu (use_dynamic_bsz=True cuts by tokens alone)",
        ),
    ],
)
def test_keys_of_the_critic_that_do_nothing_beside_others(values, idle):
    assert notes_of(**values)[1] == [f"no effect: {idle}"]


def test_the_banner_says_how_long_the_critic_learns_alone():
    config = build({**GAE, "trainer.critic_warmup": 5})
    assert "a critic learns on the same minibatches, alone for 5 steps" in describe_batch(config)
    assert "a critic learns on the same minibatches" in describe_batch(build(GAE))


def test_a_keyword_of_python_means_the_actor_unless_it_says_critic():
    config = from_keywords(
        "grpo", {"algorithm.adv_estimator": "gae"}, model__path="M", lr=1e-4, critic__optim__lr=1e-3, lora_rank=4
    )
    assert (config.actor_rollout_ref.actor.optim.lr, config.critic.optim.lr) == (1e-4, 1e-3)
    assert (config.actor_rollout_ref.model.lora_rank, config.critic.model.lora_rank) == (4, 0)
    assert from_keywords("grpo", GAE, cliprange_value=0.2).critic.cliprange_value == 0.2


@pytest.mark.parametrize(
    ("old", "value", "key"),
    [
        ("critic.grad_clip", 0.5, "critic.optim.clip_grad"),
        ("critic.optim.warmup_style", "cosine", "critic.optim.lr_scheduler_type"),
        ("critic.ppo_micro_batch_size", 4, "critic.ppo_micro_batch_size_per_gpu"),
        ("critic.forward_micro_batch_size", 4, "critic.forward_micro_batch_size_per_gpu"),
    ],
)
def test_verls_old_names(old, value, key):
    config, notes = notes_of(**{old: value})
    found = config
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert notes == [f"renamed: {old} is read as {key}={value}"]
