import json
import os
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cohort.data.tasks import arithmetic
from cohort.errors import UserError
from cohort.starter import build
from cohort.starter.build import cache_folder, fingerprint, publish, starter_model
from cohort.starter.model import CONTEXT, new_model, starter_config
from cohort.starter.supervised import LONGEST_ANSWER, Recipe, encode, learn, measure, train
from cohort.starter.tokenizer import CHARACTERS, build_tokenizer, prompt_text

SHORT = Recipe(batch_size=8, target=0.0, watch_from=0.0, measure_every=2, measured=8, log_every=1)
"""Stops at its first measurement, after two steps."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "CARD_PROBLEMS", 8)
    return tmp_path / "cache"


# --- tokenizer ----------------------------------------------------------------------------------


def test_every_printable_character_round_trips():
    tokenizer = build_tokenizer(CONTEXT)
    ids = tokenizer(CHARACTERS, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(set(ids)) == len(CHARACTERS) == 96
    assert tokenizer.decode(ids) == CHARACTERS
    assert len(tokenizer) == starter_config().vocab_size == 102


def test_other_characters_become_unknown_one_by_one():
    tokenizer = build_tokenizer(CONTEXT)
    ids = tokenizer("1é漢+\t2", add_special_tokens=False)["input_ids"]
    assert len(ids) == 6
    assert ids.count(tokenizer.unk_token_id) == 3


def test_the_template_writes_what_training_saw():
    tokenizer = build_tokenizer(CONTEXT)
    question = [{"role": "user", "content": "347+285="}]
    text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    assert text == prompt_text("347+285=") == "<user>347+285=<assistant>"
    talk = [{"role": "system", "content": "Add."}, *question, {"role": "assistant", "content": "#### 632"}]
    text = tokenizer.apply_chat_template(talk, tokenize=False)
    assert text == "<system>Add.<user>347+285=<assistant>#### 632<eos>"
    assert tokenizer(text, add_special_tokens=False)["input_ids"][-1] == tokenizer.eos_token_id


# --- supervised learning ------------------------------------------------------------------------


def test_the_mask_covers_the_answer_and_its_end():
    tokenizer = build_tokenizer(CONTEXT)
    batch = [("1+2=", "1+2=3 #### 3"), ("347+285=", arithmetic.worked_answer(347, 285))]
    ids, mask = encode(tokenizer, batch)
    for row, row_mask, (_, answer) in zip(ids, mask, batch, strict=True):
        assert tokenizer.decode(row[row_mask.bool()]) == answer + "<eos>"


def test_the_longest_answer_fits():
    answers = [arithmetic.worked_answer(a, b) for a, b in ((99, 99), (55, 55), (98, 97))]
    assert max(map(len, answers)) + 1 < LONGEST_ANSWER


def test_learning_lowers_the_loss_and_the_probability_is_that_of_the_demonstration():
    tokenizer, model = build_tokenizer(CONTEXT), new_model(0)
    ids, mask = encode(tokenizer, next(arithmetic.demonstrations(0, 4, worked=1.0)))
    with torch.no_grad():
        log_probs = model(input_ids=ids[:, :-1]).logits.log_softmax(-1)
    picked = log_probs.gather(2, ids[:, 1:, None])[:, :, 0] * mask[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    losses = []
    for step in range(40):
        loss, whole = learn(model, optimizer, ids, mask, clip_grad=1.0)
        losses.append(loss)
        if step == 0:
            assert whole == pytest.approx(float(picked.sum(1).exp().mean()), rel=1e-4)
            assert loss == pytest.approx(float(-picked.sum() / mask[:, 1:].sum()), rel=1e-5)
    assert losses[-1] < 0.5 * losses[0]


def test_padding_changes_no_gradient():
    tokenizer = build_tokenizer(CONTEXT)
    short, long = ("1+2=", "1+2=3 #### 3"), ("347+285=", arithmetic.worked_answer(347, 285))
    alone, padded = new_model(1), new_model(1)
    rows = encode(tokenizer, [short])
    both = encode(tokenizer, [short, long])
    for model, (ids, mask) in ((alone, rows), (padded, (both[0][:1], both[1][:1]))):
        learn(model, torch.optim.SGD(model.parameters(), lr=0.1), ids, mask, clip_grad=1e9)
    for left, right in zip(alone.parameters(), padded.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_training_is_deterministic_and_leaves_global_state_alone():
    torch.manual_seed(5)
    torch.set_num_threads(2)
    state = torch.random.get_rng_state()
    first = train(SHORT, lambda line: None)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(6)
    second = train(SHORT, lambda line: None)
    for left, right in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(left, right)
    other = train(replace(SHORT, seed=1), lambda line: None)
    assert not torch.equal(first.model.lm_head.weight, other.model.lm_head.weight)


def test_accuracy_counts_right_answers_that_end(monkeypatch):
    tokenizer, model = build_tokenizer(CONTEXT), new_model(0)
    rows = arithmetic.rows("test", 4, 1)
    keys = [row["reward_model"]["ground_truth"] for row in rows]
    texts = [f"#### {keys[0]}<eos>", f"#### {keys[1]}", "#### 1<eos>", f"{keys[3]}<eos>"]
    answers = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")["input_ids"]
    monkeypatch.setattr(model, "generate", lambda input_ids, **_: torch.cat([input_ids, answers], 1))
    accuracy = measure(model, tokenizer, rows, seed=0)
    assert accuracy.right == 1 / 4
    assert accuracy.parsed == 2 / 4


def test_giving_up_is_an_error():
    with pytest.raises(RuntimeError, match="after 2 steps the starter model is not yet right 150% of the time"):
        train(replace(SHORT, target=1.5, max_steps=2), lambda line: None)


# --- the cached folder --------------------------------------------------------------------------


def test_the_folder_is_an_ordinary_one_and_is_built_once(cache):
    lines = []
    folder = starter_model(lines.append, recipe=SHORT)
    assert folder.parent == cache
    assert lines
    assert all("\n" not in line for line in lines)
    lines.clear()
    assert starter_model(lines.append, recipe=SHORT) == folder
    assert lines == []

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    trained = train(SHORT, lambda line: None)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2="}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert torch.equal(model(**ids).logits, trained.model(**ids).logits)
    assert model.config.model_type == "qwen3"
    assert model.config.head_dim >= 32
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    assert tokenizer.decode(tokenizer("12+34= a")["input_ids"]) == "12+34= a"

    card = json.loads((folder / "starter.json").read_text())
    assert {"sampled_accuracy", "greedy_accuracy", "parsed", "seconds", "steps", "recipe"} <= set(card)
    assert card["parameters"] == model.num_parameters()
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_another_recipe_is_another_folder():
    assert fingerprint(SHORT) == fingerprint(replace(SHORT))
    assert len({fingerprint(SHORT), fingerprint(Recipe()), fingerprint(replace(SHORT, seed=1))}) == 3


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("COHORT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "cohort"
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("COHORT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert str(cache_folder()).endswith(os.path.join(".cache", "cohort"))


def test_a_failed_build_leaves_nothing(cache):
    with pytest.raises(RuntimeError, match="not yet right"):
        starter_model(recipe=replace(SHORT, target=1.5, max_steps=2))
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write the starter model to .*; set COHORT_CACHE"):
        starter_model(recipe=SHORT)


def test_the_first_of_two_builders_wins(tmp_path):
    first, second, folder = tmp_path / "a", tmp_path / "b", tmp_path / "starter"
    for draft in (first, second):
        draft.mkdir()
        (draft / "starter.json").write_text(draft.name)
    publish(first, folder)
    publish(second, folder)
    assert (folder / "starter.json").read_text() == "a"
    (folder / "starter.json").unlink()
    (folder / "other").write_text("")
    with pytest.raises(OSError, match="not empty"):
        publish(second, folder)


@pytest.mark.slow
def test_the_committed_recipe_is_right_some_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    card = json.loads((starter_model() / "starter.json").read_text())
    assert 0.33 <= card["sampled_accuracy"] <= 0.58
    assert card["greedy_accuracy"] > card["sampled_accuracy"]
    assert card["parsed"] >= 0.95
