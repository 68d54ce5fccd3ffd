"""An order of one's own: the example of docs/which_samples.md as it stands there, and what breaks the contract."""

import json

import pytest

from cohort.assemble.samples import own_order
from cohort.data.loader import ObservingOrder, PromptLoader
from cohort.errors import UserError
from cohort.trainer.checkpoint import Checkpoints
from tests.pages import file_of
from tests.rig import build_parts, build_trainer

PAGE, TITLE = "docs/which_samples.md", "again.py"


@pytest.fixture
def example(tmp_path):
    path = tmp_path / TITLE
    path.write_text(file_of(PAGE, TITLE))
    return str(path)


def run(example):
    trainer = build_trainer(build_parts(), reward=lambda r: float(r.prompt.row != 1), prompts=3, n=2)
    prompts = trainer.prompts.prompts
    trainer.prompts = PromptLoader(prompts, order=own_order(example, "Again", prompts, 1))
    return trainer


def test_the_example_is_short():
    assert file_of(PAGE, TITLE).count("\n") < 30


def test_the_example_brings_back_what_was_wrong_and_resumes(example, tmp_path):
    whole, half, resumed = run(example), run(example), run(example)
    assert isinstance(whole.prompts.order, ObservingOrder)
    drawn = [[g.prompt.row for g in whole.step().collected] for _ in range(4)]
    asked_again = [row for step in drawn[1:] for row in step].count(1)
    assert asked_again >= 3  # every step after the first failure asks row 1 again
    for _ in range(3):
        half.step()
    folder = Checkpoints(tmp_path).save(half)
    assert json.loads((folder / "prompts.json").read_text())
    Checkpoints(tmp_path).restore(resumed, folder)
    assert [g.prompt.row for g in resumed.step().collected] == drawn[-1]
    for trainer in (whole, half, resumed):
        trainer.close()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("def __init__(self, prompts): pass", "Mine(prompts, seed) raised TypeError"),
        ("def __init__(self, *a): raise ValueError('no levels')", "raised ValueError: no levels"),
        ("def __init__(self, *a): pass\n    def __iter__(self): return iter([])", "no method index(position)"),
        ("def __init__(self, *a): pass\n    def index(self, p): return 9", "Mine.index(0) is 9; with 2 prompts"),
        ("def __init__(self, *a): pass\n    def index(self, p): return 0.0", "Mine.index(0) is 0.0"),
        (
            "def __init__(self, *a): pass\n    def index(self, p): return 0\n    def observe(self, g, p): pass",
            "it has observe; an order that observes has observe, state and load_state",
        ),
        (
            "def __init__(self, *a): pass\n    def index(self, p): return 0\n    def observe(self, g, p): pass\n"
            "    def state(self): return {'x': {1}}\n    def load_state(self, s): pass",
            "state() must be what JSON can hold",
        ),
    ],
)
def test_what_breaks_the_contract_is_one_line(body, line, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"class Mine:\n    {body}\n")
    prompts = build_trainer(build_parts()).prompts.prompts[:2]
    with pytest.raises(UserError) as caught:
        own_order(str(path), "Mine", prompts, 1)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_or_class_is_named(example):
    with pytest.raises(UserError, match="data.sampler.class_path=nowhere.py: no such file"):
        own_order("nowhere.py", "Again", [], 1)
    with pytest.raises(UserError, match="class_name=Agian: .* has no such class; it has: Again; did you mean Again"):
        own_order(example, "Agian", [], 1)
