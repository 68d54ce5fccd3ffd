"""Rows dealt to replicas and gathered back."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cohort.distributed.split import gather_rows, split_rows
from cohort.types import Author, FinishReason, Group, Prompt, Rollout, Segment, collate


def batch_of(sizes: list[list[int]]):
    """Groups of rollouts with these response lengths."""
    groups = []
    for row, lengths in enumerate(sizes):
        prompt = Prompt(row=row, ids=(1,) * (row + 1), text="")
        rollouts = []
        for sample, length in enumerate(lengths):
            written = Segment(
                ids=(2,) * length, author=Author.MODEL, log_probs=(0.0,) * length, policy_versions=(0,) * length
            )
            rollouts.append(Rollout(prompt=prompt, sample=sample, segments=(written,), finish_reason=FinishReason.STOP))
        groups.append(Group(prompt=prompt, rollouts=tuple(rollouts)))
    return collate(groups)


GROUPS = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=5), min_size=1, max_size=6)


@given(GROUPS, st.integers(1, 4))
def test_every_row_goes_to_exactly_one_replica_and_comes_back_in_order(sizes, replicas):
    batch = batch_of(sizes)
    rows = split_rows(batch, replicas)
    assert len(rows) == replicas
    assert sorted(torch.cat(rows).tolist()) == list(range(batch.rows))
    marks = torch.arange(batch.rows)
    assert gather_rows([marks[r] for r in rows], rows).tolist() == marks.tolist()


@given(GROUPS, st.integers(1, 4))
def test_groups_stay_whole_where_there_are_enough(sizes, replicas):
    batch = batch_of(sizes)
    if len(sizes) >= replicas:
        for rows in split_rows(batch, replicas):
            for group in batch.group[rows].unique():
                assert (batch.group[rows] == group).sum() == (batch.group == group).sum()


def test_loads_come_out_even():
    batch = batch_of([[30, 30], [10, 10], [20, 20], [40, 40]])
    loads = [int((batch.prompt_lengths + batch.response_lengths)[rows].sum()) for rows in split_rows(batch, 2)]
    assert max(loads) - min(loads) <= 10
