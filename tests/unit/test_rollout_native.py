"""The embedded engine and the slow reference as the rest of the program sees them."""

import asyncio
import dataclasses
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    MambaConfig,
    MistralConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from cohort.errors import UserError
from cohort.protocols import Request, Sampling, SeedKey
from cohort.rollout.ending import Ending
from cohort.rollout.hf import HFSampler
from cohort.rollout.native import NativeSampler
from cohort.types import FinishReason
from tests.tiny import VOCAB, byte_tokenizer, tiny_model

EOS = 257
SAMPLERS = [NativeSampler, HFSampler]


def ask(prompt=0, sample=0, ids=None, **options):
    return Request(
        ids=ids or tuple(range(10 * prompt + 3, 10 * prompt + 12)),
        sampling=Sampling(**{"max_tokens": 16, **options}),
        key=SeedKey(seed=0, step=0, prompt=prompt, sample=sample),
    )


def cohort(prompts=3, samples=4, **options):
    return [ask(p, s, **options) for p in range(prompts) for s in range(samples)]


def complete(sampler, asked):
    async def work():
        return await asyncio.gather(*[sampler.complete(request) for request in asked])

    return asyncio.run(work())


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen3", dtype=torch.float64)


@pytest.fixture
def biased():
    """A model that likes the ids 257, 5 and 9, so that completions end early."""
    model = tiny_model("gpt2", dtype=torch.float64)
    head = torch.nn.Linear(32, VOCAB, bias=True, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(model.get_output_embeddings().weight)
        head.bias.zero_()
        head.bias[torch.tensor([EOS, 5, 9])] = 3.0
    model.set_output_embeddings(head)
    return model


# --- endings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_eos_id_ends_a_completion_and_belongs_to_it(biased, sampler):
    got = complete(sampler(biased, eos_ids=[EOS, 5, 9]), cohort(8, 4, max_tokens=64))
    assert {c.ids[-1] for c in got} >= {EOS, 5, 9}
    for completion in got:
        ends = [i for i, token in enumerate(completion.ids) if token in (EOS, 5, 9)]
        if completion.finish_reason is FinishReason.STOP:
            assert ends == [len(completion.ids) - 1]
        else:
            assert not ends
            assert len(completion.ids) == 64


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_ignore_eos_goes_on_to_max_tokens(biased, sampler):
    got = complete(sampler(biased, eos_ids=[EOS, 5, 9]), cohort(3, 2, max_tokens=40, ignore_eos=True))
    assert [len(c.ids) for c in got] == [40] * 6
    assert {c.finish_reason for c in got} == {FinishReason.LENGTH}
    assert any(EOS in c.ids for c in got)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pad_and_eos_may_be_the_same_id(biased, sampler):
    biased.config.pad_token_id = biased.config.eos_token_id = EOS
    got = complete(sampler(biased, eos_ids=[EOS]), cohort(4, 4, max_tokens=64))
    ended = [c for c in got if c.finish_reason is FinishReason.STOP]
    assert ended
    assert all(c.ids.count(EOS) == 1 and c.ids[-1] == EOS for c in ended)
    assert all(len(c.ids) == len(c.log_probs) == len(c.policy_versions) for c in got)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_stop_strings_end_a_completion_and_stay_in_it(model, sampler):
    tokenizer = byte_tokenizer()
    engine = sampler(model, eos_ids=[EOS], tokenizer=tokenizer)
    free = complete(engine, cohort(4, 2, max_tokens=40))
    texts = [tokenizer.decode(c.ids) for c in free]
    stop = next(t[8:10] for t in texts if "�" not in t[8:10])  # two tokens: the match crosses a border
    for whole, got in zip(free, complete(engine, cohort(4, 2, max_tokens=40, stop=(stop, "never"))), strict=True):
        text = tokenizer.decode(whole.ids)
        assert whole.ids[: len(got.ids)] == got.ids
        assert tokenizer.decode(got.ids) == (text[: text.index(stop) + len(stop)] if stop in text else text)
        assert (got.finish_reason is FinishReason.STOP) == (stop in text or whole.finish_reason is FinishReason.STOP)


def test_stop_strings_match_across_split_characters():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("naïve→stop → <user>", add_special_tokens=False)
    for stop, end in (("ï", "naï"), ("→s", "naïve→s"), ("<user>", "naïve→stop → <user>")):
        ending = Ending(Sampling(stop=(stop,)), frozenset(), tokenizer, 100)
        taken = next(i for i, token in enumerate(ids, 1) if ending.push(token) is FinishReason.STOP)
        assert tokenizer.decode(ids[:taken]) == end


def test_stop_strings_need_a_tokenizer(model):
    with pytest.raises(UserError, match="need a tokenizer"):
        complete(NativeSampler(model, eos_ids=[EOS]), [ask(stop=("x",))])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_longest_input_ends_a_completion(model, sampler):
    engine = sampler(model, eos_ids=(), max_model_len=20)
    got = complete(engine, [ask(max_tokens=100), ask(1, ids=tuple(range(20)))])
    assert [len(c.ids) for c in got] == [20 - 9, 0]
    assert {c.finish_reason for c in got} == {FinishReason.LENGTH}


# --- scheduling -------------------------------------------------------------------------------


def test_a_prompt_is_prefilled_once_per_cohort(model):
    sampler = NativeSampler(model, eos_ids=())
    complete(sampler, cohort(3, 8))
    assert sampler.counters.prefilled == 3 * 9


@pytest.mark.parametrize("slots", [1, 3, 5])
def test_uneven_lengths_with_few_slots(model, slots):
    asked = [replace(r, sampling=Sampling(max_tokens=1 + 7 * i % 23)) for i, r in enumerate(cohort(5, 4))]
    sampler = NativeSampler(model, eos_ids=(), slots=slots)
    got = complete(sampler, asked)
    assert [len(c.ids) for c in got] == [r.sampling.max_tokens for r in asked]
    assert sampler.counters.prefilled == 5 * 9  # few slots do not cost a second prefill
    assert got == complete(NativeSampler(model, eos_ids=(), slots=slots), asked)
    alone = [complete(NativeSampler(model, eos_ids=()), [r])[0].ids for r in asked[:6]]
    assert [c.ids for c in got[:6]] == alone


def test_finished_rows_leave_at_once(model):
    asked = [replace(r, sampling=Sampling(max_tokens=40 if i == 0 else 2)) for i, r in enumerate(cohort(2, 4))]
    sampler = NativeSampler(model, eos_ids=())
    complete(sampler, asked)
    assert sampler.counters.decoded == 39 + 7  # the first token of each row comes from the prefill
    assert sampler.counters.steps == 39


def test_waiting_requests_enter_in_order_of_prompt_and_sample(model):
    finished = []
    sampler = NativeSampler(model, eos_ids=(), slots=2)

    async def one(request):
        await sampler.complete(request)
        finished.append((request.key.prompt, request.key.sample))

    async def work():
        await asyncio.gather(*[one(request) for request in reversed(cohort(3, 2, max_tokens=3))])

    asyncio.run(work())
    assert sorted(finished[:2]) == [(0, 0), (0, 1)]
    assert sorted(finished[2:4]) == [(1, 0), (1, 1)]


def test_cancelling_frees_the_slot_and_leaves_others_alone(model):
    sampler = NativeSampler(model, eos_ids=(), slots=4)
    asked = cohort(2, 4, max_tokens=30)
    expected = complete(sampler, asked)

    async def work():
        tasks = [asyncio.create_task(sampler.complete(request)) for request in asked]
        while sampler.counters.steps < steps + 5:
            await asyncio.sleep(0)
        for i in (0, 2, 7):  # two that run, one that waits
            tasks[i].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    steps = sampler.counters.steps
    got = asyncio.run(work())
    for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        if i in (0, 2, 7):
            assert isinstance(ours, asyncio.CancelledError)
        else:
            assert ours.ids == theirs.ids
    assert complete(sampler, asked) == expected


def test_the_engine_waits_for_no_tool(model):
    """A row whose environment sleeps does not hold up the others; what is ready runs first."""
    sampler = NativeSampler(model, eos_ids=())

    async def work():
        tool = asyncio.create_task(asyncio.sleep(0.5))
        await asyncio.gather(*[sampler.complete(request) for request in cohort(1, 2, max_tokens=20)])
        assert not tool.done()
        await tool

    asyncio.run(work())


def test_a_failing_forward_pass_reaches_everyone_who_waits(model, monkeypatch):
    sampler = NativeSampler(model, eos_ids=())
    expected = complete(sampler, cohort(2, 2))

    def broken(*args, **kwargs):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            complete(sampler, cohort(2, 2))
    assert complete(sampler, cohort(2, 2)) == expected


def test_sampling_leaves_the_training_module_as_it_was(model):
    model.train()
    try:
        complete(NativeSampler(model, eos_ids=()), cohort(1, 2))
        complete(HFSampler(model, eos_ids=()), cohort(1, 2))
        assert model.training
        assert model.config._attn_implementation == "sdpa"
        assert all(p.requires_grad for p in model.parameters())
    finally:
        model.eval()


def test_the_generation_config_of_the_folder_has_no_effect(model):
    expected = complete(HFSampler(model, eos_ids=()), cohort(2, 2, max_tokens=12))
    folder = model.generation_config
    model.generation_config = type(folder)(
        temperature=0.01, top_k=1, do_sample=True, repetition_penalty=5.0, max_new_tokens=3, eos_token_id=[1, 2, 3]
    )
    try:
        assert complete(HFSampler(model, eos_ids=()), cohort(2, 2, max_tokens=12)) == expected
        native = complete(NativeSampler(model, eos_ids=()), cohort(2, 2, max_tokens=12))
        assert [c.ids for c in native] == [c.ids for c in expected]
        assert model.generation_config.repetition_penalty == 5.0
    finally:
        model.generation_config = folder


# --- refusals ---------------------------------------------------------------------------------


SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)


@pytest.mark.parametrize(
    "config",
    [BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), MambaConfig(vocab_size=64, hidden_size=32)],
    ids=["alibi", "state space"],
)
def test_other_architectures_are_refused_by_name(config):
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UserError, match=rf"{type(model).__name__}.*use rollout.name=hf"):
        NativeSampler(model, eos_ids=())


def test_encoder_decoders_are_refused_by_name():
    config = T5Config(vocab_size=64, d_model=32, d_ff=32, d_kv=8, num_layers=1, num_heads=4)
    for sampler in SAMPLERS:
        with pytest.raises(UserError, match=r"T5ForConditionalGeneration.*encoder-decoder"):
            sampler(T5ForConditionalGeneration(config), eos_ids=())


def test_a_sliding_window_is_refused_unless_it_never_bites():
    config = MistralConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=64, sliding_window=32, max_position_embeddings=512
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()
    with pytest.raises(UserError, match="sliding window of 32 tokens is shorter than the longest input of 512"):
        NativeSampler(model, eos_ids=())
    native = complete(NativeSampler(model, eos_ids=(), max_model_len=32), cohort(2, 2, max_tokens=100))
    slow = complete(HFSampler(model, eos_ids=(), max_model_len=32), cohort(2, 2, max_tokens=100))
    assert [c.ids for c in native] == [c.ids for c in slow]
    assert {len(c.ids) for c in native} == {32 - 9}


def test_attention_with_something_of_its_own_is_found_by_the_probe(monkeypatch):
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.5
    NativeSampler(model, eos_ids=())  # another scale is handed over, and is fine
    rotary = model.model.rotary_emb.forward
    monkeypatch.setattr(
        model.model.rotary_emb,
        "forward",
        lambda x, position_ids: rotary(x, position_ids * (1 + (model.config._attn_implementation == "sdpa"))),
    )
    with pytest.raises(UserError, match=r"LlamaForCausalLM: plain causal attention changes its logits"):
        NativeSampler(model, eos_ids=())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_requests_that_cannot_be_met_are_refused(model, sampler):
    engine = sampler(model, eos_ids=())
    bad = [
        (replace(ask(), adapter="tuned"), "adapter 'tuned'"),
        (replace(ask(), media={"pixels": torch.zeros(1)}), "media"),
        (dataclasses.replace(ask(), ids=()), "no tokens"),
        (ask(top_p=2.0), "top_p=2.0"),
    ]
    for request, message in bad:
        with pytest.raises(UserError, match=message):
            complete(engine, [request])
