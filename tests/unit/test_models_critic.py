"""The critic's contract: what a folder may be, learning, skipped steps, exact resume, saving."""

import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GraniteConfig,
)

from cohort.errors import UserError
from cohort.metrics import read
from cohort.models.build import add_lora, dropout_is_off, trainable
from cohort.models.critic import LocalCritic
from cohort.models.layout import Layout
from cohort.models.micro import Budget
from cohort.models.optim import OptimSettings
from cohort.models.value import head_name, load_value_model, token_values
from cohort.types import Experience
from tests.batches import UNEVEN, make_batch, make_experience
from tests.tiny import VOCAB, tiny_model, tiny_value_model
from tests.unit.test_models_policy import assert_same, snapshot


def make_critic(model=None, *, optim=None, **settings):
    return LocalCritic(model or tiny_value_model(), optim=optim or OptimSettings(lr=1e-3), **settings)


def lora_model(seed=1, **settings):
    base = tiny_value_model(**settings)
    model = add_lora(base, rank=2, alpha=4, head=head_name(base))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in trainable(model):
        if "lora_B" in name:
            parameter.data.normal_(std=0.3, generator=generator)
    return model


# --- folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "mistral", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_folder_of_a_causal_lm_gives_its_backbone_and_a_head_of_zeros(architecture, tied, tmp_path, capfd):
    lm = tiny_model(architecture, tie_word_embeddings=tied)
    lm.save_pretrained(tmp_path)
    state = torch.get_rng_state()
    model = load_value_model(tmp_path, device="cpu")
    torch.set_rng_state(state)
    assert model.dtype == torch.float32
    assert dropout_is_off(model)
    assert "LOAD REPORT" not in capfd.readouterr().err
    for name, tensor in lm.base_model.state_dict().items():
        assert torch.equal(model.base_model.state_dict()[name], tensor), name
    assert not any(p.any() for p in model.get_submodule(head_name(model)).parameters())
    assert not make_critic(model).values(make_batch(UNEVEN)).any()


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2"])
def test_a_token_classifier_and_a_reward_model_keep_their_heads(architecture, tmp_path):
    model = tiny_value_model(architecture)
    model.save_pretrained(tmp_path / "token")
    loaded = load_value_model(tmp_path / "token", device="cpu")
    assert_same(dict(loaded.state_dict()), dict(model.state_dict()))
    if architecture == "gpt2":  # its reward model calls the head by another name
        return
    reward = AutoModelForSequenceClassification.from_config(model.config)
    reward.save_pretrained(tmp_path / "sequence")
    loaded = load_value_model(tmp_path / "sequence", device="cpu")
    assert torch.equal(loaded.score.weight, reward.score.weight)
    assert not loaded.score.bias.any()


def test_a_classifier_with_more_labels_is_one_line(tmp_path):
    config = tiny_model().config
    config.num_labels = 3
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="Qwen3ForTokenClassification with 3 labels") as caught:
        load_value_model(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


def test_an_architecture_without_a_token_classifier_gets_one(tmp_path):
    """Transformers has no GraniteForTokenClassification; ours saves and loads."""
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = GraniteConfig(vocab_size=VOCAB, num_key_value_heads=2, eos_token_id=257, bos_token_id=257, **size)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "lm")
    critic = make_critic(load_value_model(tmp_path / "lm", device="cpu"))
    experience = make_experience(make_batch(UNEVEN))
    critic.update(experience)
    critic.save(tmp_path / "critic")
    again = make_critic(load_value_model(tmp_path / "critic", device="cpu"))
    expected = critic.values(experience.batch)
    assert expected.any()
    assert (again.values(experience.batch) - expected).abs().max() < 1e-6


@pytest.mark.parametrize("path", ["/no/such/folder", "./none"])
def test_a_missing_folder_is_one_line(path):
    with pytest.raises(UserError, match="no model folder at") as caught:
        load_value_model(path, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot load a value model") as caught:
        load_value_model(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


def test_missing_weights_are_an_error_not_a_random_start(tmp_path):
    model = tiny_model()
    weights = model.state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(UserError, match=r"lacks 1 weights of Qwen3ForTokenClassification.*layers.1.mlp.up_proj"):
        load_value_model(tmp_path, device="cpu")


def test_weights_of_other_shapes_are_an_error(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="other shapes than Qwen3ForTokenClassification"):
        load_value_model(tmp_path, device="cpu", override_config={"intermediate_size": 32})
    with pytest.raises(UserError, match=r"override_config.no_such is not a field of Qwen3Config"):
        load_value_model(tmp_path, device="cpu", override_config={"no_such": 1})


# --- values and updates -----------------------------------------------------------------------------


def test_values_are_in_the_order_of_the_rows_whatever_the_budget():
    batch, model = make_batch(UNEVEN), tiny_value_model()
    with torch.no_grad():
        expected = token_values(model, batch, layout=Layout())
    for budget in (Budget(), Budget(max_tokens=30), Budget(max_rows=2)):
        found = make_critic(model, values_budget=budget).values(batch)
        assert not found.requires_grad
        assert (found - expected).abs().max() < 1e-5
    assert make_critic(model).values(batch.select(torch.tensor([], dtype=torch.long))).shape == (0, 40)


@pytest.mark.parametrize("lora", [False, True])
def test_a_critic_fits_fixed_returns(lora, tmp_path):
    """From a head of zeros down to what nobody can fit: before their first token, two answers are the same state."""
    tiny_model().save_pretrained(tmp_path)
    model = load_value_model(tmp_path, device="cpu")
    critic = make_critic(
        add_lora(model, rank=4, alpha=8, head=head_name(model)) if lora else model,
        optim=OptimSettings(lr=2e-2 if lora else 1e-2, weight_decay=0.0),
        clip=10.0,
    )
    batch = make_batch([(4, [6, 6]), (3, [8, 2])])
    returns = batch.mask * torch.tensor([[1.0], [-1.0], [0.5], [0.0]])
    losses = []
    for _ in range(40):
        values = critic.values(batch)
        update = critic.update(Experience(batch=batch, advantages=returns, values=values, returns=returns))
        losses.append(read(update.metrics)["critic/vf_loss"])
        critic.advance()
    assert losses[0] == pytest.approx(float(0.5 * (returns**2).sum() / batch.mask.sum()), rel=1e-5)
    first = (1.0**2 + 1.0**2 + 0.25**2 + 0.25**2) / 2  # returns 1 and -1, 0.5 and 0: their means are the best values
    assert losses[-1] == pytest.approx(first / float(batch.mask.sum()), rel=0.05)
    values = critic.values(batch)
    torch.testing.assert_close(values[:, 0], torch.tensor([0.0, 0.0, 0.25, 0.25]), atol=0.1, rtol=0)
    assert ((values - returns) * batch.mask)[:, 1:].abs().max() < 0.1


def test_an_update_reports_what_it_did():
    critic = make_critic()
    experience = make_experience(make_batch(UNEVEN))
    values = critic.values(experience.batch)
    seen = read(critic.update(experience).metrics)
    mask = experience.batch.mask
    assert seen["critic/vpred_mean"] == pytest.approx(float((values * mask).sum() / mask.sum()), rel=1e-5)
    assert 0 < seen["critic/vf_clipfrac"] < 1
    assert seen["critic/vf_loss"] > 0
    assert seen["critic/lr"] == 1e-3
    assert seen["critic/grad_norm"] > 0
    assert seen["critic/weights_changed_share"] > 0.5
    assert seen["critic/skipped_updates"] == 0


def test_rejected_tokens_do_not_train_the_critic():
    experience = make_experience(make_batch(UNEVEN))
    keep = (torch.arange(experience.batch.width) % 2).expand_as(experience.batch.mask).float()
    poisoned = torch.where(keep > 0, experience.returns, 1e6)
    one, other = make_critic(), make_critic()
    one.update(type(experience)(**{**vars(experience), "keep": keep}))
    other.update(type(experience)(**{**vars(experience), "keep": keep, "returns": poisoned}))
    assert_same(*(snapshot(critic)[0] for critic in (one, other)))


@pytest.mark.parametrize("poison", ["returns", "values", "weight", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(poison):
    critic = make_critic(clip=1e9)
    experience = make_experience(make_batch(UNEVEN))
    critic.update(experience)  # so that the optimiser has moments to keep
    if poison == "returns":
        experience.returns[5, 2] = math.nan
    if poison == "values":
        experience.values[5, 2] = math.inf
    if poison == "weight":
        critic.model.model.embed_tokens.weight.data[int(experience.batch.response_ids[0, 0])] = math.nan
    if poison == "gradient":
        critic.model.model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    before = snapshot(critic)
    update = critic.update(experience)
    after = snapshot(critic)
    assert read(update.metrics)["critic/skipped_updates"] == 1
    assert update.warning.startswith("critic update skipped: ")
    expected = {"returns": "returns of row 5", "values": "old values of row 5", "weight": "values of row 0"}
    assert expected.get(poison, "gradient norm is") in update.warning
    if poison != "weight":  # NaN differs from itself
        assert_same(before, after)
    if poison in ("returns", "values"):
        assert read(critic.update(make_experience(make_batch(UNEVEN))).metrics)["critic/skipped_updates"] == 0


def test_no_row_with_a_token_is_a_step_without_a_gradient():
    critic = make_critic(optim=OptimSettings(lr=1e-3, weight_decay=0.0))
    before = snapshot(critic)[0]
    update = critic.update(make_experience(make_batch([(3, [(0, 2)])])))
    assert read(update.metrics)["critic/grad_norm"] == 0
    assert_same(before, snapshot(critic)[0])
    nothing = make_experience(make_batch([(3, [2])])).select(torch.tensor([], dtype=torch.long))
    assert critic.update(nothing).warning == ""


def test_a_minibatch_without_returns_is_an_error():
    batch = make_batch(UNEVEN)
    with pytest.raises(ValueError, match="values and returns"):
        make_critic().update(Experience(batch=batch, advantages=batch.mask))


def test_a_backbone_in_bfloat16_has_a_head_in_float32():
    batch, model = make_batch(UNEVEN), tiny_value_model()
    critic = make_critic(model, compute_dtype=torch.bfloat16)
    seen = []
    model.model.register_forward_hook(lambda module, inputs, output: seen.append(output[0].dtype))
    values = critic.values(batch)
    assert seen == [torch.bfloat16]
    assert values.dtype == torch.float32
    assert not torch.equal(values, values.bfloat16().float())
    assert (values - make_critic(tiny_value_model()).values(batch)).abs().max() < 0.2
    critic.update(make_experience(batch))
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_lora_trains_adapters_and_the_head_alone():
    critic = make_critic(lora_model())
    names = [name for name, _ in trainable(critic.model)]
    assert all("lora_" in name or name.endswith(("score.weight", "score.bias")) for name in names)
    assert any(name.endswith("score.weight") for name in names)
    assert not any("score.lora" in name for name in names)
    before = {name: p.clone() for name, p in critic.model.named_parameters()}
    critic.update(make_experience(make_batch(UNEVEN)))
    changed = {name for name, p in critic.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(names)


@pytest.mark.parametrize("exclude", [None, ["q_proj"], r".*q_proj"])
def test_exclude_modules_keeps_the_head_out_too(exclude):
    base = tiny_value_model()
    model = add_lora(base, rank=2, alpha=4, exclude_modules=exclude, head="score")
    adapted = {name for name, _ in model.named_modules() if name.endswith("lora_A")}
    assert adapted
    assert not any("score" in name for name in adapted)
    assert any("q_proj" in name for name in adapted) == (exclude is None)


# --- saving ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [False, True])
def test_resuming_is_bit_exact(lora, tmp_path):
    build = lora_model if lora else tiny_value_model
    experience = make_experience(make_batch(UNEVEN))
    optim = OptimSettings(lr=1e-2, warmup_steps=3)
    straight = make_critic(build(), optim=optim)
    for _ in range(3):
        straight.update(experience)
        straight.advance()
    torch.save(straight.state(), tmp_path / "state.pt")
    resumed = make_critic(build(), optim=optim)
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for critic in (straight, resumed):
        critic.update(experience)
        critic.advance()
    assert_same(snapshot(straight), snapshot(resumed))
    assert straight.optimizer.lr == resumed.optimizer.lr
    with pytest.raises(UserError, match="not those of this model"):
        make_critic(tiny_value_model(num_hidden_layers=1)).load_state(straight.state())


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2", "qwen3_moe"])
def test_a_saved_folder_loads_with_the_same_values(architecture, tokenizer, tmp_path):
    critic = make_critic(tiny_value_model(architecture), tokenizer=tokenizer)
    batch = make_batch(UNEVEN)
    critic.update(make_experience(batch))
    expected = critic.values(batch)
    critic.save(tmp_path)
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    assert plain.config.num_labels == 1
    for loaded in (plain, load_value_model(tmp_path, device="cpu")):
        assert_same(dict(loaded.state_dict()), dict(critic.model.state_dict()))
        assert (
            make_critic(loaded).values(batch) - expected
        ).abs().max() < 1e-6  # one output: the sum's order may differ
    assert AutoTokenizer.from_pretrained(tmp_path).encode("a b") == tokenizer.encode("a b")


def test_a_saved_lora_folder_is_merged(tokenizer, tmp_path):
    critic, batch = make_critic(lora_model(), tokenizer=tokenizer), make_batch(UNEVEN)
    critic.update(make_experience(batch))
    expected = critic.values(batch)
    critic.save(tmp_path)
    merged = load_value_model(tmp_path, device="cpu")
    assert (make_critic(merged).values(batch) - expected).abs().max() < 1e-4
    assert (critic.values(batch) == expected).all()  # saving changed nothing
