"""Micro-batches: every row once, limits honoured, nothing has to divide anything."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.models.layout import Layout, answer_tokens, arrange
from cohort.models.micro import plan
from tests.batches import make_batch

GROUPS = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.lists(st.integers(0, 30) | st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=5,
)


def tokens_run(batch, rows, share_prompt, padded):
    """What the model would really run over, from the arrangement itself."""
    micro = batch.select(rows)
    if max(answer_tokens(micro)) < 0:
        return 0
    return arrange(micro, Layout(packed=not padded, share_prompt=share_prompt)).ids.numel()


@settings(max_examples=60, deadline=None)
@given(
    groups=GROUPS,
    max_tokens=st.none() | st.integers(1, 200),
    max_rows=st.none() | st.integers(1, 8),
    share_prompt=st.booleans(),
    padded=st.booleans(),
)
def test_any_sizes(groups, max_tokens, max_rows, share_prompt, padded):
    batch = make_batch(groups)
    micros = plan(batch, max_tokens=max_tokens, max_rows=max_rows, share_prompt=share_prompt, padded=padded)
    assert sorted(torch.cat(micros).tolist()) == list(range(batch.rows))
    for rows in micros:
        assert 1 <= len(rows) <= (max_rows or batch.rows)
        tokens = tokens_run(batch, rows, share_prompt, padded)
        assert max_tokens is None or len(rows) == 1 or tokens <= max_tokens
    again = plan(batch, max_tokens=max_tokens, max_rows=max_rows, share_prompt=share_prompt, padded=padded)
    assert [m.tolist() for m in again] == [m.tolist() for m in micros]


def test_long_rows_come_first():
    batch = make_batch([(2, [3, 30]), (2, [9, 1]), (2, [20])])
    assert torch.cat(plan(batch, max_rows=1)).tolist() == [1, 4, 2, 0, 3]
    assert torch.cat(plan(batch, max_rows=1, share_prompt=True)).tolist() == [1, 0, 4, 2, 3]


def test_a_shared_prompt_counts_once_and_again_where_a_group_is_split():
    batch = make_batch([(50, [11] * 4)])
    assert [len(m) for m in plan(batch, max_tokens=90, share_prompt=True)] == [4]
    assert [len(m) for m in plan(batch, max_tokens=90)] == [1, 1, 1, 1]
    assert [len(m) for m in plan(batch, max_rows=3, share_prompt=True)] == [3, 1]


def test_a_row_over_the_budget_goes_alone():
    assert [len(m) for m in plan(make_batch([(5, [100, 2, 2])]), max_tokens=20)] == [1, 2]


def test_no_rows_no_micro_batches():
    assert plan(make_batch([(3, [2])]).select(torch.tensor([], dtype=torch.long))) == []


@pytest.mark.parametrize("limits", [{"max_rows": 0}, {"max_tokens": 0}, {"max_tokens": -1}])
def test_limits_below_one_are_refused(limits):
    with pytest.raises(ValueError, match="needs room"):
        plan(make_batch([(3, [2])]), **limits)
