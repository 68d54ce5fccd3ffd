"""Taking new weights and proving what is held."""

import asyncio

import pytest
import torch
from peft import LoraConfig, get_peft_model

from cohort.protocols import WeightMismatch
from cohort.rollout.native import NativeSampler
from tests.tiny import tiny_model
from tests.unit.test_rollout_native import SAMPLERS, cohort, complete


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_training_module_itself_is_held(sampler):
    model = tiny_model("qwen3")
    engine = sampler(model, eos_ids=())
    before = complete(engine, cohort(1, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.load(model.state_dict().items(), 3)
    after = complete(engine, cohort(1, 2))
    assert {v for c in before for v in c.policy_versions} == {0}
    assert {v for c in after for v in c.policy_versions} == {3}
    assert [c.log_probs for c in before] != [c.log_probs for c in after]
    assert after == complete_at(sampler, model, 3, cohort(1, 2))


def complete_at(sampler, model, version, asked):
    engine = sampler(model, eos_ids=())
    engine.load(model.state_dict().items(), version)
    return complete(engine, asked)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_wrong_weights_are_named(sampler, dtype):
    model = tiny_model("qwen3")
    engine = sampler(model, eos_ids=(), dtype=dtype)
    name = "model.layers.1.mlp.up_proj.weight"
    whole = model.state_dict()
    engine.load(whole.items(), 1)
    with pytest.raises(WeightMismatch, match=f"{name} was not sent"):
        engine.load({k: v for k, v in whole.items() if k != name}.items(), 2)
    with pytest.raises(WeightMismatch, match="strange.*does not exist there"):
        engine.load({**whole, "strange": whole[name]}.items(), 2)
    with pytest.raises(WeightMismatch, match=rf"{name} \(3, 3\)"):
        engine.load({**whole, name: torch.zeros(3, 3)}.items(), 2)
    if dtype is None:
        with pytest.raises(WeightMismatch, match=f"{name}: the sampler holds the training module"):
            engine.load({**whole, name: whole[name] + 1e-3}.items(), 2)


def test_a_tensor_that_is_corrupted_on_the_way_is_named(monkeypatch):
    model = tiny_model("qwen3")
    sampler = NativeSampler(model, eos_ids=(), dtype=torch.bfloat16)
    victim = model.state_dict()["model.layers.0.self_attn.o_proj.weight"].shape

    def corrupt(mine, value):
        mine.copy_(value)
        if mine.shape == victim:
            mine.view(-1)[7] += 0.5

    monkeypatch.setattr("cohort.rollout.weights.store", corrupt)
    with pytest.raises(WeightMismatch, match=r"self_attn\.(q|o)_proj\.weight: the sampler's copy differs"):
        sampler.load(model.state_dict().items(), 1)


def test_a_cast_copy_follows_load_and_nothing_else():
    model = tiny_model("llama", tie_word_embeddings=True)
    sampler = NativeSampler(model, eos_ids=(), dtype=torch.bfloat16)
    before = complete(sampler, cohort(1, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert complete(sampler, cohort(1, 2)) == before
    sampler.load(model.state_dict().items(), 1)
    fresh = NativeSampler(model, eos_ids=(), dtype=torch.bfloat16)
    got, expected = complete(sampler, cohort(1, 2)), complete(fresh, cohort(1, 2))
    assert [c.log_probs for c in got] == [c.log_probs for c in expected] != [c.log_probs for c in before]


def test_a_load_in_the_middle_continues_with_the_new_weights():
    model = tiny_model("qwen3", dtype=torch.float64)
    sampler = NativeSampler(model, eos_ids=(), slots=3)

    async def work():
        tasks = [asyncio.create_task(sampler.complete(r)) for r in cohort(1, 4, max_tokens=20)]
        while sampler.counters.steps < 6:
            await asyncio.sleep(0)
        with torch.no_grad():
            model.model.layers[0].self_attn.v_proj.weight.mul_(-1)
        sampler.load(model.state_dict().items(), 1)
        return await asyncio.gather(*tasks)

    got = asyncio.run(work())
    assert got[0].policy_versions == (0,) * 7 + (1,) * 13
    assert set(got[3].policy_versions) == {1}
    for request, completion in zip(cohort(1, 4), got, strict=True):
        logits = model(input_ids=torch.tensor([request.ids + completion.ids])).logits[0, len(request.ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
        new = torch.tensor(completion.policy_versions) == 1
        errors = (expected - torch.tensor(completion.log_probs, dtype=torch.float64)).abs()
        assert errors[new].max() < 1e-6  # the cache was made again with the new weights


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_adapters_are_sampled_with_and_proven(dtype):
    base = tiny_model("qwen3")
    policy = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    policy.eval()
    sampler = NativeSampler(policy, eos_ids=(), dtype=dtype)
    merged = tiny_model("qwen3")
    weights = {}
    for name, tensor in policy.get_base_model().state_dict().items():
        if ".lora_" not in name:
            owner = (
                policy.get_base_model().get_submodule(name.split(".base_layer.")[0]) if "base_layer" in name else None
            )
            value = tensor + owner.get_delta_weight("default") if owner is not None else tensor
            weights[name.replace(".base_layer", "")] = value.detach()
    merged.load_state_dict(weights)
    sampler.load(weights.items(), 1)
    got = complete(sampler, cohort(2, 3))
    expected = complete(NativeSampler(merged, eos_ids=(), dtype=dtype), cohort(2, 3))
    assert [c.ids for c in got] == [c.ids for c in expected]
    torch.testing.assert_close(
        torch.tensor([c.log_probs for c in got]), torch.tensor([c.log_probs for c in expected]), atol=1e-5, rtol=1e-5
    )
    name = "model.layers.0.self_attn.q_proj.weight"
    if dtype is None:  # the adapter was forgotten on the sender's side
        base_weight = policy.get_base_model().get_submodule("model.layers.0.self_attn.q_proj.base_layer").weight
        with pytest.raises(WeightMismatch, match=name):
            sampler.load({**weights, name: base_weight}.items(), 2)
