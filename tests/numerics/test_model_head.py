"""The chunked head against the naive way: values, gradients, and the memory that it is for."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cohort.models import head as head_module
from cohort.models.forward import token_stats
from cohort.models.head import head_stats
from cohort.models.layout import Layout
from tests.batches import make_batch
from tests.tiny import tiny_model


def naive(head, hidden, targets, temperature):
    logs = (head(hidden) / temperature).log_softmax(-1)
    p = logs.exp()
    return logs.gather(1, targets[:, None])[:, 0], -(p * logs).sum(-1), p.square().sum(-1)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))])
        return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_match_the_naive_way(monkeypatch, dtype, tolerance, temperature, bias):
    monkeypatch.setattr(head_module, "CHUNK_TOKENS", (7, 7))  # several chunks and a rest
    torch.manual_seed(0)
    head = nn.Linear(16, 50, bias=bias, dtype=dtype)
    hidden = torch.randn(23, 16, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, 50, (23,))
    weights = torch.randn(3, 23, dtype=dtype)

    def gradients(columns):
        loss = sum((w * c).sum() for w, c in zip(weights, columns, strict=True))
        return torch.autograd.grad(loss, [hidden, *head.parameters()])

    found = head_stats(head, hidden, targets, vocabulary=50, temperature=temperature, entropy=True, sum_pi_squared=True)
    expected = naive(head, hidden, targets, temperature)
    for x, y in zip(found, expected, strict=True):
        assert (x - y).abs().max() < tolerance
    for x, y in zip(gradients(found), gradients(expected), strict=True):
        assert (x - y).norm() <= tolerance * y.norm()


def test_each_column_alone_has_the_right_gradient():
    torch.manual_seed(0)
    head, targets = nn.Linear(8, 11, dtype=torch.float64), torch.randint(0, 11, (5,))
    hidden = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)

    def column(i):
        return lambda h: head_stats(
            head, h, targets, vocabulary=11, temperature=0.8, entropy=True, sum_pi_squared=True
        )[i]

    for i in range(3):
        assert torch.autograd.gradcheck(column(i), (hidden,))


def test_what_was_not_asked_for_is_none():
    stats = head_stats(nn.Linear(4, 5), torch.randn(3, 4), torch.tensor([0, 1, 2]), vocabulary=5, temperature=1.0)
    assert stats.entropy is None
    assert stats.sum_pi_squared is None


def test_near_certain_tokens_keep_their_digits():
    """log p of a token with p close to 1, at large logits: the difference of two large numbers would lose it."""
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[1.0], [0.0]])
    stats = head_stats(head, torch.tensor([[12.0]]), torch.tensor([0]), vocabulary=2, temperature=1.0)
    exact = -torch.log1p(torch.exp(torch.tensor(-12.0, dtype=torch.float64)))
    assert float(stats.log_probs) == pytest.approx(float(exact), rel=0.02)


@pytest.mark.parametrize("layout", [Layout(), Layout(packed=False, share_prompt=False)])
def test_the_matrix_of_all_logits_never_exists(layout):
    """Forward and backward, the largest tensor is a chunk of logits, far below (tokens, V)."""
    vocabulary = 40_000
    model = tiny_model(vocab_size=vocabulary, hidden_size=8, head_dim=4, num_hidden_layers=1)
    batch = make_batch([(4, [64] * 8)])
    tokens = int(batch.mask.sum())
    with Largest() as watch:
        token_stats(model, batch, temperature=1.0, layout=layout, entropy=True).log_probs.sum().backward()
    assert head_module.chunk_tokens(vocabulary, torch.device("cpu")) == 128
    assert watch.numel <= 128 * vocabulary
    assert watch.numel < tokens * vocabulary / 3


def test_chunks_are_counted_in_logits():
    cpu = torch.device("cpu")
    assert head_module.chunk_tokens(64, cpu) == 4096
    assert head_module.chunk_tokens(4096, cpu) == 512
    assert head_module.chunk_tokens(150_000, cpu) == 128
