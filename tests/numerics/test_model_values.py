"""Values: read before the token, the same in every layout, with a gradient that no memory setting changes."""

from functools import cache
from itertools import product

import pytest
import torch
from transformers import BertConfig, BertForTokenClassification

from cohort.algorithms.masking import counts
from cohort.algorithms.value_loss import clipped_value_loss
from cohort.errors import UserError
from cohort.models.build import add_lora, trainable
from cohort.models.critic import LocalCritic
from cohort.models.forward import token_stats
from cohort.models.layout import Layout, arrange
from cohort.models.micro import Budget
from cohort.models.optim import OptimSettings
from cohort.models.step import Alone
from cohort.models.support import settle_value_layout
from cohort.models.value import head_name, token_values
from tests.batches import UNEVEN, make_batch, make_experience
from tests.tiny import VOCAB, tiny_model, tiny_value_model

LAYOUTS = [Layout(packed=p, share_prompt=s, checkpointing=c) for p, s, c in product([False, True], repeat=3)]
PLAIN = Layout(packed=False, share_prompt=False, checkpointing=False)
BUDGETS = [Budget(max_rows=1), Budget(max_rows=3), Budget(), Budget(max_tokens=40), Budget(max_tokens=1)]
ARCHITECTURES = ["qwen2", "qwen3", "llama", "mistral", "gpt2", "qwen3_moe"]


def naive(model, batch):
    """Token by token: V before response token t is the model's output on the ids up to t - 1, run alone  # (B, T)."""
    out = torch.zeros(batch.mask.shape, dtype=torch.float64)
    for row in range(batch.rows):
        prompt = int(batch.prompt_lengths[row])
        for t in range(int(batch.response_lengths[row])):
            if batch.mask[row, t]:
                out[row, t] = model(input_ids=batch.ids[row : row + 1, : prompt + t], use_cache=False).logits[0, -1, 0]
    return out


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_layout_gives_the_values_of_a_naive_loop(architecture):
    model, batch = tiny_value_model(architecture), make_batch(UNEVEN)
    with torch.no_grad():
        expected = naive(model, batch)
        assert expected.std() > 0.1
        for layout in LAYOUTS:
            found = token_values(model, batch, layout=layout)
            assert found.dtype == torch.float32
            assert (found - expected).abs().max() < 1e-5


def test_layouts_agree_to_rounding_in_float64():
    """1e-9 on a model without float32 islands; 1e-6 where norms and RoPE are float32."""
    batch = make_batch(UNEVEN)
    for architecture, tolerance in (("gpt2", 1e-9), ("qwen3", 1e-6)):
        model = tiny_value_model(architecture, dtype=torch.float64)
        with torch.no_grad():
            expected = naive(model, batch)
            for layout in LAYOUTS:
                found = token_values(model, batch, layout=layout)
                assert found.dtype == torch.float64
                assert (found - expected).abs().max() < tolerance


def test_values_are_read_where_log_probs_are():
    """A head that copies what the language-model head says about token 7: the positions are the same ones."""
    lm, model, batch = tiny_model(), tiny_value_model(), make_batch(UNEVEN)
    only = type(batch)(**{**vars(batch), "ids": torch.full_like(batch.ids, 7)})
    with torch.no_grad():
        model.score.weight.copy_(lm.lm_head.weight[7:8])
        model.score.bias.zero_()
        values = token_values(model, only, layout=Layout())
        log_probs = token_stats(lm, only, temperature=1.0, layout=Layout()).log_probs
        for row in range(batch.rows):
            prompt, end = int(batch.prompt_lengths[row]), int((batch.prompt_lengths + batch.response_lengths)[row])
            logits = lm(input_ids=only.ids[row : row + 1, :end], use_cache=False).logits[0, prompt - 1 : -1]
            mask = batch.mask[row, : end - prompt]
            torch.testing.assert_close(values[row, : end - prompt], logits[:, 7] * mask, atol=1e-4, rtol=0)
            expected = logits.log_softmax(-1)[:, 7] * mask
            torch.testing.assert_close(log_probs[row, : end - prompt], expected, atol=1e-4, rtol=0)


def test_a_value_does_not_see_the_token_it_stands_at():
    model, batch = tiny_value_model(), make_batch([(4, [6])])
    changed = batch.ids.clone()
    changed[0, 4 + 3] = (changed[0, 4 + 3] + 1) % 256  # response token 3
    with torch.no_grad():
        before = token_values(model, batch, layout=Layout())[0]
        after = token_values(model, type(batch)(**{**vars(batch), "ids": changed}), layout=Layout())[0]
    assert torch.equal(before[:4], after[:4])
    assert (before[4:] != after[4:]).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_text_the_model_did_not_write_has_no_value_and_no_gradient(layout):
    model, batch = tiny_value_model(), make_batch([(4, [(3, 4, 2), (0, 4)])])
    values = token_values(model, batch, layout=layout)
    assert (values[batch.mask == 0] == 0).all()
    assert (values[batch.mask == 1] != 0).all()
    (values * (1 - batch.mask)).sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    nothing = token_values(model, make_batch([(3, [(0, 2)])]), layout=layout)
    assert nothing.shape == (1, 2)
    assert not nothing.requires_grad


def test_the_critic_runs_the_tokens_that_the_policy_runs():
    """A prompt once for its group, nothing behind the last token that has a value."""
    batch = make_batch([(10, [5, 5, (3, 20), (0, 6)])])
    ran = []
    model = tiny_value_model()
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: ran.append(inputs[0].shape))
    with torch.no_grad():
        token_values(model, batch, layout=Layout())
    assert ran == [arrange(batch, Layout()).ids.shape] == [(1, 10 + 4 + 4 + 2)]


class Recorder(Alone):
    """Keeps the gradients of an update. ``whole`` plays the counts of a minibatch that other replicas share."""

    def __init__(self, whole=None):
        self.whole = whole

    def sum(self, values):
        return self.whole if self.whole is not None and values.shape == (2,) else values

    def gradients(self, parameters):
        self.seen = [p.grad.clone() for p in parameters]


def build(architecture, lora):
    model = tiny_value_model(architecture, dtype=torch.float64)
    if architecture == "qwen3_moe":
        model.set_experts_implementation("eager")  # the grouped kernel has no float64
    if lora:
        targets = ["c_attn", "c_fc"] if architecture == "gpt2" else ["q_proj", "down_proj"]
        model = add_lora(model, rank=2, alpha=4, target_modules=targets, head=head_name(model)).double()
        generator = torch.Generator().manual_seed(1)
        for name, parameter in trainable(model):
            if "lora_B" in name:  # zero at the start, which would hide the gradient of A
                parameter.data.normal_(std=0.1, generator=generator)
    return model


def gradients(architecture, layout, budget, *, lora=False, rows=None, aggregation="token-mean"):
    experience = make_experience(make_batch(UNEVEN), dtype=torch.float64)
    recorder = Recorder(counts(experience.batch.mask) if rows is not None else None)
    critic = LocalCritic(
        build(architecture, lora),
        optim=OptimSettings(lr=0.0, optimizer="SGD", clip_grad=None),
        clip=0.3,
        aggregation=aggregation,
        horizon=48,
        layout=layout,
        budget=budget,
        reduce=recorder,
    )
    assert critic.layout_note == ""
    update = critic.update(experience if rows is None else experience.select(torch.tensor(rows)))
    return recorder.seen, update.metrics


@cache
def plain(architecture, lora=False, aggregation="token-mean"):
    return gradients(architecture, PLAIN, Budget(), lora=lora, aggregation=aggregation)


def assert_equal(found, expected, tolerance):
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= tolerance * y.norm(), f"{float((x - y).norm() / y.norm()):.2g}"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda x: f"{'p' * x.packed}{'s' * x.share_prompt}{'c' * x.checkpointing}"
)
def test_the_gradient_ignores_micro_batches_and_layout(layout, lora):
    expected, metrics = plain("gpt2", lora)
    assert all(g.norm() > 0 for g in expected[-2:])
    assert 0 < metrics["critic/vf_clipfrac"].read() < 1
    for budget in BUDGETS:
        found, seen = gradients("gpt2", layout, budget, lora=lora)
        assert_equal(found, expected, 1e-9)
        for name in ("critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean", "critic/grad_norm"):
            assert seen[name].read() == pytest.approx(metrics[name].read(), rel=1e-9), name


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe"])
def test_the_gradient_on_models_with_float32_islands(architecture):
    expected, _ = plain(architecture)
    for layout, budget in product(LAYOUTS, [Budget(), Budget(max_rows=3)]):
        assert_equal(gradients(architecture, layout, budget)[0], expected, 1e-6)


@pytest.mark.parametrize(
    "aggregation", ["token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_every_aggregation_ignores_micro_batches(aggregation):
    expected, _ = plain("gpt2", False, aggregation)
    assert_equal(gradients("gpt2", Layout(), Budget(max_rows=5), aggregation=aggregation)[0], expected, 1e-9)


def test_two_replicas_add_up_to_one():
    expected, _ = plain("gpt2")
    parts = [
        gradients("gpt2", Layout(), Budget(max_rows=3), rows=r)[0] for r in ([0, 3, 7, 11, 5], [1, 2, 4, 6, 8, 9, 10])
    ]
    assert_equal([a + b for a, b in zip(*parts, strict=True)], expected, 1e-9)


def test_the_gradient_is_that_of_the_loss_written_out():
    """A row at a time through the model's own outputs, one loop over tokens, one division."""
    experience = make_experience(make_batch(UNEVEN), dtype=torch.float64)
    model = build("gpt2", False)
    values = torch.zeros_like(experience.values)
    for row in range(experience.batch.rows):
        p, r = int(experience.batch.prompt_lengths[row]), int(experience.batch.response_lengths[row])
        values[row, :r] = model(input_ids=experience.batch.ids[row : row + 1, : p + r]).logits[0, p - 1 : -1, 0]
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for row, t in (experience.batch.mask > 0).nonzero().tolist():
        v, old, target = values[row, t], experience.values[row, t], experience.returns[row, t]
        near = min(max(v, old - 0.3), old + 0.3)
        total = total + 0.5 * max((v - target) ** 2, (near - target) ** 2)
        tokens += 1
    (total / tokens).backward()
    found, metrics = plain("gpt2")
    assert_equal(found, [p.grad for p in model.parameters()], 1e-9)
    assert metrics["critic/vf_loss"].read() == pytest.approx((total / tokens).item(), rel=1e-9)


def test_the_value_loss_by_hand():
    """Golden: v = 1, 2, 3 against old values 0, 1.8, 2 and returns 0.5, 2.5, 3.5; the fourth token is not ours."""
    nan = float("nan")
    values = torch.tensor([[1.0, 2.0, 3.0, nan]], requires_grad=True)
    rest = ([[0.0, 1.8, 2.0, nan]], [[0.5, 2.5, 3.5, nan]], [[1.0, 1.0, 1.0, 0.0]])
    found = clipped_value_loss(values, *(torch.tensor(x) for x in rest), clip=0.5)
    torch.testing.assert_close(found.loss, torch.tensor([[0.125, 0.125, 0.5, 0.0]]))
    torch.testing.assert_close(found.diagnostics["vf_clipfrac"], torch.tensor([[0.0, 0.0, 1.0, 0.0]]))
    torch.testing.assert_close(found.diagnostics["vpred_mean"], torch.tensor([[1.0, 2.0, 3.0, 0.0]]))
    found.loss.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.5, -0.5, 0.0, 0.0]]))
    with pytest.raises(ValueError, match="clip"):
        clipped_value_loss(values, *(torch.tensor(x) for x in rest), clip=0.0)


def test_sliding_windows_fall_back_to_padded_rows():
    model, batch = tiny_value_model("mistral", sliding_window=8), make_batch(UNEVEN)
    layout, note = settle_value_layout(model, Layout())
    assert layout == Layout(packed=False, share_prompt=False)
    assert "sliding window of 8" in note
    with torch.no_grad():
        assert (token_values(model, batch, layout=layout) - naive(model, batch)).abs().max() < 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_probe_leaves_the_head_as_it_was(architecture):
    model = tiny_value_model(architecture)
    before = model.get_submodule(head_name(model)).weight.clone()
    assert settle_value_layout(model, Layout()) == (Layout(), "")
    assert torch.equal(model.get_submodule(head_name(model)).weight, before)


def test_encoders_are_refused_by_class_name():
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertForTokenClassification(BertConfig(vocab_size=VOCAB, num_labels=1, **size)).eval()
    with pytest.raises(UserError, match="BertForTokenClassification is not supported"):
        settle_value_layout(model, Layout())


def test_media_is_refused():
    batch = make_batch([(3, [2])])
    batch = type(batch)(**{**vars(batch), "media": {"pixel_values": torch.zeros(1, 3)}})
    with pytest.raises(UserError, match="media"):
        token_values(tiny_value_model(), batch, layout=Layout())
