"""docs/metrics.md lists what a run logs: every number has an entry, and every entry is logged."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cohort.models.classifier import Classifier
from cohort.protocols import Sampling
from cohort.rewards.mixed import MixedReward
from cohort.rewards.model import ClassifierReward
from cohort.rewards.runner import RewardRunner
from cohort.tracking.metrics_page import expression as pattern
from cohort.tracking.metrics_page import markdown
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.dynamic import DynamicSampling
from cohort.trainer.kl import KLController
from cohort.trainer.loop import Schedule, fit
from cohort.trainer.validator import Validator
from cohort.types import Rollout, Score
from tests.pages import ROOT
from tests.rig import build_parts, build_trainer
from tests.tiny import byte_tokenizer, tiny_classifier
from tests.unit.test_chord import chord
from tests.unit.test_rewards_judge import Writes, judge

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
ON_A_GPU = {"perf/max_memory_allocated_gb"}


class Numbers:
    """A watcher that keeps every name."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.names |= metrics.keys()

    def step(self, record) -> None: ...

    def validation(self, step, evaluation) -> None: ...

    def note(self, line) -> None: ...


def graded(rollout: Rollout) -> Score:
    even = float(sum(rollout.response_ids) % 2)
    return Score(value=even, parts={"acc": even, "brief": 1.0, "pred": str(even)})


def logged(
    tmp_path,
    *,
    n: int,
    entropy_coeff: float = 0.0,
    overlong_filter: bool = False,
    of_parts=None,
    grader=None,
    **options,
) -> set[str]:
    parts = build_parts(**(of_parts or {}))
    parts.actor.objective = replace(parts.actor.objective, entropy_coeff=entropy_coeff)
    trainer = build_trainer(parts, reward=graded, tokens=6, **options)
    trainer.plan = replace(trainer.plan, overlong_filter=overlong_filter)
    if grader:
        trainer.reward = MixedReward(grader, functions=RewardRunner([lambda ids: len(ids)], num_workers=0, say=str))
    prompts = [replace(p, data_source="made/up") for p in trainer.prompts.batch(0, 2)]
    validator = Validator(trainer, prompts, sampling=Sampling(max_tokens=6), n=n, also_greedy=n > 1)
    watcher = Numbers()
    schedule = Schedule(total_steps=1, test_freq=1, val_before_train=False)
    fit(trainer, schedule=schedule, watcher=watcher, checkpoints=Checkpoints(tmp_path), validate=validator)
    trainer.close()
    return watcher.names


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> set[str]:
    """What tiny runs log, each with another part of the step switched on."""
    folder = tmp_path_factory.mktemp("metrics")
    classifier = ClassifierReward(Classifier(tiny_classifier()), byte_tokenizer())
    everything = {"reference": True, "kl_coef": 0.01}
    return (
        logged(folder, n=1)
        | logged(folder, n=2, grader=classifier)
        | logged(folder, n=2, grader=judge(Writes("Score: 3", "Score: 4")))
        | logged(folder, n=4, minibatch=2, entropy_coeff=0.01, of_parts=everything)
        | logged(folder, n=2, chord=chord(phi=True))
        | logged(folder, n=2, kl_reward=KLController(coef=0.1, kind="kl"), of_parts={"reference": True})
        | logged(folder, n=1, of_parts={"critic": True})
        | logged(folder, n=4, overlong_filter=True, group_filter=DynamicSampling(prompts=6))
    )


def test_every_number_has_an_entry(names):
    patterns = [pattern(entry) for entry in ENTRIES]
    assert sorted(name for name in names if not any(p.fullmatch(name) for p in patterns)) == []


def test_every_entry_is_logged(names):
    assert [e for e in ENTRIES if e not in ON_A_GPU and not any(pattern(e).fullmatch(name) for name in names)] == []


def test_the_page_is_written_from_the_table():
    assert markdown() == PAGE, "run: python -m cohort.tracking.metrics_page > docs/metrics.md"


def test_no_entry_stands_twice():
    assert len(ENTRIES) == len(set(ENTRIES)) > 100


def test_metrics_named_on_other_pages_have_an_entry():
    sections = "actor|critic|training|dynamic_sampling|rollout_corr|response_length|perf|timing_s|val-core|val-aux"
    prefix = rf"`((?:{sections})/[^`\s]+)`"
    patterns = [pattern(entry) for entry in ENTRIES]
    for page in (ROOT / "docs").glob("*.md"):
        for name in re.findall(prefix, page.read_text(encoding="utf-8")):
            generic = re.sub(r"@[Nn]", "@8", re.sub(r"<\w+>", "x", name))
            assert name.endswith("*") or any(p.fullmatch(generic) for p in patterns), f"{page.name}: {name}"
