"""Whether a critic runs, what must hold between its keys and the others, and which of them do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.config.convert import show
from cohort.config.schema import Config
from cohort.config.tree import keys
from cohort.errors import UserError

ACTOR = "actor_rollout_ref.actor"

READ_VALUES = ("gae",)
"""Advantage estimators that need a critic."""

DISCOUNT = ("gae", "reinforce_plus_plus")
"""Advantage estimators that read algorithm.gamma."""


def critic_runs(config: Config) -> bool:
    """Whether there is a value model."""
    return config.algorithm.adv_estimator in READ_VALUES


def check_critic(config: Config) -> None:
    """Cross-checks of ``critic.*``.

    Raises:
        UserError: naming the key, its value and what would be legal.
    """
    critic, actor, estimator = config.critic, config.actor_rollout_ref.actor, config.algorithm.adv_estimator
    runs = critic_runs(config)
    if critic.enable is not None and critic.enable != runs:
        why = f"algorithm.adv_estimator={estimator} {'reads the values of a critic' if runs else 'reads no values'}"
        instead = "leave it out" if runs else f"leave it out, or set algorithm.adv_estimator={READ_VALUES[0]}"
        raise UserError(f"critic.enable={show(critic.enable)}: {why}; {instead}")
    if not runs:
        return
    for name in ("ppo_mini_batch_size", "ppo_epochs", "shuffle"):
        own, other = vars(critic)[name], vars(actor)[name]
        if own != other:
            raise UserError(
                f"critic.{name}={show(own)}: the critic learns on the minibatches of the actor, and {ACTOR}.{name} is "
                f"{show(other)}; leave critic.{name} out"
            )
    steps, warmup = config.trainer.total_training_steps, config.trainer.critic_warmup
    if steps is not None and warmup >= steps:
        raise UserError(
            f"trainer.critic_warmup={warmup}: the run ends after trainer.total_training_steps={steps}, so the policy "
            f"would never learn; make it less than {steps}"
        )
    check_warmup("critic.optim", critic.optim.lr_warmup_steps, steps)


def check_warmup(section: str, warmup: int, steps: int | None) -> None:
    """A learning rate has to be reached.

    Raises:
        UserError: if the run ends before.
    """
    if steps is not None and warmup >= steps > 1:
        raise UserError(
            f"{section}.lr_warmup_steps={warmup}: the run ends after trainer.total_training_steps="
            f"{steps}, so lr is never reached; make it less than {steps}"
        )


def idle_critic(config: Config) -> Iterator[tuple[str, str]]:
    """Keys of the critic and of its advantage that do nothing, each with the reason."""
    estimator = f"algorithm.adv_estimator={config.algorithm.adv_estimator}"
    if config.algorithm.adv_estimator not in DISCOUNT:
        yield "algorithm.gamma", f"{estimator} discounts nothing"
    if not critic_runs(config):
        yield "algorithm.lam", f"{estimator} has no critic"
        yield "trainer.critic_warmup", f"{estimator} has no critic"
        yield from ((key, f"{estimator} has no critic") for key in _keys() if key != "critic.enable")
        return
    critic = config.critic
    if critic.use_dynamic_bsz:
        for key in ("ppo_micro_batch_size_per_gpu", "forward_micro_batch_size_per_gpu"):
            yield f"critic.{key}", "use_dynamic_bsz=True cuts by tokens alone"
    if critic.loss_agg_mode != "seq-mean-token-sum-norm":
        yield "critic.loss_scale_factor", f"loss_agg_mode={critic.loss_agg_mode or 'token-mean'}"
    if critic.optim.lr_scheduler_type == "constant":
        yield from ((f"critic.optim.{key}", "lr_scheduler_type=constant") for key in ("min_lr_ratio", "num_cycles"))
    if critic.optim.lr_warmup_steps >= 0:
        yield "critic.optim.lr_warmup_steps_ratio", f"lr_warmup_steps={critic.optim.lr_warmup_steps}"
    if critic.model.lora_rank == 0:
        names = ("lora_alpha", "target_modules", "exclude_modules")
        yield from ((f"critic.model.{key}", "lora_rank=0 trains all weights") for key in names)


def _keys() -> list[str]:
    return [key for key in keys() if key.startswith("critic.")]
