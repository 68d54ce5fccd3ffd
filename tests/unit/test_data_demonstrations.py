"""Rows with an expert's answer become the ids of a sampled answer."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from cohort.data.demonstrations import DemonstrationLoader, build_demonstrations
from cohort.data.files import load_rows, write_rows
from cohort.data.tasks import arithmetic
from cohort.data.tokenizer import eos_ids, render
from cohort.errors import UserError
from cohort.protocols import Sampling
from cohort.rollout.ending import Ending
from cohort.starter.model import CONTEXT
from cohort.starter.supervised import encode as starter_encode
from cohort.starter.tokenizer import build_tokenizer
from cohort.types import Author, FinishReason
from tests.tiny import byte_tokenizer
from tests.unit.test_data_tokenizer import CHATML, THINKING, UNMARKED, chatml

QUESTION = [{"role": "user", "content": "12+34="}]
ROW = {"prompt": QUESTION, "response": "46"}
MISTRAL = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)


def one(row, tokenizer, **options):
    (rollout,) = build_demonstrations([row], tokenizer, **options)
    return rollout


def test_the_prompt_is_the_samplers_and_the_answer_ends_as_the_sampler_does(tokenizer):
    rollout = one(ROW, tokenizer)
    assert rollout.prompt.ids == render(tokenizer, QUESTION)[0]
    assert rollout.response_ids == (*tokenizer("46")["input_ids"], tokenizer.eos_token_id)
    assert rollout.response_ids[-1] in eos_ids(tokenizer)
    assert set(rollout.authors) == {Author.MODEL}
    assert rollout.finish_reason is FinishReason.STOP
    assert rollout.text == "46"


@pytest.mark.parametrize("make", [byte_tokenizer, chatml, lambda: chatml(THINKING), lambda: build_tokenizer(CONTEXT)])
def test_the_sampler_would_have_stopped_at_the_last_id_and_not_before(make):
    tokenizer = make()
    ids = one({**ROW, "response": "2+4=6 1+3=4 #### 46"}, tokenizer).response_ids
    ending = Ending(Sampling(max_tokens=100), frozenset(eos_ids(tokenizer)), tokenizer, room=100)
    assert [ending.push(token) for token in ids] == [None] * (len(ids) - 1) + [FinishReason.STOP]


def test_it_is_what_the_starter_model_learnt_from():
    tokenizer = build_tokenizer(CONTEXT)
    question, answer = arithmetic.question(47, 85), arithmetic.worked_answer(47, 85)
    rollout = one(
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}, tokenizer
    )
    ids, mask = starter_encode(tokenizer, [(question, answer)])
    assert rollout.ids == tuple(ids[0].tolist())
    assert len(rollout.response_ids) == int(mask.sum())


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [*QUESTION, {"role": "assistant", "content": "46"}]},
        {"messages": [*QUESTION, {"role": "assistant", "content": "46", "tool_calls": None}], "answer": "47"},
        {"prompt": QUESTION, "response": "46", "answer": "47"},
        {"prompt": "12+34=", "answer": "46"},
    ],
)
def test_the_forms_of_a_row(tokenizer, row):
    assert one(row, tokenizer).ids == one(ROW, tokenizer).ids


def test_the_last_turn_alone_is_learnt(tokenizer):
    turns = [*QUESTION, {"role": "assistant", "content": "45"}, {"role": "user", "content": "sure?"}]
    rollout = one({"messages": [*turns, {"role": "assistant", "content": "46"}]}, tokenizer)
    assert rollout.prompt.ids == render(tokenizer, turns)[0]
    assert rollout.response_ids == (*tokenizer("46")["input_ids"], 257)


def test_columns_by_name(tokenizer):
    row = {"q": "12+34=", "solution": "46", "response": "no", "messages": [{"role": "user", "content": "no"}]}
    assert one(row, tokenizer, prompt_key="q", response_key="solution").ids == one(ROW, tokenizer).ids


def test_the_templates_own_end_of_turn():
    tokenizer = chatml(CHATML)
    rollout = one(ROW, tokenizer)
    assert tokenizer.decode(rollout.response_ids) == "46<|im_end|>"
    assert one({**ROW, "response": "46<|im_end|>"}, tokenizer).response_ids == rollout.response_ids  # not twice
    assert one(ROW, chatml(UNMARKED)).response_ids[-1] == 257  # the template ends no turn: EOS does


def test_what_the_template_opens_is_not_repeated():
    tokenizer, said = chatml(THINKING), []
    rollout = one({**ROW, "response": "<think>\n6, 4</think>46"}, tokenizer, say=said.append)
    assert rollout.prompt.text.endswith("<think>\n")
    assert tokenizer.decode(rollout.response_ids) == "6, 4</think>46<|im_end|>"
    assert said == []
    one(ROW, tokenizer, say=said.append)
    assert "1 of 1 demonstrations do not start so" in said[0]


def test_the_templates_space_before_an_answer():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = MISTRAL
    assert tokenizer.decode(one(ROW, tokenizer).ids) == "[INST] 12+34= [/INST] 46<eos>"


def test_plain_text_has_one_bos_and_no_space_that_nobody_wrote():
    """A tokenizer that adds BOS and puts a space before the first word, as Llama 2's does."""
    pieces = ["<s>", "</s>", "<unk>", "▁", *"0123456789+=", "▁12"]
    core = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Fuse()
    from tokenizers.processors import TemplateProcessing

    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    core.add_special_tokens(["<s>", "</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    rollout = one({"prompt": "12+34=", "answer": "46"}, tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(rollout.ids)) == [
        "<s>", "▁", "1", "2", "+", "3", "4", "=", "4", "6", "</s>",
    ]  # fmt: skip


def test_long_ones_are_left_out_and_counted_never_cut(tokenizer):
    rows, said = [{**ROW, "response": "4" * n} for n in (1, 30, 2)], []
    limit = len(one(rows[2], tokenizer).ids)
    kept = build_demonstrations(rows, tokenizer, max_length=limit, say=said.append)
    assert [r.prompt.row for r in kept] == [0, 2]
    assert all(r.response_ids[-1] == 257 for r in kept)
    assert f"kept 2 of 3 demonstrations, dropped 1 over {limit} tokens" in said[0] and "data row 2" in said[0]
    with pytest.raises(UserError, match="every demonstration is over 3 tokens"):
        build_demonstrations(rows, tokenizer, max_length=3)


BAD = [
    ({"prompt": "x"}, "no column `messages`, `response` or `answer`.*algorithm.chord.response_key"),
    ({"response": "x"}, "no column `prompt`"),
    ({"prompt": "", "response": "x"}, "not empty"),
    ({"prompt": 3, "response": "x"}, "a string or a list"),
    ({"prompt": "x", "response": ""}, "must be text, not empty"),
    ({"prompt": "x", "answer": 46}, "must be text.*46"),
    ({"prompt": [{"content": "x"}], "response": "y"}, "needs `role` and `content`"),
    ({"messages": QUESTION}, "must be the assistant's.*user"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "at least one other"),
    ({"messages": "x"}, "list of messages"),
    ({"messages": [*QUESTION, {"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "has tool_calls"),
    ({"messages": [*QUESTION, {"role": "assistant", "content": None}]}, "assistant's content must be text"),
    ({"prompt": "x", "response": "4<eos>6"}, "holds '<eos>' before its end"),
    ({"prompt": "x", "response": "y", "images": ["z"]}, "images"),
]


@pytest.mark.parametrize(("row", "message"), BAD)
def test_bad_rows_are_named(tokenizer, row, message, tmp_path):
    path = tmp_path / "expert.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(UserError, match=f"expert.jsonl row 2: .*{message}"):
        build_demonstrations(load_rows(path), tokenizer)


def test_no_end_no_demonstrations(tokenizer):
    with pytest.raises(UserError, match="no demonstrations"):
        build_demonstrations([], tokenizer)
    endless = byte_tokenizer()
    endless.chat_template = None
    endless.eos_token = None
    with pytest.raises(UserError, match="never end"):
        build_demonstrations([{"prompt": "x", "answer": "y"}], endless)


def test_parquet_rows(tokenizer, tmp_path):
    path = write_rows(tmp_path / "expert.parquet", [ROW, {**ROW, "response": "47"}])
    assert [r.text for r in build_demonstrations(load_rows(path), tokenizer)] == ["46", "47"]


def test_the_order_is_a_function_of_seed_and_position(tokenizer):
    made = build_demonstrations([{"prompt": str(i), "answer": str(i)} for i in range(7)], tokenizer)
    loader = DemonstrationLoader(made, seed=3)

    def texts(source, position, size):
        return [tokenizer.decode(row[:1]) for row in source.batch(position, size).response_ids.tolist()]

    whole = texts(loader, 0, 21)
    assert all(sorted(whole[i : i + 7]) == [str(n) for n in range(7)] for i in (0, 7, 14))
    assert whole[:7] != whole[7:14]
    assert whole == [t for p in range(0, 21, 3) for t in texts(DemonstrationLoader(made, seed=3), p, 3)]
    assert whole != texts(DemonstrationLoader(made, seed=4), 0, 21)
    batch = loader.batch(0, 9)
    assert batch.group.tolist() == list(range(9))
    assert (batch.mask.sum(1) == batch.response_lengths).all()
    assert (batch.policy_versions == -1).all() and len(loader) == 7
