"""Configs of the algorithm family for tests, and registries that forget what a test registered."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES
from cohort.assemble import plugins
from cohort.config import build
from cohort.config.schema import Config
from cohort.verl_api import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

ARR = "actor_rollout_ref"
ACTOR = f"{ARR}.actor"
MODE = f"{ACTOR}.policy_loss.loss_mode"
ESTIMATOR = "algorithm.adv_estimator"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone afterwards."""
    tables: list[Any] = [ADVANTAGES, POLICY_LOSSES, ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY]
    saved = [dict(table) for table in tables]
    monkeypatch.setattr(plugins, "_DONE", {})
    yield
    for table, before in zip(tables, saved, strict=True):
        table.clear()
        table.update(before)


def config(values: Mapping[str, Any] | None = None, **more: Any) -> Config:
    """A config with a few keys given."""
    given = {f"{ARR}.model.path": "M", f"{ARR}.rollout.n": 4, **(values or {}), **more}
    return build(given, note=lambda line: None)
