"""CHORD's numbers: the schedule, phi, and the mixed gradient, which no memory setting changes."""

import math
from functools import cache
from itertools import product

import pytest
import torch
from torch.nn.functional import cross_entropy

from cohort.algorithms.masking import counts
from cohort.algorithms.registry import POLICY_LOSSES
from cohort.algorithms.schedules import chord_mu
from cohort.algorithms.supervised import demonstration_loss
from cohort.models.build import add_lora, trainable
from cohort.models.forward import Layout
from cohort.models.micro import Budget
from cohort.models.objective import Objective
from cohort.models.optim import OptimSettings
from cohort.models.policy import Alone, LocalPolicy
from cohort.types import Demonstrations
from tests.batches import UNEVEN, make_batch, make_experience
from tests.tiny import tiny_model

PLAIN = Layout(packed=False, share_prompt=False, checkpointing=False)
LAYOUTS = [Layout(packed=p, share_prompt=s, checkpointing=c) for p, s, c in product([False, True], repeat=3)]
BUDGETS = [Budget(max_rows=1), Budget(max_rows=3), Budget(), Budget(max_tokens=40), Budget(max_tokens=1)]
EXPERT = [(4, [7]), (4, [3]), (9, [25]), (1, [1]), (2, [(3, 4, 5)])]
OBJECTIVE = Objective(policy_loss=POLICY_LOSSES["vanilla"].function, entropy_coeff=0.01, kl_coef=0.1)


def test_the_schedule():
    """W=10, D=200, from 0.9 to 0.05; numbers of ms-swift."""
    golden = {0: 0, 5: 0.45, 10: 0.9, 60: 0.77552, 110: 0.475, 210: 0.05, 10_000: 0.05}
    for step, mu in golden.items():
        assert chord_mu(step, warmup=10, decay=200, peak=0.9, valley=0.05) == pytest.approx(mu, abs=5e-6), step
    assert {chord_mu(step, warmup=0, decay=200, peak=0.3, valley=0.3) for step in range(300)} == {0.3}
    assert chord_mu(0, warmup=0, decay=200, peak=0.9, valley=0.05) == 0.9


# --- the loss per token -------------------------------------------------------------------------


def literal(log_probs, mask, phi):
    """The paper, one token at a time."""
    losses = []
    for row, kept in zip(log_probs, mask, strict=True):
        p = [math.exp(x) for x in row]
        losses.append([-(q * (1 - q) if phi else 1.0) * math.log(q) * m for q, m in zip(p, kept, strict=True)])
    return losses


@pytest.mark.parametrize("phi", [False, True])
def test_the_loss_of_a_token_is_the_papers(phi):
    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(4, 6, generator=generator, dtype=torch.float64) * 6
    mask = (torch.rand(4, 6, generator=generator) < 0.7).double()
    found = demonstration_loss(log_probs, mask, phi=phi)
    expected = torch.tensor(literal(log_probs.tolist(), mask.tolist(), phi), dtype=torch.float64)
    torch.testing.assert_close(found.loss, expected, rtol=1e-12, atol=1e-15)
    assert found.diagnostics.keys() == ({"sft_nll", "sft_phi"} if phi else {"sft_nll"})
    torch.testing.assert_close(found.diagnostics["sft_nll"], -log_probs * mask, rtol=0, atol=0)


def test_phi_by_hand():
    p = torch.tensor([[0.5, 0.9, 0.001, 1.0]], dtype=torch.float64)
    found = demonstration_loss(p.log(), torch.ones_like(p), phi=True)
    weights = torch.tensor([[0.25, 0.09, 0.000999, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found.diagnostics["sft_phi"], weights, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.loss, -weights * p.log())


@pytest.mark.parametrize("phi", [False, True])
def test_the_gradient_by_finite_differences(phi):
    """phi is a constant of the gradient: it is held while the log-prob moves."""
    x = torch.tensor([[-0.3, -2.0, -5.0, -1.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(demonstration_loss(x, mask, phi=phi).loss.sum(), x)
    weight = (x.detach().exp() * (1 - x.detach().exp()) if phi else torch.ones(1, 4).double()) * mask
    step = 1e-6
    for t in range(4):
        up, down = x.detach().clone(), x.detach().clone()
        up[0, t] += step
        down[0, t] -= step
        slope = ((-weight * up).sum() - (-weight * down).sum()) / (2 * step)
        assert float(gradient[0, t]) == pytest.approx(float(slope), rel=1e-7, abs=1e-9)


def test_what_is_off_the_mask_may_be_anything():
    x = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    found = demonstration_loss(x, torch.tensor([[1.0, 0.0, 0.0]]), phi=True)
    (gradient,) = torch.autograd.grad(found.loss.sum(), x)
    assert torch.isfinite(found.loss).all() and gradient[0, 1:].tolist() == [0, 0] and gradient[0, 0] < 0


# --- the mixed gradient -------------------------------------------------------------------------


class Recorder(Alone):
    """Keeps the gradients of an update."""

    def gradients(self, parameters):
        self.seen = [p.grad.clone() for p in parameters]


def build(architecture, lora=False):
    model = tiny_model(architecture, dtype=torch.float64, scale=2.0)
    if lora:
        model = add_lora(model, rank=2, alpha=4, target_modules=["c_attn", "c_fc", "lm_head"]).double()
        generator = torch.Generator().manual_seed(1)
        for name, parameter in trainable(model):
            if "lora_B" in name:
                parameter.data.normal_(std=0.1, generator=generator)
    return model


def expert(weight, phi=False, groups=tuple(EXPERT)):
    return Demonstrations(batch=make_batch(groups, seed=9), weight=weight, phi=phi)


def gradients(layout=PLAIN, budget=Budget(), *, demonstrations=None, lora=False, architecture="gpt2"):
    recorder = Recorder()
    policy = LocalPolicy(
        build(architecture, lora),
        objective=OBJECTIVE,
        optim=OptimSettings(lr=0.0, optimizer="SGD", clip_grad=None),
        temperature=0.7,
        layout=layout,
        budget=budget,
        reduce=recorder,
    )
    update = policy.update(make_experience(make_batch(UNEVEN), dtype=torch.float64), demonstrations=demonstrations)
    return recorder.seen, update


@cache
def mixed(phi, lora):
    return gradients(demonstrations=expert(0.3, phi), lora=lora)


def assert_equal(found, expected, tolerance):
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= tolerance * y.norm(), f"{float((x - y).norm() / y.norm()):.2g}"


def supervised_gradient(demonstrations):
    """Token-mean cross-entropy at temperature 1, through the model's own forward, row by row."""
    model = build("gpt2")
    batch = demonstrations.batch
    total = batch.mask.sum()
    for ids, prompt, response, mask in zip(
        batch.ids, batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), batch.mask, strict=True
    ):
        row = ids[: prompt + response]
        logits = model(input_ids=row[None, :-1]).logits[0, prompt - 1 :]  # (response, V)
        nll = cross_entropy(logits, row[prompt:], reduction="none")
        p = (-nll).detach().exp()
        weight = p * (1 - p) if demonstrations.phi else torch.ones_like(p)
        ((nll * weight * mask[:response]).sum() / total).backward()
    return [p.grad for _, p in trainable(model)]


@pytest.mark.parametrize("phi", [False, True])
def test_a_weight_of_one_is_supervised_learning(phi):
    expected = supervised_gradient(expert(1.0, phi))
    found, update = gradients(demonstrations=expert(1.0, phi))
    assert_equal(found, expected, 1e-9)
    assert update.metrics["actor/loss"].read() == pytest.approx(update.metrics["actor/sft_loss"].read(), rel=1e-12)
    assert update.metrics["actor/sft_tokens"].read() == counts(expert(1.0).batch.mask)[0]


@pytest.mark.parametrize("phi", [False, True])
def test_the_mixed_gradient_is_the_weighted_sum_of_both(phi):
    alone, plain = gradients()
    demonstrated = supervised_gradient(expert(0.3, phi))
    found, update = mixed(phi, False)
    assert_equal(found, [0.7 * a + 0.3 * b for a, b in zip(alone, demonstrated, strict=True)], 1e-9)
    whole = 0.7 * plain.metrics["actor/loss"].read() + 0.3 * update.metrics["actor/sft_loss"].read()
    assert update.metrics["actor/loss"].read() == pytest.approx(whole, rel=1e-12)
    for name in ("actor/pg_loss", "actor/kl_loss", "actor/entropy"):
        assert update.metrics[name].read() == plain.metrics[name].read()
    assert ("actor/sft_phi" in update.metrics) is phi


@pytest.mark.parametrize(("lora", "phi"), [(False, False), (False, True), (True, True)])
def test_no_memory_setting_changes_the_mixed_gradient(lora, phi):
    expected, reference = mixed(phi, lora)
    for layout, budget in product(LAYOUTS, BUDGETS):
        found, update = gradients(layout, budget, demonstrations=expert(0.3, phi), lora=lora)
        assert_equal(found, expected, 1e-9)
        for name, metric in reference.metrics.items():
            assert update.metrics[name].read() == pytest.approx(metric.read(), rel=1e-9, abs=1e-12), name


def test_a_demonstration_without_a_token_of_the_models_changes_nothing():
    more = expert(0.3, groups=(*EXPERT, (3, [(0, 6)])))
    assert_equal(gradients(demonstrations=more)[0], mixed(False, False)[0], 1e-9)


def test_demonstrations_are_not_weightless():
    for weight in (0.0, -0.1, 1.1):
        with pytest.raises(ValueError, match="more than 0 and at most 1"):
            expert(weight)


def test_a_loss_that_is_not_finite_moves_nothing():
    policy = LocalPolicy(build("gpt2"), objective=OBJECTIVE, optim=OptimSettings(lr=0.1))
    before = [p.detach().clone() for p in policy.model.parameters()]
    batch = make_batch(EXPERT, seed=9)
    experience = make_experience(make_batch(UNEVEN), dtype=torch.float64)
    with torch.no_grad():
        unseen = next(i for i in range(256) if not (experience.batch.ids == i).any() and (batch.ids == i).any())
        policy.model.transformer.wte.weight[unseen] = math.nan
        before[0] = policy.model.transformer.wte.weight.detach().clone()
    update = policy.update(experience, demonstrations=Demonstrations(batch=batch, weight=0.5))
    assert update.metrics["actor/skipped_updates"].read() == 1
    assert update.warning.startswith("update skipped") and "loss on demonstrations is nan" in update.warning
    for x, y in zip(before, policy.model.parameters(), strict=True):
        assert torch.equal(x.nan_to_num(), y.detach().nan_to_num())
