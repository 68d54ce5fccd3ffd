"""Orders by difficulty: growing pools, fair mixes, and preference for what is answered right sometimes."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.data.columns import column, numbers
from cohort.data.curriculum import Adaptive, Curriculum, Mixed
from cohort.data.loader import Epochs, ObservingOrder, PromptLoader
from cohort.data.order import uniforms
from cohort.errors import UserError
from cohort.metrics import read
from cohort.trainer.checkpoint import Checkpoints
from cohort.types import Group, Prompt, Score
from tests import records
from tests.rig import build_parts, build_trainer, vowels


def prompts(n: int) -> list[Prompt]:
    return [Prompt(row=10 * i, ids=(i,), text=str(i), columns={"level": i}) for i in range(n)]


def places(order, start: int, stop: int) -> list[int]:
    return [order.index(p) for p in range(start, stop)]


# --- from one end to all ----------------------------------------------------------------------


def test_the_pool_grows_from_the_easiest_to_all():
    order = Curriculum([9 - i for i in range(10)], seed=1, length=40, stages=4)  # the last prompt is the easiest
    for stage, pool in enumerate((2, 4, 6, 8)):
        drawn = places(order, 10 * stage, 10 * stage + 10)
        assert set(drawn) == set(range(10 - pool, 10)), stage
        assert max(Counter(drawn).values()) - min(Counter(drawn).values()) <= 1  # each once per pass over the pool
    assert places(order, 40, 60) == places(Epochs(10, seed=1), 0, 20)


def test_hard_to_easy_starts_at_the_other_end():
    order = Curriculum(range(10), seed=1, length=40, hardest_first=True)
    assert set(places(order, 0, 10)) == {8, 9}
    assert set(places(order, 30, 40)) == set(range(2, 10))


def test_equal_difficulties_are_not_in_the_order_of_the_file():
    order = Curriculum([0.0] * 50 + [1.0] * 50, seed=1, length=100, stages=4)
    pool = set(places(order, 0, 25))
    assert len(pool) == 20 and pool < set(range(50)) and pool != set(range(20))


@settings(deadline=None)
@given(
    n=st.integers(1, 40),
    length=st.integers(1, 100),
    stages=st.integers(1, 12),
    seed=st.integers(0, 9),
    hardest=st.booleans(),
)
def test_every_position_is_a_function_of_seed_and_position(n, length, stages, seed, hardest):
    difficulty = [(7 * i) % 5 for i in range(n)]
    made = [Curriculum(difficulty, seed=seed, length=length, stages=stages, hardest_first=hardest) for _ in range(2)]
    forwards = places(made[0], 0, length + 2 * n)
    backwards = [made[1].index(p) for p in reversed(range(length + 2 * n))][::-1]
    assert forwards == backwards
    assert all(0 <= i < n for i in forwards)
    assert sorted(forwards[length : length + n]) == list(range(n))


# --- mixed ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(n=st.integers(1, 60), classes=st.integers(1, 8), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_mixed_has_every_prompt_once_per_epoch_and_every_stretch_is_fair(n, classes, seed, epoch):
    order = Mixed(range(n), seed=seed, classes=classes)
    drawn = places(order, epoch * n, (epoch + 1) * n)
    assert sorted(drawn) == list(range(n))
    if n % classes == 0:  # each turn has one prompt of each class
        size = n // classes
        for turn in range(size):
            assert sorted(i // size for i in drawn[turn * classes : (turn + 1) * classes]) == list(range(classes))


def test_mixed_differs_from_epoch_to_epoch():
    order = Mixed(range(40), seed=0)
    assert places(order, 0, 40) != places(order, 40, 80)


# --- adaptive ---------------------------------------------------------------------------------


def seen(prompt: Prompt, *values: float | None) -> Group:
    rollouts = tuple(records.rollout(prompt, 2 * i, Score(value=value)) for i, value in enumerate(values))
    return Group(prompt=prompt, rollouts=rollouts)


def test_prompts_answered_right_sometimes_come_more_often():
    data = prompts(3)
    order = Adaptive(data, seed=1)
    assert order.weights().tolist() == [1, 1, 1]
    order.observe([seen(data[0], *[1] * 50), seen(data[1], *[0, 1] * 25), seen(data[2], *[0] * 50)], 3)
    assert order.weights() == pytest.approx([4 * 51 / 52 / 52, 1, 4 * 51 / 52 / 52])
    first = Counter()
    for position in range(3, 3000):
        order.observe([], position)
        first[order.index(position)] += 1
    shares = order.weights() / order.weights().sum()
    assert [first[i] / 2997 for i in range(3)] == pytest.approx(shares, abs=0.03)


def test_within_a_step_no_prompt_comes_twice_before_all_came():
    order = Adaptive(prompts(7), seed=1)
    order.observe([], 5)
    for start in (5, 12, 19):
        assert sorted(places(order, start, start + 7)) == list(range(7))


def test_older_answers_count_less_and_partly_right_ones_in_part():
    data = prompts(1)
    order = Adaptive(data, seed=1, discount=0.5)
    order.observe([seen(data[0], 1.0, 0.25, None, 7.0, -1.0)], 1)
    assert (order.seen[0], order.right[0]) == (4, 2.25)
    order.observe([seen(data[0], 0.0, 0.0)], 2)
    assert (order.seen[0], order.right[0]) == (4, 1.125)


def test_a_floor_brings_everything_back():
    data = prompts(2)
    order = Adaptive(data, seed=1, floor=0.3)
    order.observe([seen(data[0], *[1.0] * 200)], 1)
    assert order.weights()[0] == 0.3


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.3, None]), min_size=1, max_size=5), min_size=1, max_size=8))
def test_a_restored_order_goes_on_as_it_was(steps):
    data = prompts(5)
    order = Adaptive(data, seed=3)
    for step, values in enumerate(steps):
        order.observe([seen(data[step % 5], *values)], 2 * step + 2)
    state = json.loads(json.dumps(order.state()))
    again = Adaptive(data, seed=3)
    again.load_state(state)
    start = 2 * len(steps)
    assert places(again, start, start + 12) == places(order, start, start + 12)
    assert again.state() == order.state()


def test_rows_that_are_gone_are_left_out():
    order = Adaptive(prompts(1), seed=1)
    order.load_state({"started": 4, "rows": [[0, 2.0, 1.0], [999, 4.0, 4.0]]})
    assert (order.seen.tolist(), order.right.tolist()) == ([2.0], [1.0])


def test_uniforms_are_uniform():
    drawn = uniforms(20000, seed=1)
    assert drawn.min() > 0 and drawn.max() < 1
    assert np.histogram(drawn, bins=10, range=(0, 1))[0] == pytest.approx([2000] * 10, abs=250)


# --- in the run -------------------------------------------------------------------------------


def test_the_loader_serves_any_order_and_refuses_what_is_outside():
    class Backwards:
        def index(self, position):
            return -position

    loader = PromptLoader(prompts(3), order=Backwards())
    assert loader.batch(0, 1)[0].row == 0
    with pytest.raises(
        UserError, match=r"Backwards\.index\(1\) is -1; with 3 prompts it must be a whole number from 0"
    ):
        loader.batch(1, 1)
    assert loader.state() == {} and not isinstance(loader.order, ObservingOrder)


def adaptive_run():
    trainer = build_trainer(build_parts(), reward=lambda r: 1.0 if r.prompt.row < 3 else vowels(r), prompts=3)
    served = trainer.prompts.prompts
    trainer.prompts = PromptLoader(served, order=Adaptive(served, seed=2))
    return trainer


def test_an_adaptive_run_resumes_bit_for_bit(tmp_path):
    whole, half, resumed, forgetful = (adaptive_run() for _ in range(4))
    last = [whole.step() for _ in range(4)][-1]
    for _ in range(3):
        half.step()
    folder = Checkpoints(tmp_path).save(half)
    Checkpoints(tmp_path).restore(resumed, folder)
    record = resumed.step()
    assert [g.prompt.row for g in record.groups] == [g.prompt.row for g in last.groups]
    names = ("critic/score/mean", "actor/grad_norm", "training/epoch")
    assert [read(record.metrics)[name] for name in names] == [read(last.metrics)[name] for name in names]
    for (name, ours), (_, theirs) in zip(whole.actor.weights(), resumed.actor.weights(), strict=True):
        assert torch.equal(ours, theirs), name
    (folder / "prompts.json").unlink()
    Checkpoints(tmp_path).restore(forgetful, folder)
    assert forgetful.prompts.state() != half.prompts.state()
    for trainer in (whole, half, resumed, forgetful):
        trainer.close()


def test_a_run_in_a_plain_order_saves_no_state_of_it(tmp_path):
    trainer = build_trainer(build_parts())
    trainer.prompts = PromptLoader(trainer.prompts.prompts, seed=1)
    trainer.step()
    assert not (Checkpoints(tmp_path).save(trainer) / "prompts.json").exists()
    trainer.close()


# --- columns ----------------------------------------------------------------------------------


def test_columns_are_found_by_name_and_inside_columns():
    prompt = replace(prompts(1)[0], columns={"a.b": 1, "a": {"b": 2, "c": {"d": 3}}})
    assert column(prompt, "a.b", key="k") == 1
    assert column(prompt, "a.c.d", key="k") == 3
    for name in ("x", "a.x", "a.b.c"):
        with pytest.raises(UserError, match=rf"k={name}: data row 0 has no such column; it has: a, a\.b, a\.b, a\.c"):
            column(prompt, name, key="k")


@pytest.mark.parametrize("bad", ["hard", None, True, float("nan")])
def test_a_difficulty_is_a_number_in_every_row(bad):
    data = [*prompts(2), replace(prompts(3)[2], columns={"level": bad})]
    with pytest.raises(UserError, match=r"k=level: data row 20 has .* there; expects a number in every row"):
        numbers(data, "level", key="k")
    assert numbers(prompts(3), "level", key="k") == [0, 1, 2]
