"""The names that config offers are the names that the code below it has. Config imports neither torch nor data/."""

from typing import get_args

from cohort.algorithms.kl import KL_KINDS
from cohort.algorithms.masking import AGGREGATIONS
from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES
from cohort.algorithms.schedules import LR_SCHEDULES
from cohort.config.critic import READ_VALUES
from cohort.config.schema.actor import Aggregation, KLKind
from cohort.config.schema.data import TASKS
from cohort.config.schema.trainer import Logger
from cohort.config.tree import keys
from cohort.data import tasks
from cohort.data.dataset import Truncation
from cohort.tracking.base import TRACKERS

ACTOR = "actor_rollout_ref.actor"


def choices(key):
    return set(get_args(keys()[key].hint))


def test_algorithms():
    assert set(get_args(KLKind)) == set(KL_KINDS)
    assert set(get_args(Aggregation)) == set(AGGREGATIONS)
    assert choices(f"{ACTOR}.optim.lr_scheduler_type") == set(LR_SCHEDULES)
    assert choices(f"{ACTOR}.policy_loss.loss_mode") == set(POLICY_LOSSES)
    assert choices("algorithm.adv_estimator") == set(ADVANTAGES) - {"dr_grpo"}  # a switch of its own, as in verl


def test_a_critic_runs_where_the_advantage_reads_values():
    assert {name for name, entry in ADVANTAGES.items() if "values" in entry.needs} == set(READ_VALUES)


def test_data():
    assert set(TASKS) == set(tasks.TASKS)
    assert choices("data.truncation") == set(get_args(Truncation))
    assert tasks.REASONING_GYM == "reasoning-gym/"


def test_loggers():
    assert set(get_args(Logger)) == set(TRACKERS)
