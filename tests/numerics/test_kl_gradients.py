"""Which KL kinds have which gradient: the table at the top of ``algorithms/kl.py``, measured.

A policy over five tokens, 40 000 draws, a fixed seed. "Within three standard errors" holds for
each of the five components on its own.
"""

import pytest
import torch

from cohort.algorithms.kl import KL_KINDS, kl_penalty

DRAWS = 40_000
LOGITS = torch.tensor([0.9, -0.4, 0.3, -1.2, 0.1], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([-0.5, 0.8, 0.2, 0.3, -0.9], dtype=torch.float64), 0)


def gradient_of(function) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(torch.log_softmax(logits, 0)), logits)
    return gradient


REVERSE = gradient_of(lambda p: (p.exp() * (p - REFERENCE)).sum())  # of KL(policy || reference)
FORWARD = gradient_of(lambda p: (REFERENCE.exp() * (REFERENCE - p)).sum())  # of KL(reference || policy)
NOTHING = torch.zeros(5, dtype=torch.float64)

AS_LOSS = {
    "kl": NOTHING,
    "k1": NOTHING,
    "mse": REVERSE,
    "k2": REVERSE,
    "low_var_kl": FORWARD,
    "k3": FORWARD,
    "abs": None,
    **{kind: REVERSE for kind in KL_KINDS if kind.endswith("+")},
}
AS_REWARD = {"k1": REVERSE, "k3": REVERSE - FORWARD, "k2": None, "abs": None}


def draws(kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per draw: the KL estimate, its gradient in the logits, and the gradient of the draw's log-prob."""
    generator = torch.Generator().manual_seed(2024)
    tokens = torch.multinomial(torch.softmax(LOGITS, 0), DRAWS, replacement=True, generator=generator)
    logits = LOGITS.repeat(DRAWS, 1).requires_grad_()  # one copy per draw, so that gradients stay apart
    log_probs = torch.log_softmax(logits, 1).gather(1, tokens[:, None])
    estimate = kl_penalty(log_probs, REFERENCE[tokens][:, None], kind)
    (of_estimate,) = torch.autograd.grad(estimate.sum(), logits, retain_graph=True)
    (of_log_prob,) = torch.autograd.grad(log_probs.sum(), logits)
    return estimate.detach(), of_estimate, of_log_prob


def errors(samples: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Distance of the mean from the target, component by component, in standard errors."""
    return (samples.mean(0) - target).abs() / (samples.std(0) / DRAWS**0.5)


@pytest.mark.parametrize("kind", KL_KINDS)
def test_as_a_loss(kind):
    _, gradient, _ = draws(kind)
    claim = AS_LOSS[kind]
    if claim is not None:
        assert errors(gradient, claim).max() < 3
        assert claim is NOTHING or torch.dot(gradient.mean(0), claim) > 0
    if claim is not REVERSE:
        assert errors(gradient, REVERSE).max() > 10


@pytest.mark.parametrize("kind", AS_REWARD)
def test_as_a_reward(kind):
    value, _, score = draws(kind)
    gradient = value * score
    claim = AS_REWARD[kind]
    if claim is not None:
        assert errors(gradient, claim).max() < 3
    if claim is not REVERSE:
        assert errors(gradient, REVERSE).max() > 10


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_values(kind):
    value, _, _ = draws(kind)
    p = torch.log_softmax(LOGITS, 0)
    assert errors(value, (p.exp() * (p - REFERENCE)).sum()[None]).max() < 3


def test_k3_varies_less_than_k1():
    assert draws("k3")[0].var() < draws("k1")[0].var()
