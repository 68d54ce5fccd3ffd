"""Which KL kinds have which gradient: the table at the top of ``algorithms/kl.py``, measured.

A policy over five tokens, 40 000 draws, a fixed seed. "Within three standard errors" holds for
each of the five components on its own. What is said of whole answers is summed over all of them, exactly.
"""

import pytest
import torch

from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.shaping import kl_in_reward

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
BASE_AS_REWARD = {"kl": REVERSE, "k1": REVERSE, "low_var_kl": REVERSE - FORWARD, "k3": REVERSE - FORWARD}
AS_REWARD = {kind: BASE_AS_REWARD.get(kind.removesuffix("+")) for kind in KL_KINDS}  # a plus changes no value


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
    for other in (REVERSE, FORWARD, NOTHING):
        if claim is not other:
            assert errors(gradient, other).max() > 10


@pytest.mark.parametrize("kind", AS_REWARD)
def test_as_a_reward(kind):
    value, _, score = draws(kind)
    gradient = value * score
    claim = AS_REWARD[kind]
    if claim is not None:
        assert errors(gradient, claim).max() < 3
        assert torch.dot(gradient.mean(0), claim) > 0
    for other in (REVERSE, FORWARD, REVERSE - FORWARD, NOTHING):
        if claim is None or not torch.equal(claim, other):
            assert errors(gradient, other).max() > 10


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_values(kind):
    value, _, _ = draws(kind)
    p = torch.log_softmax(LOGITS, 0)
    assert errors(value, (p.exp() * (p - REFERENCE)).sum()[None]).max() < 3


def test_k3_varies_less_than_k1():
    assert draws("k3")[0].var() < draws("k1")[0].var()


# --- whole answers: two tokens out of three, the second drawn given the first ---------------------------

FIRST = torch.tensor([0.7, -0.3, 0.1], dtype=torch.float64)
SECOND = torch.tensor([[0.2, -1.0, 0.5], [1.1, 0.0, -0.4], [-0.6, 0.3, 0.9]], dtype=torch.float64)
REF_FIRST = torch.log_softmax(torch.tensor([-0.4, 0.6, 0.2], dtype=torch.float64), 0)
REF_SECOND = torch.log_softmax(SECOND.flip(0) * 1.5 - 0.2 * SECOND, 1)
ANSWERS = torch.cartesian_prod(torch.arange(3), torch.arange(3))  # all nine
EVERY = torch.ones(9, 2, dtype=torch.float64)


def answers_log_probs(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Log-probs of each token of each answer  # (9, 2)."""
    one, two = ANSWERS.unbind(1)
    return torch.stack([torch.log_softmax(first, 0)[one], torch.log_softmax(second, 1)[one, two]], dim=1)


REF_ANSWERS = torch.stack([REF_FIRST[ANSWERS[:, 0]], REF_SECOND[ANSWERS[:, 0], ANSWERS[:, 1]]], dim=1)


def policy_gradient(objective) -> torch.Tensor:
    """Gradient in all logits of a function of the answers' log-probs  # (12,)."""
    logits = [FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()]
    return torch.cat([g.flatten() for g in torch.autograd.grad(objective(answers_log_probs(*logits)), logits)])


def kl_of_answers(log_probs: torch.Tensor) -> torch.Tensor:
    whole = log_probs.sum(1)
    return (whole.exp() * (whole - REF_ANSWERS.sum(1))).sum()


def kl_of_tokens(log_probs: torch.Tensor) -> torch.Tensor:
    """KL of each token given its prefix, averaged over prefixes that carry no gradient."""
    before = torch.stack([torch.zeros(9, dtype=torch.float64), log_probs[:, 0].detach()], dim=1).exp()
    duplicates = torch.tensor([1 / 3, 1.0], dtype=torch.float64)  # each first token stands in three answers
    return (before * duplicates * log_probs.exp() * (log_probs - REF_ANSWERS)).sum()


@pytest.mark.parametrize("to_go", [False, True])
@pytest.mark.parametrize("kind", ["kl", "k1", "k1+"])
def test_k1_in_the_reward_is_the_kl_of_whole_answers(kind, to_go):
    """Maximising the penalised reward descends beta KL(policy || reference): exactly, sign included."""
    beta = 0.3
    target = beta * policy_gradient(kl_of_answers)

    def loss(log_probs: torch.Tensor) -> torch.Tensor:
        rewards, _ = kl_in_reward(torch.zeros_like(EVERY), log_probs, REF_ANSWERS, EVERY, beta, kind)
        whole = rewards.sum(1, keepdim=True)
        advantages = rewards.flip(1).cumsum(1).flip(1) if to_go else whole
        chance = log_probs.detach().sum(1, keepdim=True).exp()
        return -(chance * advantages * log_probs).sum()

    torch.testing.assert_close(policy_gradient(loss), target, atol=1e-12, rtol=1e-12)
    assert target.norm() > 0.01


@pytest.mark.parametrize("kind", ["k2", "mse", "k1+", "abs+", "k3+", "low_var_kl+"])
def test_in_the_loss_it_is_the_kl_of_each_token_given_its_prefix(kind):
    def loss(log_probs: torch.Tensor) -> torch.Tensor:
        chance = log_probs.detach().sum(1, keepdim=True).exp()
        return (chance * kl_penalty(log_probs, REF_ANSWERS, kind, EVERY)).sum()

    found = policy_gradient(loss)
    torch.testing.assert_close(found, policy_gradient(kl_of_tokens), atol=1e-12, rtol=1e-12)
    of_answers = policy_gradient(kl_of_answers)
    assert (found - of_answers)[:3].norm() > 0.01  # the first token's effect on the second is not seen,
    torch.testing.assert_close(found[3:], of_answers[3:], atol=1e-12, rtol=1e-12)  # and the last token has none
