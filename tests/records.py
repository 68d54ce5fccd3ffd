"""Made-up training steps and validations, whole enough for every tracker."""

import random
from collections.abc import Sequence

import torch

from cohort.metrics import Last, Max, Mean, Metrics, Min, Sum, summary
from cohort.protocols import StepRecord
from cohort.trainer.evaluate import Evaluation, Result, validation_metrics
from cohort.types import Author, Experience, FinishReason, Group, Prompt, Rollout, Score, Segment, collate


def prompt(row: int, **changes) -> Prompt:
    a, b = 10 + row * 7 % 90, 3 + row * 13 % 60
    fields = dict(
        row=row,
        ids=tuple(range(5 + row % 3)),
        text=f"<user>What is {a} + {b}?<eos><assistant>",
        messages=({"role": "user", "content": f"What is {a} + {b}?"},),
        data_source="arithmetic",
        ground_truth=str(a + b),
    )
    return Prompt(**{**fields, **changes})


def rollout(
    asked: Prompt, sample: int, score: Score, *, text="", tokens=4, finish=FinishReason.STOP, version=0
) -> Rollout:
    """A model segment, and for odd samples an environment segment and a second one of the model."""
    draw = random.Random(f"{asked.row}/{sample}")

    def written(count):
        return Segment(
            ids=tuple(draw.randrange(256) for _ in range(count)),
            author=Author.MODEL,
            log_probs=tuple(-draw.random() for _ in range(count)),
            policy_versions=(version,) * count,
        )

    segments = [written(tokens)]
    if sample % 2:
        segments += [Segment(ids=(7, 8), author=Author.ENVIRONMENT), written(2)]
    return Rollout(
        prompt=asked, sample=sample, segments=tuple(segments), finish_reason=finish, text=text, score=score, turns=2
    )


def groups(prompts: int, n: int, *, skill: float, step: int = 1) -> list[Group]:
    """Groups of n whose answers are right with probability ``skill``."""
    draw = random.Random(step)
    found = []
    for row in range(prompts):
        asked = prompt(row + prompts * step)
        rollouts = []
        for sample in range(n):
            right = draw.random() < skill
            answer = int(asked.ground_truth) + (0 if right else draw.randrange(1, 9))
            finish = FinishReason.LENGTH if draw.random() < 0.05 else FinishReason.STOP
            parts = {"acc": float(right), "format": 1.0, "pred": str(answer)}
            score = Score(value=float(right), parts=parts, seconds=0.001)
            text = f"{asked.messages[0]['content'][8:-1]} = {answer}"
            tokens = draw.randrange(3, 9)
            rollouts.append(rollout(asked, sample, score, text=text, tokens=tokens, finish=finish, version=step - 1))
        found.append(Group(prompt=asked, rollouts=tuple(rollouts)))
    return found


def record(step: int, kept: Sequence[Group], collected: Sequence[Group] = (), **numbers: float) -> StepRecord:
    """The record of a step that trained on ``kept``."""
    batch = collate(kept)
    generator = torch.Generator().manual_seed(step)

    def noise(scale):
        return scale * torch.randn(batch.mask.shape, generator=generator) * batch.mask

    scores = torch.tensor([r.score.value for g in kept for r in g.rollouts])
    rewards = torch.zeros_like(batch.mask)
    rewards[torch.arange(batch.rows), batch.response_lengths - 1] = scores
    centred = scores - torch.stack([scores[batch.group == g].mean() for g in batch.group])
    experience = Experience(
        batch=batch, advantages=centred[:, None] * batch.mask, ref_log_probs=batch.rollout_log_probs + noise(0.1)
    )
    return StepRecord(
        step=step,
        groups=kept,
        experience=experience,
        rewards=rewards,
        log_probs=batch.rollout_log_probs + noise(1e-4),
        entropy=noise(1.0).abs(),
        metrics=metrics(collected or kept, **numbers),
        collected=collected,
    )


def metrics(collected: Sequence[Group], **numbers: float) -> Metrics:
    """The metrics that the console reads, and those given by name (``__`` stands for a slash)."""
    rollouts = [r for g in collected for r in g.rollouts]
    values = [[r.score.value for r in g.rollouts if r.score.value is not None] for g in collected]
    found: Metrics = {
        "training/groups": Sum(len(collected)),
        "training/groups_with_signal": Sum(sum(len(set(v)) > 1 for v in values)),
        "training/groups_all_right": Sum(sum(set(v) == {1.0} for v in values)),
        "training/groups_all_wrong": Sum(sum(set(v) == {0.0} for v in values)),
        "training/groups_all_truncated": Sum(0),
        "training/groups_all_unscorable": Sum(sum(not v for v in values)),
        "training/groups_all_equal": Sum(0),
        "response_length/clip_ratio": Mean.of(float(r.finish_reason is FinishReason.LENGTH) for r in rollouts),
        "perf/throughput": Last(4213.0),
        "perf/time_per_step": Sum(2.14),
        **summary("critic/score", [x for v in values for x in v]),
        **summary("response_length", [len(r.response_ids) for r in rollouts]),
    }
    assert isinstance(found["response_length/max"], Max)
    assert isinstance(found["response_length/min"], Min)
    found |= {name.replace("__", "/"): Last(value) for name, value in numbers.items()}
    return found


def evaluation(prompts: int, n: int, *, skill: float, greedy: float | None = None, seed: int = 0) -> Evaluation:
    """A validation whose answers are right with probability ``skill``."""
    collected = groups(prompts, n, skill=skill, step=seed + 1000)
    results = [Result.of(r, i) for i, g in enumerate(collected) for r in g.rollouts]
    found = Evaluation(
        results=tuple(results),
        rollouts=tuple(r for g in collected for r in g.rollouts),
        metrics=validation_metrics(results),
    )
    return found.beside(evaluation(prompts, 1, skill=greedy, seed=seed + 1)) if greedy is not None else found
