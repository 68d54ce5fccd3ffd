"""The stages between scores and advantages, inside a trainer: sampler correction, reference blend, alignment."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from cohort.algorithms.correction_settings import PRESETS, Correction, Rule
from cohort.algorithms.schedules import shaping_weight
from cohort.metrics import read
from cohort.models.reference import LocalReference
from cohort.protocols import TokenStats
from cohort.trainer.correction import SamplerCorrection
from cohort.trainer.encoder import FrozenEncoder, PolicyEncoder, batch_of, gold_ids
from cohort.trainer.measure import Stopwatch
from cohort.trainer.shaping import Alignment, ReferenceBlend, gold_rollout
from cohort.types import Author, Prompt, Rollout
from tests.rig import build_parts, build_trainer
from tests.tiny import byte_tokenizer, tiny_model


def half(step: int) -> float:
    return 0.5


def golds(prompt: Prompt) -> Sequence[tuple[int, ...]]:
    return [(104, 105, 257), (120, 257)]


class Spy:
    """An encoder that counts what it reads."""

    def __init__(self, encode) -> None:
        self.encode = encode
        self.seen: list[int] = []

    def __call__(self, rollouts: Sequence[Rollout]) -> torch.Tensor:
        self.seen.append(len(rollouts))
        return self.encode(rollouts)


def alignment(encode, *, own: bool, **options) -> Alignment:
    return Alignment(
        weight=half, threshold=options.pop("threshold", 0.0), golds=golds, encode=encode, own=own, **options
    )


def test_the_blend_is_convex_and_starts_from_nothing():
    parts = build_parts(reference=True)
    weight = partial(shaping_weight, max_weight=0.6, kind="linear", total_steps=10, warmup_ratio=0.5)
    trainer = build_trainer(parts, shaping=[ReferenceBlend(weight=weight, distribute="mean")])
    first = trainer.step()
    scores = torch.tensor([r.score.value for g in first.groups for r in g.rollouts])
    torch.testing.assert_close(first.rewards.sum(1), scores)
    assert read(first.metrics)["actor/ref_blend/weight"] == 0.0
    second = trainer.step()
    metrics = read(second.metrics)
    assert metrics["actor/ref_blend/weight"] == pytest.approx(0.12)
    assert 0 < metrics["actor/ref_blend/norm_mean"] < 1
    scores = torch.tensor([r.score.value for g in second.groups for r in g.rollouts])
    extra = second.rewards.sum(1) - 0.88 * scores
    assert (extra >= -1e-6).all() and (extra <= 0.12 + 1e-6).all()
    trainer.close()


def test_a_blend_without_a_reference_is_an_error():
    trainer = build_trainer(build_parts(), shaping=[ReferenceBlend(weight=half)])
    with pytest.raises(ValueError, match="the reference blend needs a reference"):
        trainer.step()
    trainer.close()


def test_a_closed_gate_asks_no_encoder_and_changes_no_reward():
    spy = Spy(None)
    trainer = build_trainer(build_parts(), shaping=[alignment(spy, own=False, threshold=99.0)])
    record = trainer.step()
    metrics = read(record.metrics)
    scores = torch.tensor([r.score.value for g in record.groups for r in g.rollouts])
    torch.testing.assert_close(record.rewards.sum(1), scores)
    assert spy.seen == []
    assert metrics["actor/repr/ref_gold_align/weight"] == metrics["actor/repr/ref_gold_align/gate"] == 0
    assert metrics["actor/repr/ref_gold_align/scheduled_weight"] == 0.5
    assert metrics["actor/repr/ref_gold_align/avg_entropy"] > 3  # of 259 bytes, hardly trained
    trainer.close()


@pytest.mark.parametrize("own", [True, False])
def test_an_open_gate_pays_the_similarity_whatever_the_length(own):
    parts = build_parts()
    frozen = FrozenEncoder(lambda: LocalReference(tiny_model(seed=0)), max_length=64)
    spy = Spy(PolicyEncoder(parts.actor) if own else frozen)
    stage = alignment(spy, own=own)
    trainer = build_trainer(parts, shaping=[stage])
    record = trainer.step()
    rollouts = [r for g in record.groups for r in g.rollouts]
    scores = torch.tensor([r.score.value for r in rollouts])
    bonus = record.rewards.sum(1) - scores
    for row, rollout in enumerate(rollouts):
        states = frozen([rollout, *(gold_rollout(rollout.prompt, ids) for ids in golds(rollout.prompt))])
        cosine = torch.nn.functional.cosine_similarity(states[:1], states[1:]).max()
        if not own or row == 0:  # after the update the policy's own states have moved; before it they were the same
            assert float(bonus[row]) == pytest.approx(0.5 * float(cosine), abs=1e-4)
    assert read(record.metrics)["actor/repr/ref_gold_align/gate"] == 1
    asked = list(spy.seen)
    assert asked == ([8] if own else [16, 8])  # 4 prompts x 2 gold answers; the policy knows the 16 answers' states
    trainer.step()
    again = spy.seen[len(asked) :]
    assert again == ([8] if own else [16, 4])  # of the next 4 prompts, 2 are new to a frozen encoder
    trainer.close()


def test_an_answer_that_is_the_gold_answer_has_similarity_one():
    parts = build_parts()
    encode = PolicyEncoder(parts.actor)
    prompt = Prompt(row=0, ids=(65, 66), text="AB")
    first, second = encode([gold_rollout(prompt, (104, 257)), gold_rollout(prompt, (104, 257))])
    assert float(torch.nn.functional.cosine_similarity(first, second, dim=0)) == pytest.approx(1.0)


def test_a_prompt_without_a_gold_answer_gets_no_bonus():
    parts = build_parts()
    stage = Alignment(
        weight=half,
        threshold=0.0,
        golds=lambda p: golds(p) if p.row else [],
        encode=PolicyEncoder(parts.actor),
        own=True,
    )
    trainer = build_trainer(parts, shaping=[stage])
    record = trainer.step()
    scores = torch.tensor([r.score.value for g in record.groups for r in g.rollouts])
    bonus = record.rewards.sum(1) - scores
    assert bonus[:4].abs().max() < 1e-6 and bonus[4:].abs().min() > 1e-3
    trainer.close()


class Recorder:
    """A reference that keeps what it is shown."""

    def __init__(self) -> None:
        self.batches = []

    def log_probs(self, batch, *, hidden: bool = False) -> TokenStats:
        self.batches.append(batch)
        return TokenStats(log_probs=torch.zeros_like(batch.mask), hidden=torch.zeros(batch.rows, 2))


def test_a_frozen_encoder_cuts_the_prompt_from_the_left_and_encodes_anew_where_tokens_differ():
    tokenizer, seen = byte_tokenizer(), Recorder()
    prompt = Prompt(row=0, ids=(65, 66, 67), text="ABC")
    FrozenEncoder(lambda: seen, max_length=4)([gold_rollout(prompt, (104, 105, 257))])
    assert seen.batches[0].ids[0, :4].tolist() == [67, 104, 105, 257]
    hi = tuple(tokenizer("hi")["input_ids"])
    FrozenEncoder(lambda: seen, max_length=9, tokenizers=(tokenizer, tokenizer))([gold_rollout(prompt, (*hi, 257))])
    assert seen.batches[1].response_ids.tolist() == [list(hi)]  # the end of a turn is no text


def test_gold_answers_come_from_the_key_or_a_column():
    tokenizer = byte_tokenizer()
    prompt = Prompt(row=0, ids=(1,), text="", ground_truth={"target": ["a", "b"]}, columns={"gold": "c", "none": None})
    found = partial(gold_ids, prompt, tokenizer=tokenizer, end=257)
    a, b, c = (tokenizer(letter)["input_ids"][0] for letter in "abc")
    assert found(key=None) == [(a, 257), (b, 257)]
    assert found(key="gold") == [(c, 257)]
    assert found(key="none") == found(key="missing") == []


def test_neighbours_with_one_prompt_share_it():
    prompt, other = Prompt(row=0, ids=(65,), text="A"), Prompt(row=1, ids=(66,), text="B")
    batch = batch_of([gold_rollout(prompt, (1, 2)), gold_rollout(prompt, (3,)), gold_rollout(other, (4,))])
    assert batch.group.tolist() == [0, 0, 1]
    assert gold_rollout(prompt, (1, 2)).authors == (Author.MODEL, Author.MODEL)


def test_a_correction_weighs_and_rejects_before_the_advantages():
    correction = SamplerCorrection(
        Correction(is_level="token", threshold=1.5, rules=(Rule(statistic="token_k1", lower=0.999999, upper=1.000001),))
    )
    trainer = build_trainer(build_parts(), correction=correction)
    record = trainer.step()
    metrics = read(record.metrics)
    assert record.experience.weights is not None and record.experience.keep is not None
    torch.testing.assert_close(
        record.experience.weights, record.experience.batch.mask, atol=1e-4, rtol=0
    )  # float32 against float32: the weights are 1 but for rounding
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-4)
    assert 0 <= metrics["rollout_corr/rollout_rs_masked_fraction"] <= 1
    trainer.close()


def test_a_sampler_that_is_far_off_is_rejected():
    trainer = build_trainer(build_parts(), correction=SamplerCorrection(PRESETS["decoupled_geo_rs_token_tis"]))
    before = [tensor.detach().clone() for _, tensor in trainer.actor.weights()]
    groups = trainer.collect(trainer.prompts.batch(0, 4))
    far = [
        replace(g, rollouts=tuple(replace(r, segments=tuple(_shifted(s) for s in r.segments)) for r in g.rollouts))
        for g in groups
    ]
    record = trainer.learn(far, Stopwatch())
    assert record.experience.mask.sum() == 0
    assert read(record.metrics)["rollout_corr/rollout_rs_seq_masked_fraction"] == 1
    after = [tensor for _, tensor in trainer.actor.weights()]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))  # nothing is left to learn from
    trainer.close()


def _shifted(segment):
    return replace(segment, log_probs=tuple(x - 1.0 for x in segment.log_probs))
