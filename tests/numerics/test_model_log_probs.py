"""One set of numbers: alone, padded, packed or with a shared prompt; and what temperature, masks and shifts mean."""

from itertools import product

import pytest
import torch

from cohort.errors import UserError
from cohort.models.forward import causal_lm, token_stats
from cohort.models.layout import Layout, arrange
from cohort.models.support import settle_layout
from tests.batches import UNEVEN, make_batch
from tests.tiny import VOCAB, tiny_model

LAYOUTS = [Layout(packed=p, share_prompt=s, checkpointing=c) for p, s, c in product([False, True], repeat=3)]
ARCHITECTURES = ["qwen2", "qwen3", "llama", "mistral", "gpt2", "qwen3_moe"]


def naive(model, batch, temperature=1.0):
    """Row by row, unpadded, from the model's own logits: log-probs, entropy, sum of squares (B, T)."""
    out = torch.zeros(3, *batch.mask.shape, dtype=torch.float64)
    for row in range(batch.rows):
        p, r = int(batch.prompt_lengths[row]), int(batch.response_lengths[row])
        ids = batch.ids[row : row + 1, : p + r]
        logs = (model(input_ids=ids, use_cache=False).logits[0, p - 1 : p + r - 1].double() / temperature).log_softmax(
            -1
        )
        out[0, row, :r] = logs.gather(1, ids[0, p:, None])[:, 0]
        out[1, row, :r] = -(logs.exp() * logs).sum(-1)
        out[2, row, :r] = logs.exp().square().sum(-1)
    return out * batch.mask


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_layout_gives_the_plain_numbers(architecture):
    model, batch = tiny_model(architecture), make_batch(UNEVEN)
    with torch.no_grad():
        expected = naive(model, batch)
        for layout in LAYOUTS:
            got = token_stats(model, batch, temperature=1.0, layout=layout, entropy=True, sum_pi_squared=True)
            for found, want in zip((got.log_probs, got.entropy, got.sum_pi_squared), expected, strict=True):
                assert found.dtype == torch.float32
                assert (found - want).abs().max() < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_neighbours_do_not_leak(layout):
    """A row's numbers do not depend on what else is in the batch, nor on what fills its padding."""
    model, batch = tiny_model(dtype=torch.float64), make_batch(UNEVEN)
    with torch.no_grad():
        together = token_stats(model, batch, temperature=1.0, layout=layout).log_probs
        for row in range(batch.rows):
            alone = token_stats(model, batch.select(torch.tensor([row])), temperature=1.0, layout=layout).log_probs
            assert (together[row] - alone[0]).abs().max() < 1e-6  # RoPE and norms are float32
        ids = batch.ids.clone()
        ends = (batch.prompt_lengths + batch.response_lengths)[:, None]
        ids[torch.arange(ids.shape[1]) >= ends] = 7
        dirty = token_stats(model, type(batch)(**{**vars(batch), "ids": ids}), temperature=1.0, layout=layout).log_probs
    assert torch.equal(dirty, together)


def test_an_end_token_that_is_also_the_padding_is_a_token_like_any_other():
    """pad == eos: lengths and the mask decide what counts, never an id."""
    model = tiny_model()
    batch = make_batch([(4, [6, 3]), (2, [5])], vocab=VOCAB)
    ids = batch.ids.clone()
    ids[1, 6] = 257  # the last token of row 1 is <eos>
    ids[1, 7:] = 257  # and its padding has the same id
    batch = type(batch)(**{**vars(batch), "ids": ids})
    with torch.no_grad():
        expected = naive(model, batch)[0]
        for layout in LAYOUTS:
            got = token_stats(model, batch, temperature=1.0, layout=layout).log_probs
            assert (got - expected).abs().max() < 1e-5
            assert got[1, 2] != 0
            assert (got[1, 3:] == 0).all()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_temperature_divides_the_logits(temperature):
    model, batch = tiny_model(), make_batch(UNEVEN)
    with torch.no_grad():
        expected = naive(model, batch, temperature)
        got = token_stats(model, batch, temperature=temperature, layout=Layout(), entropy=True)
    assert (got.log_probs - expected[0]).abs().max() < 1e-5
    assert (got.entropy - expected[1]).abs().max() < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_that_the_model_did_not_write_have_no_number_and_no_gradient(layout):
    """Environment text is read, not learned."""
    model = tiny_model()
    batch = make_batch([(4, [(3, 4, 2), (3, 4, 2)])])
    stats = token_stats(model, batch, temperature=1.0, layout=layout, entropy=True, sum_pi_squared=True)
    for column in (stats.log_probs, stats.entropy, stats.sum_pi_squared):
        assert (column[batch.mask == 0] == 0).all()
        assert (column[batch.mask == 1] != 0).all()
    (stats.log_probs * (1 - batch.mask)).sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_only_needed_tokens_are_run():
    """A prompt once per group, nothing behind the last scored token, no row without one."""
    batch = make_batch([(10, [5, 5, (3, 20), (0, 6)])])
    plan = arrange(batch, Layout(packed=True, share_prompt=True))
    assert plan.ids.shape == (1, 10 + 4 + 4 + 2)
    assert len(plan.targets) == 13
    assert arrange(batch, Layout(packed=True, share_prompt=False)).ids.shape == (1, 3 * 10 + 4 + 4 + 2)
    assert arrange(batch, Layout(packed=False, share_prompt=False)).ids.shape == (3, 14)


def test_prompts_are_shared_by_their_ids_not_by_their_group():
    batch = make_batch([(10, [5])])
    twice = batch.select(torch.tensor([0, 0]))
    twice = type(batch)(**{**vars(twice), "group": torch.tensor([0, 1])})
    assert arrange(twice, Layout()).ids.shape == (1, 10 + 4 + 4)
    other = type(batch)(**{**vars(twice), "ids": twice.ids + torch.tensor([[0], [1]]), "group": torch.tensor([0, 0])})
    assert arrange(other, Layout()).ids.shape == (1, 28)


def test_hidden_is_the_mean_over_written_tokens():
    model, batch = tiny_model(), make_batch(UNEVEN)
    with torch.no_grad():
        for layout in LAYOUTS:
            got = token_stats(model, batch, temperature=1.0, layout=layout, hidden=True).hidden
            for row in range(batch.rows):
                p, end = int(batch.prompt_lengths[row]), int(batch.prompt_lengths[row] + batch.response_lengths[row])
                states = model.base_model(input_ids=batch.ids[row : row + 1, :end], use_cache=False)[0][0, p:]
                kept = states[batch.mask[row, : end - p] == 1]
                expected = kept.mean(0) if len(kept) else torch.zeros_like(got[row])
                assert (got[row] - expected).abs().max() < 1e-5


def test_a_batch_that_the_model_never_wrote_is_zero():
    batch = make_batch([(3, [(0, 2), (0, 4)])])
    stats = token_stats(tiny_model(), batch, temperature=1.0, layout=Layout(), entropy=True, hidden=True)
    assert not stats.log_probs.any()
    assert not stats.entropy.any()
    assert stats.hidden.shape == (2, 32)


def test_the_model_is_left_as_it_was():
    model, batch = tiny_model(), make_batch(UNEVEN)
    before = (model.config._attn_implementation, [layer.forward for layer in model.model.layers])
    stats = token_stats(model, batch, temperature=1.0, layout=Layout(checkpointing=True))
    assert (model.config._attn_implementation, [layer.forward for layer in model.model.layers]) == before
    stats.log_probs.sum().backward()  # recomputation happens after the call has returned
    assert model.config._attn_implementation == "sdpa"


def test_checkpointing_recomputes_the_layers():
    model, batch = tiny_model(), make_batch(UNEVEN)
    calls = []
    model.model.layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    stats = token_stats(model, batch, temperature=1.0, layout=Layout(checkpointing=True))
    assert len(calls) == 1
    stats.log_probs.sum().backward()
    assert len(calls) == 2


def test_an_empty_prompt_is_an_error():
    with pytest.raises(ValueError, match="prompt without tokens"):
        arrange(make_batch([(0, [3])]), Layout())


def test_sliding_windows_fall_back_to_padded_rows():
    """Exact, but slower: said aloud, never silently wrong."""
    model = tiny_model("mistral", sliding_window=8)
    layout, note = settle_layout(model, Layout(checkpointing=True))
    assert layout == Layout(packed=False, share_prompt=False, checkpointing=True)
    assert "MistralForCausalLM" in note
    assert "sliding window of 8" in note
    batch = make_batch(UNEVEN)
    with torch.no_grad():
        got = token_stats(model, batch, temperature=1.0, layout=layout).log_probs
        assert (got - naive(model, batch)[0]).abs().max() < 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_supported_architectures_take_every_layout(architecture):
    assert settle_layout(tiny_model(architecture), Layout()) == (Layout(), "")


def test_logits_that_are_changed_after_the_head_are_refused_by_class_name():
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        logit_scale=0.25,
    )
    torch.manual_seed(0)
    model = CohereForCausalLM(config).eval()
    model.get_output_embeddings().weight.data.mul_(50)
    with pytest.raises(UserError, match="CohereForCausalLM is not supported"):
        settle_layout(model, Layout())


def test_media_is_refused():
    batch = make_batch([(3, [2])])
    batch = type(batch)(**{**vars(batch), "media": {"pixel_values": torch.zeros(1, 3)}})
    with pytest.raises(UserError, match="media"):
        token_stats(tiny_model(), batch, temperature=1.0, layout=Layout())


def test_causal_lm_unwraps_nothing_else():
    model = tiny_model()
    assert causal_lm(model) is model
