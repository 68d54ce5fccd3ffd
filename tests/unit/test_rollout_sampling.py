"""The random numbers, the transforms and the draw."""

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cohort.errors import UserError
from cohort.protocols import Sampling, SeedKey
from cohort.rollout.sampling import Settings, check_sampling, draw, log_distribution, sample, streams, uniforms


def key(seed=0, step=0, prompt=0, sample=0):
    return SeedKey(seed=seed, step=step, prompt=prompt, sample=sample)


def grid(count=200):
    """Uniforms of ``count`` samples at ``count`` positions."""
    stream = streams([key(sample=i) for i in range(count)])
    return uniforms(stream[:, None], torch.arange(count))


def test_draws_are_uniform():
    u = grid().flatten()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 4 * (1 / 12 / len(u)) ** 0.5
    observed = torch.histc(u, 100, 0, 1)
    chi2 = float(((observed - len(u) / 100) ** 2 / (len(u) / 100)).sum())
    assert 50 < chi2 < 160  # 99 degrees of freedom: 6 sigma to each side


@pytest.mark.parametrize("field", ["seed", "step", "prompt", "sample", "position"])
def test_neighbours_are_not_correlated(field):
    count = 20_000
    if field == "position":
        u = uniforms(streams([key()]), torch.arange(count))
    else:
        u = uniforms(streams([key(**{field: i}) for i in range(count)]), torch.zeros(1, dtype=torch.int64))
    for lag in (1, 2, 256):
        r = torch.corrcoef(torch.stack((u[:-lag], u[lag:])))[0, 1]
        assert abs(r) < 5 / count**0.5


def test_fields_do_not_stand_in_for_each_other():
    names = ("seed", "step", "prompt", "sample")
    keys = [key(), *(key(**{name: value}) for name in names for value in (1, 2)), key(seed=1, step=1), key(seed=-1)]
    assert len(set(streams(keys).tolist())) == len(keys)


def test_draws_are_pinned():
    """These numbers are a contract: a run that is resumed elsewhere, or later, draws the same tokens."""
    u = uniforms(streams([key(), key(1, 2, 3, 4)])[:, None], torch.tensor([0, 1, 1000]))
    assert u.tolist() == [
        [0.9243873295355232, 0.31220498762947324, 0.5997551902320198],
        [0.6402010340784198, 0.1645950106969296, 0.21653235663891524],
    ]


def test_a_draw_does_not_depend_on_its_batch():
    stream, positions = streams([key(prompt=i) for i in range(7)]), torch.arange(7)
    together = uniforms(stream, positions)
    alone = [float(uniforms(stream[i : i + 1], positions[i : i + 1])) for i in range(7)]
    assert together.tolist() == alone


CASES = [
    dict(temperature=0.7),
    dict(top_k=5),
    dict(top_k=1),
    dict(top_p=0.8),
    dict(top_p=0.05),
    dict(min_p=0.2),
    dict(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
]


@pytest.mark.parametrize("options", CASES)
def test_transforms_equal_the_warpers_of_transformers(options):
    logits = torch.randn(64, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    logits[:8, 3] = logits[:8, 7]  # ties
    expected = TemperatureLogitsWarper(options["temperature"])(None, logits) if "temperature" in options else logits
    for name, warper in (("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)):
        if name in options:
            expected = warper(options[name])(None, expected)
    got = log_distribution(logits, Settings.of([Sampling(**options)] * 64))
    torch.testing.assert_close(got, expected.log_softmax(-1), rtol=1e-6, atol=1e-6)


def test_rows_keep_their_own_settings():
    logits = torch.randn(len(CASES) + 1, 50, generator=torch.Generator().manual_seed(1)) * 3
    samplings = [Sampling(**options) for options in CASES] + [Sampling()]
    together = log_distribution(logits, Settings.of(samplings))
    for i, sampling in enumerate(samplings):
        alone = log_distribution(logits[i : i + 1], Settings.of([sampling]))
        torch.testing.assert_close(together[i : i + 1], alone)


def test_draws_follow_the_distribution():
    log_probs = torch.tensor([0.5, 0.0, 0.2, 0.3, 0.0]).log()
    u = grid().flatten()
    share = torch.bincount(draw(log_probs.expand(len(u), 5), u), minlength=5) / len(u)
    torch.testing.assert_close(share, log_probs.exp(), atol=0.01, rtol=0)
    assert share[1] == share[4] == 0


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_without_probability_is_never_drawn(uniform, dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 300, dtype=dtype, generator=generator) * 10
    logits[torch.rand(500, 300, generator=generator) < 0.9] = float("-inf")
    logits[:, 150] = 0.0
    log_probs = logits.log_softmax(-1)
    token = draw(log_probs, torch.full((500,), uniform, dtype=torch.float64))
    assert (log_probs.gather(1, token[:, None]).exp() > 0).all()


def test_greedy_takes_the_likeliest_and_reports_its_log_prob_at_temperature_one():
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(2))
    samplings = [Sampling(temperature=0.0), Sampling(temperature=2.0)] * 3
    tokens, log_probs = sample(logits, Settings.of(samplings), torch.full((6,), 0.99, dtype=torch.float64))
    assert tokens[::2].tolist() == logits[::2].argmax(-1).tolist()
    expected = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(log_probs[::2], expected[::2])
    warm = (logits / 2).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(log_probs[1::2], warm[1::2])


def test_large_vocabularies_are_worked_on_in_slices(monkeypatch):
    logits = torch.randn(9, 100, generator=torch.Generator().manual_seed(3))
    settings = Settings.of([Sampling(top_k=7, temperature=0.5 + i / 10) for i in range(9)])
    u = uniforms(streams([key(sample=i) for i in range(9)]), torch.arange(9))
    whole = sample(logits, settings, u)
    monkeypatch.setattr("cohort.rollout.sampling.MOST_ELEMENTS", 250)
    sliced = sample(logits, settings, u)
    assert torch.equal(whole[0], sliced[0])
    assert torch.equal(whole[1], sliced[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(temperature=-1.0), "temperature=-1.0 must be 0"),
        (dict(top_k=-2), "top_k=-2"),
        (dict(top_p=0.0), "top_p=0.0"),
        (dict(min_p=1.5), "min_p=1.5"),
        (dict(stop=("",)), "stop="),
    ],
)
def test_meaningless_settings_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        check_sampling(Sampling(**options))
