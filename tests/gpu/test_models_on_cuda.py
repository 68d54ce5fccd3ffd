"""Policy and critic on one CUDA device: the CPU's numbers in float32, and a bfloat16 update."""

from itertools import product

import pytest
import torch

from cohort.algorithms.registry import POLICY_LOSSES
from cohort.metrics import read
from cohort.models.build import pick_device, resolve_precision
from cohort.models.critic import LocalCritic
from cohort.models.forward import token_stats
from cohort.models.layout import Layout
from cohort.models.objective import Objective
from cohort.models.optim import OptimSettings
from cohort.models.policy import LocalPolicy
from tests.batches import UNEVEN, make_batch, make_experience
from tests.tiny import tiny_model, tiny_value_model

pytestmark = pytest.mark.gpu
LAYOUTS = [Layout(packed=p, share_prompt=s, checkpointing=c) for p, s, c in product([False, True], repeat=3)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_numbers_of_the_cpu(layout):
    batch = make_batch(UNEVEN)

    def run(device):
        model = tiny_model(dtype=torch.float64).to(device)
        stats = token_stats(model, batch, temperature=0.8, layout=layout, entropy=True)
        stats.log_probs.sum().backward()
        return stats.log_probs.detach().cpu(), [p.grad.cpu() for p in model.parameters()]

    found, expected = run("cuda"), run("cpu")
    assert (found[0] - expected[0]).abs().max() < 1e-5
    for x, y in zip(found[1], expected[1], strict=True):
        assert (x - y).norm() <= 1e-5 * y.norm()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_update_in_bfloat16(layout):
    policy = LocalPolicy(
        tiny_model().to(pick_device("auto")),
        objective=Objective(policy_loss=POLICY_LOSSES["vanilla"].function, kl_coef=0.1),
        optim=OptimSettings(lr=1e-3),
        layout=layout,
        compute_dtype=resolve_precision(torch.device("cuda"), 10),
    )
    assert policy.compute.dtype == torch.bfloat16
    update = policy.update(make_experience(make_batch(UNEVEN), old=False))
    seen = read(update.metrics)
    assert seen["actor/skipped_updates"] == seen["actor/pg_clipfrac"] == 0
    assert seen["actor/weights_changed_share"] > 0.5
    assert update.stats.log_probs.device.type == "cpu"
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_critic_has_the_values_of_the_cpu_and_updates_in_bfloat16(layout):
    experience = make_experience(make_batch(UNEVEN))
    optim = OptimSettings(lr=1e-3)
    here, there = (
        LocalCritic(tiny_value_model(dtype=torch.float64).to(device), optim=optim, layout=layout)
        for device in ("cpu", "cuda")
    )
    assert (here.values(experience.batch) - there.values(experience.batch)).abs().max() < 1e-5
    critic = LocalCritic(tiny_value_model().cuda(), optim=optim, layout=layout, compute_dtype=torch.bfloat16)
    assert critic.values(experience.batch).device.type == "cpu"
    seen = read(critic.update(experience).metrics)
    assert seen["critic/skipped_updates"] == 0
    assert seen["critic/weights_changed_share"] > 0.5
    assert all(p.dtype == torch.float32 for p in critic.model.parameters())
