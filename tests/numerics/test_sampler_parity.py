"""The embedded engine against Hugging Face's own forward pass and ``model.generate``."""

import asyncio

import pytest
import torch

from cohort.protocols import Request, Sampling, SeedKey
from cohort.rollout.hf import HFSampler
from cohort.rollout.native import NativeSampler
from cohort.rollout.sampling import streams, uniforms
from tests.tiny import tiny_model

ARCHITECTURES = ["qwen2", "qwen3", "llama", "mistral", "gpt2", "qwen3_moe"]
EOS = 257
GAP = 1e-4
"""Where the two likeliest logits are closer than this, rounding may decide."""


def model_of(architecture, dtype, **options):
    model = tiny_model(architecture, dtype=dtype, **options)
    if architecture == "qwen3_moe" and dtype is torch.float64:
        model.config._experts_implementation = "eager"  # the grouped product has no float64
    return model


def requests(prompts=3, samples=3, *, seed=0, **options):
    """Prompts of uneven lengths; the last one begins like the one before."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 250, (4 + 9 * p,), generator=generator).tolist() for p in range(prompts - 1)]
    ids.append(ids[-1] + [5, 6, 7])
    return [
        Request(
            ids=tuple(ids[p]),
            sampling=Sampling(**options),
            key=SeedKey(seed=seed, step=1, prompt=p, sample=s),
        )
        for p in range(prompts)
        for s in range(samples)
    ]


def complete(sampler, asked):
    async def work():
        return await asyncio.gather(*[sampler.complete(request) for request in asked])

    return asyncio.run(work())


@torch.no_grad()
def teacher_forced(model, request, completion, temperature=1.0):
    """Logits that predict each token of the completion, from one forward pass over the whole  # (T, V)."""
    ids = torch.tensor([request.ids + completion.ids])
    return model(input_ids=ids, use_cache=False).logits[0, len(request.ids) - 1 : -1] / temperature


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_answers_equal_those_of_generate_in_float64(architecture):
    model = model_of(architecture, torch.float64)
    asked = requests(temperature=0.0, max_tokens=24)
    native = complete(NativeSampler(model, eos_ids=[EOS], slots=4), asked)
    slow = complete(HFSampler(model, eos_ids=[EOS]), asked)
    for request, ours, theirs in zip(asked, native, slow, strict=True):
        if ours.ids != theirs.ids:
            first = next(i for i, (a, b) in enumerate(zip(ours.ids, theirs.ids, strict=False)) if a != b)
            top = teacher_forced(model, request, ours)[first].topk(2).values
            assert top[0] - top[1] < GAP, f"token {first} differs, and not by rounding"
        else:
            assert ours.finish_reason is theirs.finish_reason
            torch.testing.assert_close(torch.tensor(ours.log_probs), torch.tensor(theirs.log_probs))
            expected = teacher_forced(model, request, ours).argmax(-1)
            assert expected.tolist() == list(ours.ids)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sampled_answers_equal_those_of_generate(architecture):
    """The draws are the same numbers; ``generate`` hands out float32 logits, which may decide a draw at a border."""
    model = model_of(architecture, torch.float64)
    asked = requests(temperature=0.8, max_tokens=16)
    native = complete(NativeSampler(model, eos_ids=[EOS], slots=5), asked)
    slow = complete(HFSampler(model, eos_ids=[EOS], slots=4), asked)
    for request, ours, theirs in zip(asked, native, slow, strict=True):
        if ours.ids != theirs.ids:
            first = next(i for i, (a, b) in enumerate(zip(ours.ids, theirs.ids, strict=False)) if a != b)
            probs = teacher_forced(model, request, ours, 0.8)[first].softmax(-1)
            u = uniforms(streams([request.key]), torch.tensor([len(request.ids) + first]))
            assert (probs.cumsum(-1) - u).abs().min() < 1e-6, f"token {first} differs, and not by rounding"


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probs_equal_a_teacher_forced_pass_in_float32(architecture, temperature):
    model = model_of(architecture, torch.float32)
    asked = requests(4, 4, temperature=temperature, max_tokens=32)
    errors = []
    for request, got in zip(asked, complete(NativeSampler(model, eos_ids=[EOS], slots=6), asked), strict=True):
        log_probs = teacher_forced(model, request, got, temperature).log_softmax(-1)
        expected = log_probs.gather(1, torch.tensor(got.ids)[:, None])[:, 0]
        errors.append((expected - torch.tensor(got.log_probs)).abs())
    errors = torch.cat(errors)
    assert errors.mean() < 1e-5
    assert errors.max() < 1e-4


@pytest.mark.parametrize("options", [dict(top_k=8), dict(top_p=0.7), dict(min_p=0.5)])
def test_log_probs_are_of_the_distribution_that_was_drawn_from(options):
    model = model_of("qwen3", torch.float64)
    asked = requests(2, 8, temperature=1.5, max_tokens=12, **options)
    for request, got in zip(asked, complete(NativeSampler(model, eos_ids=[EOS]), asked), strict=True):
        full = teacher_forced(model, request, got, 1.5).log_softmax(-1)
        full = full.gather(1, torch.tensor(got.ids)[:, None])[:, 0]
        renormalised = torch.tensor(got.log_probs, dtype=torch.float64) - full
        assert (renormalised > 0).all()  # tokens were dropped, what is left weighs more


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2", "qwen3_moe"])
def test_tokens_do_not_depend_on_what_else_is_in_the_batch_in_float64(architecture):
    model = model_of(architecture, torch.float64)
    asked = requests(3, 3, temperature=1.0, max_tokens=12)
    alone = [complete(NativeSampler(model, eos_ids=[EOS]), [request])[0].ids for request in asked]
    for slots in (2, 5):
        assert [c.ids for c in complete(NativeSampler(model, eos_ids=[EOS], slots=slots), asked)] == alone
    assert [c.ids for c in complete(NativeSampler(model, eos_ids=[EOS]), asked[::-1])] == alone[::-1]


def test_the_same_schedule_gives_the_same_bits():
    model = model_of("qwen3", torch.float32)
    asked = requests(4, 4, max_tokens=24)
    first = complete(NativeSampler(model, eos_ids=[EOS], slots=7), asked)
    assert complete(NativeSampler(model, eos_ids=[EOS], slots=7), asked) == first
    sampler = NativeSampler(model, eos_ids=[EOS], slots=7)
    assert complete(sampler, asked[::-1])[::-1] == first  # arrival is not part of the schedule
    assert complete(sampler, asked) == first  # nor is what was sampled before


def test_long_conversations_over_a_known_prompt_are_exact():
    """A row that starts with a live prompt computes only what comes behind it."""
    model = model_of("llama", torch.float64)
    sampler = NativeSampler(model, eos_ids=[EOS], slots=8)
    base, tail = tuple(range(10, 60)), tuple(range(100, 120))
    sampling = Sampling(max_tokens=30)
    asked = [
        Request(ids=base, sampling=sampling, key=SeedKey(seed=0, step=0, prompt=0, sample=0)),
        Request(ids=base + tail, sampling=sampling, key=SeedKey(seed=0, step=0, prompt=0, sample=1)),
    ]

    got = complete(sampler, asked)
    assert sampler.counters.prefilled == len(base) + len(tail)
    for request, completion in zip(asked, got, strict=True):
        log_probs = teacher_forced(model, request, completion).log_softmax(-1)
        expected = log_probs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.log_probs, dtype=torch.float64), expected)


def test_half_precision_samples_from_a_cast_copy():
    model = model_of("qwen3", torch.float32)
    sampler = NativeSampler(model, eos_ids=[EOS], dtype=torch.bfloat16)
    asked = requests(3, 4, max_tokens=24)
    errors = []
    for request, got in zip(asked, complete(sampler, asked), strict=True):
        expected = teacher_forced(model, request, got).log_softmax(-1)
        expected = expected.gather(1, torch.tensor(got.ids)[:, None])[:, 0]
        errors.append((expected - torch.tensor(got.log_probs)).abs())
    assert 1e-6 < torch.cat(errors).mean() < 0.2
    assert model.dtype is torch.float32
    assert model.config._attn_implementation == "sdpa"
