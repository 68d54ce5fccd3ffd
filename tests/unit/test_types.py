"""The containers: what goes in comes out, row by row."""

import pytest
import torch

from cohort.types import Author, Experience, FinishReason, Group, Prompt, Rollout, Segment, collate


def model_segment(*ids: int, version: int = 0) -> Segment:
    return Segment(
        ids=ids, author=Author.MODEL, log_probs=tuple(-0.1 * i for i in ids), policy_versions=(version,) * len(ids)
    )


def rollout(prompt: Prompt, sample: int, *segments: Segment) -> Rollout:
    return Rollout(prompt=prompt, sample=sample, segments=segments, finish_reason=FinishReason.STOP)


@pytest.fixture
def groups() -> list[Group]:
    short = Prompt(row=0, ids=(5, 6), text="ab")
    long = Prompt(row=1, ids=(7, 8, 9), text="cde")
    tool = Segment(ids=(40, 41), author=Author.ENVIRONMENT)
    return [
        Group(prompt=short, rollouts=(rollout(short, 0, model_segment(1, 2, 3)), rollout(short, 1, model_segment(4)))),
        Group(prompt=long, rollouts=(rollout(long, 0, model_segment(1), tool, model_segment(2, 3, version=1)),)),
    ]


def test_collate_aligns_everything_with_the_response(groups):
    batch = collate(groups)
    assert batch.ids.tolist() == [[5, 6, 1, 2, 3, 0, 0, 0], [5, 6, 4, 0, 0, 0, 0, 0], [7, 8, 9, 1, 40, 41, 2, 3]]
    assert batch.response_ids.tolist() == [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [1, 40, 41, 2, 3]]
    assert batch.mask.tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 1, 1]]
    assert batch.policy_versions.tolist()[2] == [0, -1, -1, 1, 1]
    assert batch.group.tolist() == [0, 0, 1]
    torch.testing.assert_close(batch.rollout_log_probs[2], torch.tensor([-0.1, 0.0, 0.0, -0.2, -0.3]))


def test_a_segment_needs_one_log_prob_per_model_token_and_none_elsewhere():
    with pytest.raises(ValueError, match="a MODEL segment of 2 ids needs 2 log_probs"):
        Segment(ids=(1, 2), author=Author.MODEL, log_probs=(0.0,), policy_versions=(0, 0))
    with pytest.raises(ValueError, match="an? ENVIRONMENT segment"):
        Segment(ids=(1,), author=Author.ENVIRONMENT, log_probs=(0.0,))


def test_collate_without_rollouts_says_so():
    with pytest.raises(ValueError, match="no rollouts"):
        collate([])


def experience(groups_of: list[int]) -> Experience:
    prompts = [Prompt(row=i, ids=(1,), text="") for i in range(len(groups_of))]
    groups = [
        Group(prompt=p, rollouts=tuple(rollout(p, k, model_segment(i + 1)) for k in range(n)))
        for i, (p, n) in enumerate(zip(prompts, groups_of, strict=True))
    ]
    batch = collate(groups)
    rows = torch.arange(batch.rows, dtype=torch.float32)
    return Experience(batch=batch, advantages=rows[:, None], extras={"row": rows})


def test_minibatches_are_whole_groups_and_cover_every_row_once_per_epoch():
    data = experience([2, 3, 1, 4, 2])
    seen = [part.extras["row"].tolist() for part in data.minibatches(2, epochs=2, seed=3)]
    assert sorted(row for part in seen[:3] for row in part) == list(range(12))
    assert sorted(row for part in seen[3:] for row in part) == list(range(12))
    assert seen[:3] != seen[3:]
    for part in data.minibatches(2):
        for group in part.batch.group.unique():
            assert (part.batch.group == group).sum() == (data.batch.group == group).sum()


def test_select_keeps_rows_together():
    part = experience([2, 2]).select(torch.tensor([3, 0]))
    assert part.advantages[:, 0].tolist() == part.extras["row"].tolist() == [3.0, 0.0]
    assert part.batch.group.tolist() == [1, 0]
