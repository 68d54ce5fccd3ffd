"""Loading, adapters, devices and the precision rule."""

import pytest
import torch

from cohort.errors import UserError
from cohort.models import precision
from cohort.models.build import add_lora, dropout_is_off, load_model, pick_device, resolve_precision, trainable
from cohort.models.precision import Compute
from tests.tiny import tiny_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def capabilities(monkeypatch, **able):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)


def test_a_folder_loads_in_float32_with_dropout_off(tmp_path):
    tiny_model("gpt2", dtype=torch.bfloat16, attn_pdrop=0.5).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert model.dtype == torch.float32
    assert dropout_is_off(model)
    assert all(p.requires_grad for p in model.parameters())


def test_config_fields_can_be_changed_and_unknown_ones_are_errors(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    assert load_model(tmp_path, device="cpu", override_config={"rms_norm_eps": 0.5}).model.norm.variance_epsilon == 0.5
    with pytest.raises(UserError, match=r"override_config.no_such is not a field of Qwen3Config"):
        load_model(tmp_path, device="cpu", override_config={"no_such": 1})


@pytest.mark.parametrize("path", ["/no/such/folder", "./none", "some/deep/path"])
def test_a_missing_folder_is_one_line(path):
    with pytest.raises(UserError, match="no model folder at") as caught:
        load_model(path, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot load a causal language model") as caught:
        load_model(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


def test_missing_weights_are_an_error_not_a_random_start(tmp_path):
    model = tiny_model()
    weights = model.state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(UserError, match=r"lacks 1 weights of Qwen3ForCausalLM.*layers.1.mlp.up_proj"):
        load_model(tmp_path, device="cpu")


def test_devices():
    assert pick_device("cpu") == CPU
    assert pick_device("auto").type in ("cpu", "cuda")
    with pytest.raises(UserError, match="not one of auto, cpu"):
        pick_device("gpu")
    with pytest.raises(UserError, match="not one of auto, cpu"):
        pick_device("meta")
    with pytest.raises(UserError, match="has no device 'cuda:99'"):
        pick_device("cuda:99")


def test_the_precision_rule_on_cpus(monkeypatch):
    capabilities(monkeypatch, avx2=True)
    assert resolve_precision(CPU, 10**9) == torch.float32
    for name in ("avx512_bf16", "amx_bf16", "bf16"):
        capabilities(monkeypatch, **{name: True})
        assert resolve_precision(CPU, 1_000_000) == torch.bfloat16
        assert resolve_precision(CPU, 999_999) == torch.float32
    assert resolve_precision(CPU, 10**9, "float32") == torch.float32


def test_the_precision_rule_elsewhere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert resolve_precision(CUDA, 1) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert resolve_precision(CUDA, 10**9) == torch.float32
    assert resolve_precision(torch.device("mps"), 10**9) == torch.float32
    assert resolve_precision(CPU, 1, "bf16") == torch.bfloat16
    with pytest.raises(UserError, match="'fp8' is not one of auto, float32"):
        resolve_precision(CPU, 1, "fp8")


def test_the_machine_is_asked():
    assert isinstance(precision.has_fast_bfloat16(CPU), bool)


def test_casts_are_lent_and_given_back():
    model = tiny_model(tie_word_embeddings=True)
    masters = dict(model.named_parameters())
    compute = Compute(model, torch.bfloat16)
    with compute():
        assert model.lm_head.weight.dtype == torch.bfloat16
        assert model.lm_head.weight is model.model.embed_tokens.weight
        loss = model(input_ids=torch.tensor([[1, 2, 3]])).logits.float().square().mean()
        loss.backward()
    assert dict(model.named_parameters()).keys() == masters.keys()
    assert all(p is masters[name] for name, p in model.named_parameters())
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


def test_casts_are_given_back_after_an_error():
    model = tiny_model()
    with pytest.raises(ZeroDivisionError), Compute(model, torch.bfloat16)():
        raise ZeroDivisionError
    assert model.dtype == torch.float32


def test_frozen_weights_are_cast_once():
    model = add_lora(tiny_model(), rank=2, alpha=4)
    compute = Compute(model, torch.bfloat16)
    base = model.get_base_model().model.layers[0].self_attn.q_proj
    with compute():
        first = base.base_layer.weight
    with compute():
        assert base.base_layer.weight is first
        assert base.lora_A["default"].weight.requires_grad


def test_lora_trains_adapters_alone():
    model = add_lora(tiny_model(), rank=2, alpha=4, target_modules=["q_proj", "v_proj"])
    assert {name.split(".")[-3] for name, _ in trainable(model)} == {"lora_A", "lora_B"}
    assert len(trainable(model)) == 2 * 2 * 2
    assert dropout_is_off(model)


def test_lora_errors_are_one_line():
    with pytest.raises(UserError, match=r"dropout=0.1 makes log-probs random"):
        add_lora(tiny_model(), rank=2, alpha=4, dropout=0.1)
    with pytest.raises(UserError, match="target_modules="):
        add_lora(tiny_model(), rank=2, alpha=4, target_modules=["no_such_layer"])
    with pytest.raises(UserError, match="tied to the head"):
        add_lora(tiny_model(tie_word_embeddings=True), rank=2, alpha=4, target_modules=["lm_head"])


def test_a_cast_copy_keeps_its_rotary_frequencies():
    model = precision.cast_parameters(tiny_model(), torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
