import pytest
from transformers import GenerationConfig, Qwen3Config

from cohort.data.tokenizer import eos_ids, load_tokenizer, prefill, render, turn_end_id
from cohort.errors import UserError
from tests.tiny import byte_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = CHATML.replace("<|im_start|>assistant\n' }}{% endif", "<|im_start|>assistant\n<think>\n' }}{% endif")
STRICT = "{{ raise_exception('no assistant') if messages[-1]['role'] == 'assistant' or messages|length > 1 else 'x' }}"
UNMARKED = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


def chatml(template=CHATML):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    return tokenizer


def test_eos_is_the_union_of_all_declarations():
    tokenizer = chatml()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config = Qwen3Config(eos_token_id=300)
    assert eos_ids(tokenizer, config, GenerationConfig(eos_token_id=[301, 302])) == tuple(
        sorted({257, 300, 301, 302, end})
    )
    assert eos_ids(tokenizer, config, GenerationConfig(eos_token_id=303)) == tuple(sorted({257, 300, 303, end}))
    assert eos_ids(tokenizer) == tuple(sorted({257, end}))


def test_pad_that_is_eos_still_ends_a_response():
    tokenizer = byte_tokenizer(pad_is_eos=True)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 257
    assert eos_ids(tokenizer, Qwen3Config(eos_token_id=257)) == (257,)


@pytest.mark.parametrize(
    ("template", "expected"), [(CHATML, "<|im_end|>"), (UNMARKED, None), (STRICT, None), (None, None)]
)
def test_turn_end_is_found_in_the_template(template, expected):
    tokenizer = chatml(template)
    token = turn_end_id(tokenizer)
    assert (None if token is None else tokenizer.decode([token])) == expected


@pytest.mark.parametrize(("template", "expected"), [(CHATML, ""), (THINKING, "<think>\n"), (STRICT, ""), (None, "")])
def test_prefill_is_what_the_template_writes_into_the_answer(template, expected):
    assert prefill(chatml(template)) == expected


def test_prefill_of_a_switch():
    tokenizer = chatml(
        CHATML.replace(
            "assistant\n' }}{% endif", "assistant\n' + ('<think>\n\n</think>\n\n' if quiet else '') }}{% endif"
        )
    )
    assert prefill(tokenizer, quiet=True) == "<think>\n\n</think>\n\n"
    assert prefill(tokenizer, quiet=False) == ""


def test_render_opens_the_answer_or_continues_it():
    tokenizer = chatml()
    ids, text = render(tokenizer, [{"role": "user", "content": "hi"}])
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids) == text
    _, text = render(tokenizer, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}])
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell,"


def test_special_tokens_of_a_template_are_not_added_twice():
    tokenizer = byte_tokenizer()
    tokenizer.add_bos_token = True
    tokenizer.chat_template = "<eos>{{ messages[0]['content'] }}"
    ids, _ = render(tokenizer, "a")
    assert ids.count(257) == 1


def test_loading(tmp_path):
    saved = byte_tokenizer()
    saved.pad_token = None
    saved.save_pretrained(tmp_path / "model")
    tokenizer = load_tokenizer(tmp_path / "model")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert render(tokenizer, "a")[1] == "<user>a<eos><assistant>"
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }}?")
    for template in ("{{ messages[0]['content'] }}?", str(tmp_path / "t.jinja")):
        assert render(load_tokenizer(tmp_path / "model", chat_template=template), "a")[1] == "a?"
    with pytest.raises(UserError, match="neither a template nor a file"):
        load_tokenizer(tmp_path / "model", chat_template="nowhere.jinja")


def test_no_tokenizer_is_one_line(tmp_path):
    with pytest.raises(UserError, match="has no tokenizer that loads") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="actor_rollout_ref.model.path=.*nope: no such folder"):
        load_tokenizer(tmp_path / "nope")
