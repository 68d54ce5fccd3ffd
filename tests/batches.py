"""Random rollouts for tests: groups of ragged rows, some with text in the middle that the model did not write."""

from collections.abc import Sequence

import torch

from cohort.types import Author, Batch, Experience, Group, Prompt, Rollout, Segment, collate

Response = int | Sequence[int]
"""Tokens of a response: a length, or lengths of alternating segments: model, environment, model, ..."""


def make_batch(groups: Sequence[tuple[int, Sequence[Response]]], *, seed: int = 0, vocab: int = 256) -> Batch:
    """One group per ``(prompt length, responses)``."""
    generator = torch.Generator().manual_seed(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, vocab, (n,), generator=generator).tolist())

    made = []
    for row, (length, responses) in enumerate(groups):
        prompt = Prompt(row=row, ids=ids(length), text="")
        rollouts = []
        for sample, response in enumerate(responses):
            segments = []
            for i, n in enumerate([response] if isinstance(response, int) else response):
                author = Author.ENVIRONMENT if i % 2 else Author.MODEL
                own = n if author is Author.MODEL else 0
                segments.append(Segment(ids=ids(n), author=author, log_probs=(-1.0,) * own, policy_versions=(0,) * own))
            rollouts.append(Rollout(prompt=prompt, sample=sample, segments=tuple(segments)))
        made.append(Group(prompt=prompt, rollouts=tuple(rollouts)))
    return collate(made)


def make_experience(batch: Batch, *, dtype: torch.dtype = torch.float32, seed: int = 0, old: bool = True) -> Experience:
    """Advantages of either sign; log-probs and values spread enough that some ratios and values are clipped."""

    def draw(stream: int, scale: float, shift: float) -> torch.Tensor:
        rows = []
        for row, mask in enumerate(batch.mask):  # row by row, so that a longer neighbour changes nothing
            generator = torch.Generator().manual_seed(seed + 10 * row + stream)
            noise = torch.randn(int(mask.sum()), generator=generator, dtype=torch.float64) * scale + shift
            rows.append(torch.zeros(len(mask), dtype=torch.float64).masked_scatter(mask > 0, noise))
        return torch.stack(rows).to(dtype)

    return Experience(
        batch=batch,
        advantages=draw(0, 1.0, 0.0),
        old_log_probs=draw(1, 3.0, -6.0) if old else None,
        ref_log_probs=draw(2, 3.0, -6.0),
        values=draw(3, 0.5, 0.0),
        returns=draw(4, 1.0, 0.5),
    )


UNEVEN = [(5, [3, 20, (4, 3, 2), 1]), (5, [(6, 2), 40]), (9, [4]), (1, [2, 2, (0, 3), 1]), (17, [33])]
"""Equal and unequal prompts, environment text inside and at the end, a row the model never wrote, groups of one."""
