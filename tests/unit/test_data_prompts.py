import pytest

from cohort.data.dataset import build_prompts, truncate
from cohort.data.files import load_rows, write_rows
from cohort.data.tokenizer import render
from cohort.errors import UserError
from tests.tiny import byte_tokenizer


def verl_row(question="1+1=", answer="2", **extra):
    return {
        "data_source": "cohort/test",
        "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"index": 0},
        **extra,
    }


def plain(length):
    return {"prompt": "x" * length}


def test_a_verl_row_becomes_a_prompt(tokenizer):
    (prompt,) = build_prompts([verl_row()], tokenizer)
    assert prompt.text == "<system>be brief<eos><user>1+1=<eos><assistant>"
    assert tokenizer.decode(prompt.ids) == prompt.text
    assert [m["role"] for m in prompt.messages] == ["system", "user"]
    assert (prompt.data_source, prompt.ground_truth, prompt.columns["ability"]) == ("cohort/test", "2", "math")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "q", "ground_truth": "a", "answer": "b"}, "a"),
        ({"prompt": "q", "answer": 7}, 7),
        ({"prompt": "q", "reward_model": {"ground_truth": "c"}, "answer": "b"}, "c"),
        ({"prompt": "q", "reward_model": {"style": "rule"}, "answer": "b"}, "b"),
        ({"prompt": "q", "reward_model": None}, None),
        ({"prompt": "q"}, None),
    ],
)
def test_where_the_answer_key_comes_from(tokenizer, row, expected):
    (prompt,) = build_prompts([row], tokenizer)
    assert prompt.ground_truth == expected
    assert prompt.data_source == "unknown"
    assert prompt.columns == row


def test_a_string_is_a_user_message_or_stands_as_it_is(tokenizer):
    (wrapped,) = build_prompts([{"question": "hi"}], tokenizer, prompt_key="question")
    assert wrapped.text == "<user>hi<eos><assistant>"
    assert wrapped.messages == ({"role": "user", "content": "hi"},)
    bare = byte_tokenizer()
    bare.chat_template = None
    (prompt,) = build_prompts([{"prompt": "hi"}], bare)
    assert (prompt.text, prompt.messages) == ("hi", ())
    assert list(prompt.ids) == bare("hi")["input_ids"]
    with pytest.raises(UserError, match="no chat template"):
        build_prompts([verl_row()], bare)


def test_parquet_padding_of_messages_with_none_never_reaches_the_template(tokenizer, tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "a", "name": "eve"}], "n": 1},
        {"prompt": [{"role": "user", "content": "b"}], "n": 2},
    ]
    prompts = build_prompts(load_rows(write_rows(tmp_path / "a.parquet", rows)), tokenizer)
    assert prompts[1].messages == ({"role": "user", "content": "b"},)
    assert prompts[0].messages[0]["name"] == "eve"


@pytest.mark.parametrize("length", [5, 9, 10, 11, 30])
@pytest.mark.parametrize("mode", ["left", "right", "middle"])
def test_truncation_keeps_what_verl_keeps(tokenizer, length, mode):
    limit = 9
    (full,) = build_prompts([plain(length)], tokenizer)
    (prompt,) = build_prompts([plain(length)], tokenizer, max_length=limit, truncation=mode, say=lambda text: None)
    ids = list(full.ids)
    if len(ids) <= limit:
        expected = ids
    else:
        expected = {"left": ids[-9:], "right": ids[:9], "middle": ids[:4] + ids[-5:]}[mode]
    assert list(prompt.ids) == expected
    assert prompt.text == tokenizer.decode(expected)


def test_truncation_error_counts_and_names_the_longest(tokenizer, tmp_path):
    rows = load_rows(write_rows(tmp_path / "t.parquet", [plain(3), plain(50), plain(20)]))
    with pytest.raises(UserError) as caught:
        build_prompts(rows, tokenizer, max_length=10)
    text = str(caught.value)
    assert "2 of 3 prompts are over data.max_prompt_length=10 tokens" in text
    assert f"the longest has 53 ({tmp_path}/t.parquet row 2)" in text
    assert "data.filter_overlong_prompts=True" in text
    with pytest.raises(ValueError, match="3 ids are over 2"):
        truncate((1, 2, 3), 2, "error")
    with pytest.raises(UserError, match="legal are error, left, right, middle"):
        build_prompts(rows, tokenizer, truncation="center")  # pyright: ignore[reportArgumentType]


def test_filter_counts_kept_and_dropped_and_measures_the_sent_ids(tokenizer):
    said = []
    rows = [plain(n) for n in (6, 7, 8, 40)]  # the template adds <user>, <eos>, <assistant>
    prompts = build_prompts(rows, tokenizer, max_length=10, filter_overlong=True, say=said.append)
    assert [prompt.row for prompt in prompts] == [0, 1]
    assert [len(prompt.ids) for prompt in prompts] == [9, 10]
    assert "kept 2 of 4 prompts, dropped 2 over data.max_prompt_length=10 tokens" in said[0]
    assert "43" in said[0]
    with pytest.raises(UserError, match="every prompt is over data.max_prompt_length=5"):
        build_prompts(rows, tokenizer, max_length=5, filter_overlong=True, say=said.append)


def test_measured_length_is_sent_length(tokenizer):
    rows = [verl_row("é日本" * n) for n in range(5)]
    for row, prompt in zip(rows, build_prompts(rows, tokenizer), strict=True):
        ids, text = render(tokenizer, row["prompt"])
        assert prompt.ids == ids
        assert prompt.text == text
        assert tuple(tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"]) == ids


def test_max_samples_is_the_head_or_a_seeded_subset_and_comes_before_the_filter(tokenizer):
    rows = [plain(n) for n in range(1, 101)]

    def chosen(**options):
        return [p.row for p in build_prompts(rows, tokenizer, max_samples=10, **options)]

    assert chosen() == list(range(10))
    assert chosen(shuffle=True, seed=1) == chosen(shuffle=True, seed=1) != chosen(shuffle=True, seed=2)
    assert len(set(chosen(shuffle=True))) == 10
    kept = chosen(shuffle=True, seed=1, max_length=50, filter_overlong=True, say=lambda text: None)
    assert kept == [row for row in chosen(shuffle=True, seed=1) if row + 4 <= 50]
    assert len(build_prompts(rows, tokenizer, max_samples=1000)) == 100


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "gold": 1}, "no column `prompt` (data.prompt_key); the row has: question, gold"),
        ({"prompt": ""}, "must be a string or a list of messages, not empty"),
        ({"prompt": []}, "must be a string or a list of messages, not empty"),
        ({"prompt": 7}, "must be a string or a list of messages, not empty; it is 7"),
        ({"prompt": [{"content": "q"}]}, "each message of `prompt` needs `role` and `content`"),
        ({"prompt": "q", "images": ["x"]}, "column `images` is not empty"),
    ],
)
def test_bad_rows_name_the_row(tokenizer, row, message):
    with pytest.raises(UserError) as caught:
        build_prompts([{"prompt": "fine"}, row], tokenizer)
    assert str(caught.value).startswith("data row 2: ")
    assert message in str(caught.value)


def test_a_template_that_refuses_names_the_row():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system please') }}"
    with pytest.raises(UserError, match=r"data row 1: the chat template refuses the prompt \(no system please\)"):
        build_prompts([plain(1)], tokenizer)


def test_template_kwargs_reach_the_template_or_are_refused():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking %}!{% endif %}"
    (prompt,) = build_prompts([plain(2)], tokenizer, template_kwargs={"enable_thinking": True})
    assert prompt.text == "xx!"
    with pytest.raises(UserError, match="does not read `enable_thinkin`"):
        build_prompts([plain(2)], tokenizer, template_kwargs={"enable_thinkin": True})
    with pytest.raises(UserError, match="is set by Cohort itself"):
        build_prompts([plain(2)], tokenizer, template_kwargs={"tokenize": True})
