"""Sequence classifiers: logits at each row's own last token, whatever the folder calls padding."""

import pytest
import torch

from cohort.errors import UserError
from cohort.models.classifier import Classifier, load_classifier
from cohort.models.micro import Budget
from tests.tiny import byte_tokenizer, tiny_classifier, tiny_model

EOS, PAD = 257, 256
ROWS = [[65, 66, 67, EOS], [70], [71, 72, EOS, EOS], [80, PAD], list(range(60, 90)), [90, 91, EOS]]


def own_logits(model, row: list[int]) -> torch.Tensor:
    """The head at the last token of one row, by hand  # (labels,)."""
    body = model.transformer if hasattr(model, "transformer") else model.model
    with torch.no_grad():
        return model.score(body(torch.tensor([row])).last_hidden_state[0, -1])


@pytest.mark.parametrize("pad", [None, EOS, PAD, 0])
@pytest.mark.parametrize("architecture", ["qwen3", "gpt2", "llama"])
def test_the_score_is_read_at_the_last_token_whatever_the_padding_id_is(architecture, pad):
    model = tiny_classifier(architecture, pad_token_id=pad)
    found = Classifier(model).logits(ROWS)
    expected = torch.stack([own_logits(model, row) for row in ROWS])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0.1  # the rows do differ


def test_hugging_face_itself_reads_one_token_too_early_where_padding_is_the_end_token():
    """Why the module does not leave pooling to the folder's padding id."""
    model = tiny_classifier(pad_token_id=EOS)
    row = [65, 66, 67, EOS]
    with torch.no_grad():
        theirs = model(torch.tensor([row])).logits[0]
    assert (theirs - own_logits(model, row)).abs() > 0.01


@pytest.mark.parametrize("architecture", ["qwen3", "gpt2", "mistral", "qwen3_moe", "bert"])
@pytest.mark.parametrize("budget", [Budget(), Budget(max_rows=2), Budget(max_tokens=12), Budget(max_rows=1)])
def test_a_row_scores_alone_as_in_a_batch(architecture, budget):
    model = tiny_classifier(architecture, labels=3)
    alone = torch.cat([Classifier(model, budget=Budget(max_rows=1)).logits([row]) for row in ROWS])
    torch.testing.assert_close(Classifier(model, budget=budget).logits(ROWS), alone, atol=1e-6, rtol=1e-6)


def test_micro_batches_hold_the_budget_and_every_row_once():
    classifier = Classifier(tiny_classifier(), budget=Budget(max_tokens=20, max_rows=3))
    lengths = [3, 9, 10, 1, 30, 2, 2, 2, 2, 6]
    micros = classifier.plan(lengths)
    assert sorted(i for micro in micros for i in micro) == list(range(len(lengths)))
    for micro in micros:
        assert len(micro) <= 3
        assert len(micro) == 1 or len(micro) * max(lengths[i] for i in micro) <= 20
    assert classifier.plan([]) == []
    assert classifier.logits([]).shape == (0, 1)


def test_every_id_may_end_a_row():
    """An id must be left to fill with, also where a batch ends with every id of a small vocabulary."""
    classifier = Classifier(tiny_classifier(vocab_size=5, pad_token_id=None))
    rows = [[1] * (i + 1) + [i] for i in range(5)]
    alone = torch.cat([classifier.logits([row]) for row in rows])
    torch.testing.assert_close(classifier.logits(rows), alone, atol=1e-6, rtol=1e-6)


def test_a_model_that_reads_padding_is_refused_or_runs_one_row_at_a_time():
    class ReadsPadding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_classifier()

        def __getattr__(self, name):
            return super().__getattr__(name) if name in ("inner", "_modules") else getattr(self.inner, name)

        def forward(self, input_ids, attention_mask):
            out = self.inner(input_ids=input_ids)
            out.logits = out.logits + input_ids.shape[1]
            return out

    with pytest.raises(UserError, match=r"scores an answer otherwise in a batch .*micro_batch_size_per_gpu=1"):
        Classifier(ReadsPadding())
    assert Classifier(ReadsPadding(), budget=Budget(max_rows=1)).logits([[1, 2], [3]]).shape == (2, 1)


def test_it_is_frozen_and_in_the_compute_type():
    classifier = Classifier(tiny_classifier().train(), compute_dtype=torch.bfloat16)
    assert {p.dtype for p in classifier.model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in classifier.model.parameters())
    assert not any(module.training for module in classifier.model.modules())
    assert classifier.logits(ROWS).dtype == torch.float32


def test_loading(tmp_path):
    tiny_classifier(labels=2).save_pretrained(tmp_path / "C")
    classifier = Classifier(load_classifier(tmp_path / "C", device="cpu"))
    assert classifier.labels == ("LABEL_0", "LABEL_1")
    assert classifier.longest_input == 512
    expected = Classifier(tiny_classifier(labels=2)).logits(ROWS)
    torch.testing.assert_close(classifier.logits(ROWS), expected)

    tiny_model().save_pretrained(tmp_path / "LM")
    byte_tokenizer().save_pretrained(tmp_path / "LM")
    with pytest.raises(UserError, match=r"no trained sequence classifier.*score\.weight"):
        load_classifier(tmp_path / "LM", device="cpu")
    with pytest.raises(UserError, match="cannot load a sequence classifier"):
        load_classifier(tmp_path / "nothing", device="cpu")
