"""``cohort explain``: every name has what it needs, and the worked example shows the function's own numbers."""

import re
import subprocess
import sys

import pytest
import torch

from cohort.algorithms.correction_settings import PRESETS as CORRECTIONS
from cohort.algorithms.group import grpo, rloo
from cohort.algorithms.kl import KL_KINDS
from cohort.algorithms.masking import AGGREGATIONS
from cohort.algorithms.registry import ADVANTAGES, POLICY_LOSSES
from cohort.cli.main import main
from cohort.config.load import presets
from cohort.config.tree import keys
from cohort.explain.catalogue import KINDS, TERMS
from cohort.explain.docstring import clause, parse
from cohort.explain.entries import explain
from cohort.explain.pages import PAGES, page
from cohort.rewards.registry import REWARDS
from cohort.tracking.metrics_page import MEANINGS, meanings_of
from tests.pages import ROOT

ALGORITHMS = [
    (kind, name)
    for kind in KINDS
    if kind not in ("preset", "reward", "metric")
    for name in KINDS[kind]
]  # fmt: skip


@pytest.fixture
def shown(capsys, monkeypatch):
    """Runs the command and returns exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["explain", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_names_are_those_of_the_registries():
    assert set(KINDS["advantage estimator"]) == set(ADVANTAGES)
    assert set(KINDS["policy loss"]) == set(POLICY_LOSSES)
    assert set(KINDS["KL kind"]) == set(KL_KINDS)
    assert set(KINDS["aggregation"]) == set(AGGREGATIONS)
    assert KINDS["sampler correction"] == tuple(CORRECTIONS)
    assert KINDS["reward"] == tuple(REWARDS)
    assert KINDS["preset"] == presets()


@pytest.mark.parametrize(("kind", "name"), ALGORITHMS)
def test_every_algorithm_has_formula_paper_keys_and_wrong_choice(kind, name):
    said = explain(kind, name)
    assert said.summary.endswith((".", ":", "0")), said.summary
    for part in ("formula", "paper", "wrong", "settings"):
        assert getattr(said, part), f"{kind} {name} has no {part}"
    assert "Paper:" not in " ".join(said.details)
    for setting in said.settings:
        assert setting.key.partition("=")[0] in keys()
        assert setting.meaning


@pytest.mark.parametrize("name", presets())
def test_a_preset_shows_its_parts_and_what_it_changes(name):
    said = explain("preset", name)
    assert said.summary
    assert "A null follows" not in said.summary
    assert [role for role, _ in said.parts[:3]] == ["advantage", "loss of a token", "loss of an update"]
    assert all(part.formula for _, part in said.parts)
    assert len(said.settings) > 3


@pytest.mark.parametrize("name", KINDS["reward"])
def test_every_reward_has_a_summary(name):
    said = explain("reward", name)
    assert said.summary
    assert said.settings[0].key == f"reward.functions=[{{name: {name}}}]"


def test_keys_of_an_estimator_are_those_that_training_reads():
    said = explain("advantage estimator", "gae")
    assert [s.key for s in said.settings[:3]] == ["algorithm.adv_estimator=gae", "algorithm.gamma", "algorithm.lam"]
    assert [name for name, _, _ in said.options] == ["whiten"]  # gamma and lam have keys


def test_a_loss_names_the_numbers_it_logs():
    assert explain("policy loss", "kl_cov").metrics == ("actor/pg_loss", "actor/ppo_kl")
    assert "actor/pg_clipfrac_lower" in explain("policy loss", "vanilla").metrics


def test_a_docstring_is_taken_apart():
    said = parse(
        """Does a thing.

            a = b
              + c

        More of it, over
        two lines.

        Args:
            x: first,
                goes on.
            y: second.

        Paper: Somebody
            2020.
        Wrong choice when: never.
        """
    )
    assert said.summary == "Does a thing."
    assert said.formula == "a = b\n  + c"
    assert said.paragraphs == ("More of it, over two lines.",)
    assert said.arguments == {"x": "first, goes on.", "y": "second."}
    assert (said.paper, said.wrong) == ("Somebody 2020.", "never.")


def test_a_clause_is_found_by_whole_words():
    assert clause("token-mean is A; seq-mean-token-mean is B.", "token-mean") == "token-mean is A"


def test_metrics_are_found_by_name_with_or_without_placeholders(shown):
    assert meanings_of("val-core/openai/gsm8k/acc/mean@4")[0].pattern == "val-core/<source>/<var>/mean@N"
    assert meanings_of("reward/reward_model/mean")[0].pattern == "reward/reward_model/mean"
    assert meanings_of("nothing/at_all") == []
    code, out, _ = shown("actor/ppo_kl")
    assert code == 0
    assert "Healthy: 0 with one update per step" in out
    for meaning in MEANINGS:
        assert meanings_of(meaning.pattern)[0] == meaning


def test_without_a_name_everything_is_listed(shown):
    code, out, _ = shown()
    assert code == 0
    for name in ("tir_optimal_token_baseline", "clip_cov", "k3+", "sequence_mask", "gsm8k", "chord", "actor/ppo_kl"):
        assert name in out


def test_a_name_of_two_kinds_shows_both(shown):
    code, out, _ = shown("grpo")
    assert code == 0
    assert "grpo  preset" in out
    assert "grpo  advantage estimator" in out
    assert out.count("A_i = (s_i - mean(s_group)) / (std + epsilon)") == 1
    assert "[1 - clip_low, 1 + clip_high]" in out  # no markup


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gspoo"], "cohort explain gspoo: no such preset, algorithm, reward or metric; did you mean gspo?"),
        (["pg_clipfrac"], "did you mean actor/pg_clipfrac?"),
        (["qqqqqqqq"], "cohort explain without a name lists them all"),
        (["grpo", "--rewards", "1,0"], "--rewards belongs to the worked example"),
        (["advantage"], "needs --rewards, a score for each answer"),
        (["advantage", "--rewards", "1,x"], "--rewards 1,x: 'x' is no number"),
        (["advantage", "--rewards", "1,inf"], "inf is not finite"),
        (["advantage", "--rewards", "1,0", "--estimator", "rlo"], "did you mean rloo?"),
        (["advantage", "--rewards", "1,0", "--groups", "0,1,1"], "--groups: 3 numbers for 2 answers"),
        (["advantage", "--rewards", "1,0", "--groups", "0,0.5"], "expects whole numbers from 0 on"),
        (["advantage", "--rewards", "1,0", "--lengths", "0,1"], "expects whole numbers from 1 on"),
        (["advantage", "--rewards", "1,0", "--lengths", "99"], "room for 32"),
        (["advantage", "--rewards", "1,0", "--estimator", "gae"], "gae needs the critic's value of each token"),
        (["advantage", "--rewards", "1,0", "--values", "1"], "--values: grpo does not read it"),
        (
            ["advantage", "--rewards", "1", "--estimator", "gae", "--values", "1,2"],
            "2 numbers for an answer of 3 tokens",
        ),
        (["advantage", "--rewards", "1,0", "--option", "scal=none"], "did you mean scale?"),
        (["advantage", "--rewards", "1,0", "--option", "scale=foo"], "grpo: scale 'foo' is not one of"),
        (["advantage", "--rewards", "1,0", "--option", "epsilon=x"], "--option epsilon=x: expects a number"),
        (["advantage", "--parts", "1,0;1", "--estimator", "gdpo"], "--parts 1,0;1: each part needs a score"),
    ],
)
def test_bad_input_is_one_line(words, message, shown):
    code, out, err = shown(*words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_the_worked_example_shows_the_classic_numbers(shown):
    code, out, _ = shown("advantage", "--rewards", "1,0,1", "--estimator", "grpo")
    assert code == 0
    assert re.search(r"0\s+score\s+3\s+0\.6667\s+0\.5774", out)
    assert re.search(r"^\s*1\s+0\s+3\s+0\s+0\.6667\s+-0\.6667\s+0\.5774\s+-1\.1547$", out, re.MULTILINE)
    assert re.search(r"answer 0\s+0\.5773\s+0\.5773\s+0\.5773", out)


def test_the_numbers_are_those_of_the_function(shown, monkeypatch):
    seen = {}

    def spy(**arguments):
        seen.update(arguments)
        return rloo(**arguments)

    spy.__doc__ = rloo.__doc__
    monkeypatch.setitem(ADVANTAGES, "rloo", type(ADVANTAGES["rloo"])(function=spy, group_baseline=True))
    words = ("--rewards=-1,0,1,1,5", "--groups", "0,0,1,1,2", "--lengths", "3,2,4,1,1", "--estimator", "rloo")
    code, out, _ = shown("advantage", *words)
    assert code == 0
    assert seen["mask"].sum(dim=1).tolist() == [3, 2, 4, 1, 1]
    assert seen["rewards"][0].tolist() == [0, 0, -1, 0]
    assert seen["group"].tolist() == [0, 0, 1, 1, 2]
    assert re.search(r"answer 1\s+1\s+1\s+\.\s+\.", out)
    assert "A group of one has nothing to compare with" in out
    assert "scores are all equal" in out


def test_options_reach_the_function(shown):
    _, out, _ = shown("advantage", "--rewards", "1,0,1", "--option", "scale=batch", "--option", "epsilon=1")
    rewards, mask = torch.tensor([[1.0], [0.0], [1.0]]), torch.ones(3, 1)
    expected = grpo(rewards, mask, torch.zeros(3, dtype=torch.long), scale="batch", epsilon=1).advantages
    assert f"{float(expected[0, 0]):.4f}" in out


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_every_estimator_has_a_worked_example(name, shown):
    entry = ADVANTAGES[name]
    words = ["--rewards", "1,0,0.5", "--lengths", "3,1,2", "--estimator", name]
    options = {
        "values": ["--values", "0.5"],
        "baseline": ["--baseline", "0.5"],
        "parts": ["--parts", "1,0,1;0.5,nan,1"],
        "old_log_probs": ["--old-log-probs=-0.7"],
        "sum_pi_squared": ["--sum-pi-squared", "0.4"],
    }
    for need in entry.needs:
        words += options.get(need, [])
    code, out, err = shown("advantage", *words)
    assert (code, err) == (0, "")
    assert f"Per token, from {entry.function.__module__}.{entry.function.__name__}" in out


def test_names_and_mistakes_import_no_torch():
    code = (
        "import sys; from cohort.cli.main import main; codes = [main(['explain']), main(['explain', 'gspoo']),"
        "main(['explain', 'actor/ppo_kl'])];"
        "sys.exit(f'{codes} torch' if 'torch' in sys.modules or codes != [0, 2, 0] else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", list(PAGES))
def test_the_pages_are_written_from_the_code(name):
    text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    assert text == page(name), "run: python -m cohort.explain.pages docs/algorithms"


def test_every_registered_name_has_a_section():
    text = "\n".join(page(name) for name in PAGES)
    headed = set(re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^## .*$", text, re.MULTILINE))))
    for name in (*ADVANTAGES, *POLICY_LOSSES, *KL_KINDS, *AGGREGATIONS, *TERMS):
        assert name in headed, f"docs/algorithms has no section for {name}"
    for name in CORRECTIONS:
        assert f"| `{name}` |" in text
    overview = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    for name in (*ADVANTAGES, *POLICY_LOSSES, *KL_KINDS, *AGGREGATIONS):
        assert f"`{name}`" in overview or name.endswith("+"), f"docs/algorithms.md does not name {name}"


def test_links_between_the_pages_hold():
    for name in ("algorithms.md", *(f"algorithms/{part}.md" for part in PAGES)):
        place = ROOT / "docs" / name
        for target, anchor in re.findall(r"\]\(([\w/.]*\.md)?#?([\w-]*)\)", place.read_text(encoding="utf-8")):
            goal = (place.parent / target) if target else place
            assert goal.is_file(), f"{name}: {target}"
            headings = re.findall(r"^#+ (.*)$", goal.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert not anchor or anchor.removesuffix("-1") in anchors or anchor in anchors, f"{name}: #{anchor}"
