"""Dynamic sampling: which groups are kept, how many prompts are drawn, how it ends, and what a resumed run draws."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.errors import UserError
from cohort.metrics import read
from cohort.trainer.checkpoint import Checkpoints
from cohort.trainer.dynamic import DynamicSampling
from cohort.trainer.screen import Screen
from cohort.trainer.trainer import Trainer
from cohort.trainer.verdict import Verdict, judge
from cohort.types import FinishReason, Group, Rollout, Score
from tests import records
from tests.rig import build_parts, build_trainer, vowels

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def answer(
    row: int, sample: int, value: float | None, finish: FinishReason = STOP, tokens: int = 3, **parts
) -> Rollout:
    score = Score(value=value, parts=parts, reason="" if value is not None else "no key")
    return records.rollout(records.prompt(row), 2 * sample, score, tokens=tokens, finish=finish)


def group(*values: float | None, row: int = 0, finish: FinishReason = STOP, **parts) -> Group:
    rollouts = tuple(answer(row, i, value, finish, **parts) for i, value in enumerate(values))
    return Group(prompt=records.prompt(row), rollouts=rollouts)


def with_parts(name: str, *values: float | str, score: float | None = 0.5) -> Group:
    rollouts = tuple(answer(0, i, score, **{name: value}) for i, value in enumerate(values))
    return Group(prompt=records.prompt(0), rollouts=rollouts)


class Data:
    """Draws made-up groups in order, and remembers how many were asked for."""

    def __init__(self, *groups: Group) -> None:
        self.groups = [replace(g, prompt=records.prompt(row)) for row, g in enumerate(groups)]
        self.sizes: list[int] = []

    def __call__(self, count: int) -> list[Group]:
        start = sum(self.sizes)
        self.sizes.append(count)
        return [self.groups[i % len(self.groups)] for i in range(start, start + count)]


def rows(groups) -> list[int]:
    return [g.prompt.row for g in groups]


GOOD, RIGHT, WRONG = group(0.0, 1.0), group(1.0, 1.0), group(0.0, 0.0)
CUT, LOST = group(0.0, 0.0, finish=LENGTH), group(None, None)


# --- what a group can teach -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (GOOD, Verdict.WITH_SIGNAL),
        (group(-1.0, -1.0, -0.9), Verdict.WITH_SIGNAL),
        (RIGHT, Verdict.ALL_RIGHT),
        (group(5.0, 5.0), Verdict.ALL_RIGHT),
        (WRONG, Verdict.ALL_WRONG),
        (group(-1.0, -1.0), Verdict.ALL_WRONG),
        (group(0.1, 0.1), Verdict.ALL_EQUAL),  # a format reward alone is not right
        (group(0.1, 0.1, acc=0.0), Verdict.ALL_WRONG),  # the reward's own word decides
        (group(0.9, 0.9, acc=1.0), Verdict.ALL_RIGHT),
        (group(0.0, 0.0, acc="yes"), Verdict.ALL_WRONG),  # text is no number
        (group(0.0, 0.0, acc=float("nan")), Verdict.ALL_WRONG),
        (with_parts("acc", 0.0, 1.0), Verdict.ALL_EQUAL),  # right and wrong answers that cost the same
        (CUT, Verdict.ALL_TRUNCATED),
        (group(1.0, 1.0, finish=LENGTH), Verdict.ALL_TRUNCATED),
        (group(0.0, 1.0, finish=LENGTH), Verdict.WITH_SIGNAL),
        (LOST, Verdict.ALL_UNSCORABLE),
        (group(None, 1.0), Verdict.ALL_UNSCORABLE),  # one answer is left: nothing to compare it with
        (group(None, 1.0, 1.0), Verdict.ALL_RIGHT),
        (group(1.0), Verdict.ALL_RIGHT),  # a run with one answer per prompt
    ],
)
def test_a_verdict_names_the_cause(found, verdict):
    assert judge(found) is verdict


def test_answers_that_cannot_train_do_not_judge():
    empty = replace(answer(0, 3, 7.0), segments=())
    assert judge(Group(prompt=records.prompt(0), rollouts=(*WRONG.rollouts, empty))) is Verdict.ALL_WRONG


def test_every_group_of_a_step_is_counted_once():
    trainer = build_trainer(build_parts(), reward=lambda r: 0.5 if r.prompt.row == 0 else vowels(r), tokens=40)
    metrics = read(trainer.step().metrics)
    trainer.close()
    counted = [metrics[f"training/groups_{verdict}"] for verdict in Verdict]
    assert sum(counted) == metrics["training/groups"] == 4
    assert metrics["training/groups_all_equal"] + metrics["training/groups_all_truncated"] >= 1


# --- drawing ----------------------------------------------------------------------------------


def test_valid_groups_are_kept_and_only_what_is_missing_is_drawn_again():
    data = Data(GOOD, RIGHT, GOOD, WRONG, GOOD, GOOD, GOOD, GOOD)
    gathered = DynamicSampling(prompts=100)(data, 4, 1)
    # 2 of 4 were valid, 2 are missing: 4 more are likely to do; all 4 of them are valid, the last 2 are surplus
    assert data.sizes == [4, 4]
    assert rows(gathered.groups) == [0, 2, 4, 5]
    assert rows(gathered.collected) == list(range(8))
    assert gathered.drawn == 8
    assert read(gathered.metrics) == {
        "dynamic_sampling/batches": 2,
        "dynamic_sampling/groups_sampled": 8,
        "dynamic_sampling/groups_kept": 4,
        "dynamic_sampling/kept_share": 0.5,
        "dynamic_sampling/dropped_valid": 2,
    }


def test_a_full_first_batch_is_all():
    data = Data(GOOD)
    gathered = DynamicSampling(prompts=1)(data, 3, 1)
    assert data.sizes == [3]
    assert read(gathered.metrics)["dynamic_sampling/kept_share"] == 1


def test_a_fixed_batch_size_is_used_as_it_is():
    data = Data(GOOD, WRONG)
    gathered = DynamicSampling(prompts=100, batch_size=3)(data, 4, 1)
    assert data.sizes == [3, 3, 3]
    assert rows(gathered.groups) == [0, 0, 0, 0]


def test_the_last_batch_is_judged_too():
    """ms-swift throws away the batch that would have completed the step."""
    data = Data(WRONG, WRONG, WRONG, WRONG, GOOD, GOOD)
    assert rows(DynamicSampling(prompts=6, max_batches=3)(data, 2, 1).groups) == [4, 5]


def test_unscorable_answers_leave_before_the_group_is_judged():
    half = group(None, 1.0, 1.0)
    signal = group(None, 0.0, 1.0)
    data = Data(half, signal)
    chosen = DynamicSampling(prompts=4, screen=Screen(max_unscorable_rate=0.5))(data, 1, 1)
    assert rows(chosen.groups) == [1]
    assert [len(g.rollouts) for g in chosen.groups] == [2]
    assert [len(g.rollouts) for g in chosen.collected] == [3, 3]


def test_a_reward_that_fails_too_often_ends_the_run_after_one_batch():
    data = Data(LOST)
    with pytest.raises(UserError, match="(?s)could not grade 8 of 8 answers.*no key"):
        DynamicSampling(prompts=100)(data, 4, 1)
    assert data.sizes == [4]


def test_cut_answers_count_as_truncated_where_they_do_not_train():
    data = Data(group(0.0, 1.0, finish=LENGTH), GOOD)
    assert rows(DynamicSampling(prompts=10)(data, 1, 1).groups) == [0]
    data = Data(group(0.0, 1.0, finish=LENGTH), GOOD)
    assert rows(DynamicSampling(prompts=10, overlong_filter=True)(data, 1, 1).groups) == [1]


def test_a_group_without_a_scored_greedy_answer_is_no_group():
    lost = replace(GOOD, baseline=answer(0, 5, None))
    data = Data(lost, replace(GOOD, baseline=answer(0, 5, 1.0)))
    assert rows(DynamicSampling(prompts=10)(data, 1, 1).groups) == [1]


@pytest.mark.parametrize(
    ("metric", "kept"), [("score", [0]), ("seq_reward", [0]), ("seq_final_reward", [0]), ("acc", [1]), ("style", [2])]
)
def test_the_metric_decides_what_must_differ(metric, kept):
    def made(values, accs, styles):
        found = [
            answer(0, i, value, acc=acc, style=style)
            for i, (value, acc, style) in enumerate(zip(values, accs, styles, strict=True))
        ]
        return Group(prompt=records.prompt(0), rollouts=tuple(found))

    data = Data(
        made([0.4, 0.6], [0.0, 0.0], [0, 0]), made([0.5, 0.5], [0.0, 1.0], [0, 0]), made([1, 1], [1, 1], [2, 3])
    )
    assert rows(DynamicSampling(prompts=9, metric=metric)(data, 1, 1).groups) == kept


def test_a_metric_that_the_reward_does_not_give_is_named_with_those_it_gives():
    data = Data(group(0.0, 1.0, style=1.0, pred="x"))
    for metric in ("acc", "pred"):
        with pytest.raises(UserError, match=rf"filter_groups\.metric={metric}: .* it has score, style$"):
            DynamicSampling(prompts=9, metric=metric)(data, 1, 1)


def test_a_part_that_does_not_apply_to_a_row_is_no_error():
    data = Data(GOOD, with_parts("acc", 0.0, 1.0))
    assert rows(DynamicSampling(prompts=9, metric="acc", batch_size=2)(data, 1, 1).groups) == [1]


# --- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "cause", "remedy"),
    [
        (RIGHT, "3 all right", "too easy"),
        (WRONG, "3 all wrong", "too hard"),
        (CUT, "3 all truncated", "raise data.max_response_length"),
        (LOST, "3 all unscorable", "their reasons"),
        (group(0.3, 0.3), "3 all equal", "finer values"),
    ],
)
def test_the_end_says_what_the_groups_are_and_what_to_do(most, cause, remedy):
    data = Data(most, most, GOOD, most)
    chosen = DynamicSampling(prompts=4, max_batches=2, batch_size=2, screen=Screen(max_unscorable_rate=1.0))
    with pytest.raises(UserError) as caught:
        chosen(data, 4, 7)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(
        "step 7: algorithm.filter_groups: 1 of the 4 groups wanted differ in score after 4 prompts in 2 batches"
    )
    assert cause in line and remedy in line
    assert "on_exhausted=train" in line and "max_num_gen_batches" in line


def test_training_on_fewer_needs_one_group_at_least():
    softer = DynamicSampling(prompts=4, max_batches=1, train_fewer=True)
    gathered = softer(Data(WRONG, GOOD, RIGHT), 3, 1)
    assert rows(gathered.groups) == [1]
    (warning,) = gathered.warnings
    assert "1 all right, 1 all wrong" in warning and "training on these" in warning
    with pytest.raises(UserError, match="0 of the 3 groups wanted"):
        softer(Data(WRONG, RIGHT), 3, 1)


def test_without_a_limit_one_pass_over_the_data_is_the_end():
    data = Data(WRONG)
    with pytest.raises(UserError, match=r"50 prompts in 13 batches \(50 all wrong\)"):
        DynamicSampling(prompts=50)(data, 4, 1)
    assert sum(data.sizes) == 50
    data = Data(WRONG)  # ten batches where the data is small
    with pytest.raises(UserError, match="40 prompts in 10 batches"):
        DynamicSampling(prompts=5)(data, 4, 1)


@settings(deadline=None)
@given(
    valid=st.lists(st.booleans(), min_size=1, max_size=60),
    wanted=st.integers(1, 12),
    batch=st.none() | st.integers(1, 20),
    most=st.integers(0, 6),
)
def test_whatever_the_data_the_first_valid_groups_are_kept_and_the_limit_holds(valid, wanted, batch, most):
    data = Data(*(GOOD if good else WRONG for good in valid))
    chosen = DynamicSampling(prompts=len(valid), batch_size=batch, max_batches=most, train_fewer=True)
    endless = [i for i in range(600) if valid[i % len(valid)]]
    try:
        gathered = chosen(data, wanted, 1)
    except UserError:
        assert sum(data.sizes) == chosen.limit(wanted)
        assert not any(i < chosen.limit(wanted) for i in endless)
        return
    drawn = sum(data.sizes)
    assert gathered.drawn == len(gathered.collected) == drawn <= chosen.limit(wanted)
    assert rows(gathered.groups) == [i % len(valid) for i in endless if i < drawn][:wanted]
    if len(gathered.groups) < wanted:
        assert drawn == chosen.limit(wanted) and gathered.warnings
    else:  # no batch was drawn after the groups were there
        before = drawn - data.sizes[-1]
        assert sum(i < before for i in endless) < wanted
    if batch is None:
        assert max(data.sizes) <= wanted


# --- in the training step ---------------------------------------------------------------------


def uneven(rollout: Rollout) -> float:
    """Even rows teach nothing."""
    return 1.0 if rollout.prompt.row % 2 == 0 else vowels(rollout)


def filtered(**options) -> Trainer:
    return build_trainer(build_parts(), reward=uneven, group_filter=DynamicSampling(prompts=6), **options)


def test_a_step_trains_on_full_batches_of_groups_with_signal():
    trainer = filtered()
    record = trainer.step()
    metrics = read(record.metrics)
    trainer.close()
    assert [g.prompt.row for g in record.groups] == [1, 3, 5, 1]
    assert record.experience.batch.rows == 16
    assert metrics["dynamic_sampling/groups_sampled"] == metrics["training/groups"] == trainer.position == 8
    assert metrics["training/groups_with_signal"] == 4
    assert metrics["training/epoch"] == pytest.approx(8 / 6)
    first, again = (g for g in record.groups if g.prompt.row == 1)  # drawn twice in one step: other answers
    assert [r.ids for r in first.rollouts] != [r.ids for r in again.rollouts]
    assert len(record.collected) == 8


def test_fewer_groups_give_fewer_updates_and_a_warning():
    trainer = filtered(minibatch=2)
    trainer.group_filter = DynamicSampling(prompts=6, max_batches=1, train_fewer=True)
    record = trainer.step()
    trainer.close()
    assert len(record.groups) == 2
    assert read(record.metrics)["training/updates"] == 1
    assert "2 of the 4 groups wanted" in record.warnings[0]


def test_scores_are_judged_before_they_are_shaped():
    """A KL in the reward makes every answer differ; a group of equal scores still teaches nothing."""
    from cohort.trainer.kl import KLController

    parts = build_parts(reference=True)
    trainer = build_trainer(
        parts,
        reward=lambda r: 1.0,
        kl_reward=KLController(coef=0.5, kind="k1"),
        group_filter=DynamicSampling(prompts=6),
    )
    with pytest.raises(UserError, match="0 of the 4 groups wanted"):
        trainer.step()
    trainer.close()


def timeless(metrics) -> dict[str, float]:
    return {k: v for k, v in read(metrics).items() if not k.startswith(("timing", "perf"))}


def test_a_resumed_run_is_the_same_run(tmp_path):
    whole, half, resumed = filtered(minibatch=2), filtered(minibatch=2), filtered(minibatch=2)
    records_of_whole = [whole.step() for _ in range(3)]
    half.step()
    half.step()
    folder = Checkpoints(tmp_path).save(half)
    Checkpoints(tmp_path).restore(resumed, folder)
    last = resumed.step()
    assert resumed.position == whole.position > 3 * 4
    assert timeless(last.metrics) == timeless(records_of_whole[-1].metrics)
    assert [r.ids for g in last.groups for r in g.rollouts] == [
        r.ids for g in records_of_whole[-1].groups for r in g.rollouts
    ]
    for (name, ours), (_, theirs) in zip(whole.actor.weights(), resumed.actor.weights(), strict=True):
        assert torch.equal(ours, theirs), name
    for trainer in (whole, half, resumed):
        trainer.close()


# --- the overlong filter ----------------------------------------------------------------------


def test_cut_answers_are_counted_and_leave_the_update_alone():
    """Every answer is cut: nothing trains, nothing breaks."""
    trainer = build_trainer(build_parts(), tokens=2)
    trainer.plan = replace(trainer.plan, overlong_filter=True)
    before = {name: tensor.detach().clone() for name, tensor in trainer.actor.weights()}
    record = trainer.step()
    metrics = read(record.metrics)
    trainer.close()
    cut = sum(r.finish_reason is LENGTH for g in record.groups for r in g.rollouts)
    assert metrics["training/filtered_rollouts"] == cut == 16
    assert metrics["actor/pg_loss"] == 0 and metrics["actor/skipped_updates"] == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.actor.weights())
