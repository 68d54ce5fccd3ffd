"""The classifier on one CUDA device, in bfloat16 as the rule says, against the CPU in float32."""

import pytest
import torch

from cohort.models.classifier import Classifier, load_classifier
from cohort.models.micro import Budget
from cohort.models.precision import resolve_precision
from tests.tiny import tiny_classifier

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROWS = [[65, 66, 67, 257], [70], [71, 72, 257, 257], [80, 256], list(range(60, 90))]


@pytest.mark.parametrize(("dtype", "tolerance"), [("auto", 0.15), ("float32", 1e-4)])
def test_scores_on_a_gpu(tmp_path, dtype, tolerance):
    tiny_classifier(pad_token_id=257).save_pretrained(tmp_path / "C")
    model = load_classifier(tmp_path / "C", device="cuda")
    compute = resolve_precision(torch.device("cuda"), model.num_parameters(), dtype)
    found = Classifier(model, compute_dtype=compute, budget=Budget(max_rows=2)).logits(ROWS)
    expected = Classifier(tiny_classifier()).logits(ROWS)
    assert ((found - expected).abs() / (1 + expected.abs())).max() < tolerance
