"""Registering, and the rules every formula of ``algorithms/`` keeps: documented, annotated, pure."""

import ast
import importlib
import inspect
import pkgutil
from functools import partial
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

import cohort.algorithms
from cohort.algorithms.kl import KL_KINDS, kl_penalty
from cohort.algorithms.masking import aggregate, counts
from cohort.algorithms.ppo_loss import clipped
from cohort.algorithms.registry import (
    ADVANTAGES,
    POLICY_LOSSES,
    Advantages,
    TokenLoss,
    register_advantage,
    register_policy_loss,
)

FOLDER = Path(cohort.algorithms.__file__).parent
MODULES = [
    importlib.import_module(f"cohort.algorithms.{module.name}") for module in pkgutil.iter_modules([str(FOLDER)])
]
FUNCTIONS = {
    f"{module.__name__.rsplit('.', 1)[1]}.{name}": function
    for module in MODULES
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
}
PLUMBING = {
    "masking.zero_outside",
    "masking.masked_sum",
    "masking.masked_mean",
    "masking.masked_var",
    "masking.counts",
    "ppo_loss.check_clip_range",
    "grouping.group_sum",
    "grouping.group_min",
    "grouping.group_max",
    "grouping.group_statistics",
    "grouping.outcome",
    "grouping.has_siblings",
    "grouping.divide_by_spread",
    "grouping.on_every_token",
    "reinforce.discounted_returns",
    "shaping.place",
    "registry.register_advantage",
    "registry.register_policy_loss",
}


@pytest.fixture(autouse=True)
def _registries_as_they_were():
    before = dict(ADVANTAGES), dict(POLICY_LOSSES)
    yield
    for registry, entries in zip((ADVANTAGES, POLICY_LOSSES), before, strict=True):
        registry.clear()
        registry.update(entries)


def centred(rewards, mask, group, *, shift=0.5):
    advantages = (rewards.sum(1, keepdim=True) - shift) * mask
    return Advantages(advantages, advantages)


def plain(log_probs, old_log_probs, advantages, mask):
    return TokenLoss(-log_probs * advantages * mask, {})


def test_a_function_of_ones_own():
    register_advantage("centred", centred, needs=("values",), group_baseline=True)
    entry = ADVANTAGES["centred"]
    assert (entry.function, entry.needs, entry.group_baseline) == (centred, ("values",), True)
    register_policy_loss("plain", plain, select=torch.zeros_like)
    assert POLICY_LOSSES["plain"].function is plain
    assert POLICY_LOSSES["plain"].select is torch.zeros_like


def test_a_name_stands_for_one_function():
    register_advantage("mine", centred)
    register_advantage("mine", centred)  # the same again is no conflict
    with pytest.raises(ValueError, match=r"advantage 'mine' is already .*centred: choose another name"):
        register_advantage("mine", lambda rewards, mask, group: Advantages(rewards, rewards))
    with pytest.raises(ValueError, match="'mine' is already"):
        register_advantage("mine", centred, needs=("values",))
    with pytest.raises(ValueError, match=r"policy loss 'vanilla' is already cohort\.algorithms\.ppo_loss\.clipped"):
        register_policy_loss("vanilla", plain)
    assert POLICY_LOSSES["vanilla"].function is clipped
    register_policy_loss("vanilla", plain, replace=True)
    assert POLICY_LOSSES["vanilla"].function is plain


def test_errors_name_what_is_legal():
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=r"KL kind 'k4' is not one of kl, k1, .*k3\+"):
        kl_penalty(x, x, "k4")
    with pytest.raises(ValueError, match="aggregation 'mean' is not one of token-mean"):
        aggregate(x, x, "mean", counts(x))
    with pytest.raises(ValueError, match="needs horizon > 0, got None"):
        aggregate(x, x, "seq-mean-token-sum-norm", counts(x))
    with pytest.raises(ValueError, match="dual_clip must be above 1"):
        clipped(x, x, x, x, dual_clip=1)
    with pytest.raises(ValueError, match="must not be negative"):
        clipped(x, x, x, x, clip_low=-0.1)
    with pytest.raises(ValueError, match="scale 'std' is not one of group, batch, none"):
        ADVANTAGES["grpo"].function(x, x, torch.zeros(1, dtype=torch.int64), scale="std")


def documented() -> dict[str, str]:
    """Docstrings of everything that a configuration can name."""
    functions = {f"advantage {name}": entry.function for name, entry in ADVANTAGES.items()}
    functions |= {f"policy loss {name}": entry.function for name, entry in POLICY_LOSSES.items()}
    functions |= {f"KL {name}": f.func if isinstance(f, partial) else f for name, f in KL_KINDS.items()}
    functions["aggregate"] = aggregate
    return {name: inspect.getdoc(function) or "" for name, function in functions.items()}


@pytest.mark.parametrize(("name", "doc"), documented().items())
def test_whatever_can_be_chosen_says_its_paper_and_when_it_is_wrong(name, doc):
    for heading in ("Shapes:", "Paper:", "Wrong choice when:"):
        text = doc.partition(heading)[2].strip()
        assert len(text) > 15, f"{name} has no {heading!r}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_formula_is_documented_and_annotated(name):
    function = FUNCTIONS[name]
    doc = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    annotations = [p.annotation for p in signature.parameters.values()]
    assert inspect.Signature.empty not in [*annotations, signature.return_annotation], "annotate everything"
    assert torch.Tensor not in [*annotations, signature.return_annotation], "say the shape"
    if any("Tensor" in str(annotation) for annotation in annotations if not name.startswith("registry.")):
        assert "Shapes:" in doc
    if name not in PLUMBING:
        assert "Paper:" in doc


def test_plumbing_names_exist():
    assert set(FUNCTIONS) >= PLUMBING


def test_shapes_are_enforced_in_tests():
    with pytest.raises(TypeCheckError):
        counts(torch.ones(3))
    with pytest.raises(TypeCheckError):
        clipped(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1), torch.ones(2, 3))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_algorithms_are_pure(path):
    """No number is read out of a tensor, nothing is printed or moved, nothing else is imported."""
    banned = {"item", "tolist", "numpy", "cpu", "cuda", "device", "manual_seed", "Generator", "distributed"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in banned, f"line {node.lineno}: .{node.attr}"
        if isinstance(node, ast.Name):
            assert node.id not in {"print", "open", "getattr"}, f"line {node.lineno}: {node.id}"
        imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in imported:
            allowed = {"torch", "jaxtyping", "cohort", "math", "typing", "collections", "dataclasses", "functools"}
            assert module.split(".")[0] in allowed, f"line {node.lineno}: import {module}"
            assert not module.startswith("cohort") or module.startswith("cohort.algorithms")
