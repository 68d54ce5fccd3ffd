"""Memory settings change no number: the gradient is the same however a minibatch is cut and laid out.

The product {prompts shared, not} x {padded, packed} x {activation checkpointing, not} x {full, LoRA} x micro-batch
sizes runs through ``LocalPolicy.update`` itself. Tolerances: relative norm of the difference per tensor, 1e-9 on
GPT-2 in float64, which has no float32 islands; 1e-6 on models whose norms and RoPE stay float32.
"""

from functools import cache, partial
from itertools import product

import pytest
import torch

from cohort.algorithms.masking import counts
from cohort.algorithms.registry import POLICY_LOSSES
from cohort.models.build import add_lora, trainable
from cohort.models.forward import Layout
from cohort.models.micro import Budget
from cohort.models.objective import Objective
from cohort.models.optim import OptimSettings
from cohort.models.policy import Alone, LocalPolicy
from tests.batches import UNEVEN, make_batch, make_experience
from tests.tiny import tiny_model

LAYOUTS = [Layout(packed=p, share_prompt=s, checkpointing=c) for p, s, c in product([False, True], repeat=3)]
BUDGETS = [
    Budget(max_rows=1),
    Budget(max_rows=3),
    Budget(),
    Budget(max_tokens=40),
    Budget(max_tokens=1),
    Budget(max_tokens=64, max_rows=2),
]
PLAIN = Layout(packed=False, share_prompt=False, checkpointing=False)
TOLERANCE = {"gpt2": 1e-9}
OBJECTIVE = Objective(policy_loss=POLICY_LOSSES["vanilla"].function, entropy_coeff=0.01, kl_coef=0.1)


class Recorder(Alone):
    """Keeps the gradients of an update. ``whole`` plays the counts of a minibatch that other replicas share."""

    def __init__(self, whole=None):
        self.whole = whole

    def sum(self, values):
        return self.whole if self.whole is not None and values.shape == (2,) else values

    def gradients(self, parameters):
        self.seen = [p.grad.clone() for p in parameters]


def build(architecture, lora):
    model = tiny_model(architecture, dtype=torch.float64, scale=2.0)
    if architecture == "qwen3_moe":
        model.set_experts_implementation("eager")  # the grouped kernel has no float64
    if lora:
        targets = ["c_attn", "c_fc", "lm_head"] if architecture == "gpt2" else ["q_proj", "down_proj", "lm_head"]
        model = add_lora(model, rank=2, alpha=4, target_modules=targets).double()
        generator = torch.Generator().manual_seed(1)
        for name, parameter in trainable(model):
            if "lora_B" in name:  # zero at the start, which would hide the gradient of A
                parameter.data.normal_(std=0.1, generator=generator)
    return model


def gradients(architecture, layout, budget, *, lora=False, rows=None, objective=OBJECTIVE, groups=tuple(UNEVEN)):
    """The gradient of one update, and its metrics."""
    experience = make_experience(make_batch(groups), dtype=torch.float64)
    recorder = Recorder(counts(experience.batch.mask) if rows is not None else None)
    policy = LocalPolicy(
        build(architecture, lora),
        objective=objective,
        optim=OptimSettings(lr=0.0, optimizer="SGD", clip_grad=None),
        temperature=0.7,
        layout=layout,
        budget=budget,
        reduce=recorder,
    )
    assert policy.layout_note == ""
    update = policy.update(experience if rows is None else experience.select(torch.tensor(rows)))
    return recorder.seen, update


@cache
def plain(architecture, lora):
    return gradients(architecture, PLAIN, Budget(), lora=lora)


def assert_equal(found, expected, tolerance):
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= tolerance * y.norm(), f"{float((x - y).norm() / y.norm()):.2g}"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda x: f"{'p' * x.packed}{'s' * x.share_prompt}{'c' * x.checkpointing}"
)
def test_the_full_product_on_a_float64_model(layout, lora):
    expected, reference = plain("gpt2", lora)
    assert any(g.norm() > 0 for g in expected)
    for budget in BUDGETS:
        found, update = gradients("gpt2", layout, budget, lora=lora)
        assert_equal(found, expected, 1e-9)
        assert torch.allclose(update.stats.log_probs, reference.stats.log_probs, rtol=0, atol=1e-12)
        for name in ("actor/loss", "actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/pg_clipfrac"):
            assert update.metrics[name].read() == pytest.approx(reference.metrics[name].read(), rel=1e-9), name


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "mistral", "qwen3_moe"])
def test_the_product_on_models_with_float32_islands(architecture):
    expected, _ = plain(architecture, False)
    for layout, budget in product(LAYOUTS, [Budget(), Budget(max_rows=3)]):
        assert_equal(gradients(architecture, layout, budget)[0], expected, 1e-6)


def test_lora_on_a_model_with_float32_islands():
    expected, _ = plain("qwen3", True)
    for layout in LAYOUTS:
        assert_equal(gradients("qwen3", layout, Budget(max_rows=4), lora=True)[0], expected, 1e-6)


@pytest.mark.parametrize(
    "split", [([0, 1, 2], [3, 4, 5, 6, 7, 8, 9, 10, 11]), ([0, 3, 7, 11, 5], [1, 2, 4, 6, 8, 9, 10])]
)
def test_two_replicas_add_up_to_one(split):
    expected, _ = plain("gpt2", False)
    first, second = (gradients("gpt2", Layout(), Budget(max_rows=3), rows=rows)[0] for rows in split)
    assert_equal([a + b for a, b in zip(first, second, strict=True)], expected, 1e-9)


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_every_aggregation_ignores_micro_batches(aggregation):
    objective = Objective(
        policy_loss=partial(POLICY_LOSSES["vanilla"].function, clip_high=0.28),
        aggregation=aggregation,
        kl_coef=0.1,
        horizon=48,
    )
    run = partial(gradients, "gpt2", objective=objective)
    expected, _ = run(PLAIN, Budget())
    for budget in (Budget(max_rows=1), Budget(max_rows=5)):
        assert_equal(run(Layout(), budget)[0], expected, 1e-9)


def test_padding_of_the_batch_changes_nothing():
    """A long neighbour widens the tensors of everybody else."""
    short, long = UNEVEN[:3], [*UNEVEN[:3], (3, [(0, 120)])]  # the extra row has no token of the model's
    assert_equal(
        gradients("gpt2", Layout(), Budget(), groups=tuple(long))[0],
        gradients("gpt2", PLAIN, Budget(), groups=tuple(short))[0],
        1e-9,
    )
