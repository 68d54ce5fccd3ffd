"""``cohort show``: what the files hold, what is printed, and what is refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from cohort.cli.main import main
from cohort.tracking.colours import COLOURINGS
from cohort.tracking.display import choose_answers, choose_groups
from cohort.tracking.rollouts import RolloutTracker
from cohort.tracking.samples import LATER, SCHEMA, read_step, step_path
from cohort.tracking.scalars import cohorts, scalars
from cohort.types import Group, Score
from tests import records
from tests.tiny import byte_tokenizer
from tests.tiny_run import texts, tiny_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny")


# --- columns


def test_keep_weights_and_the_greedy_answer_are_recorded(tmp_path):
    (group,) = records.groups(1, 2, skill=0.5)
    greedy = records.rollout(group.prompt, 2, Score(value=0.5), text="greedy words")
    record = records.record(1, [replace(group, baseline=greedy)])
    mask = record.experience.batch.mask
    keep, weights = mask.clone(), 0.5 * mask
    keep[1, 0] = 0
    record = replace(record, experience=replace(record.experience, keep=keep, weights=weights))
    RolloutTracker(tmp_path, pieces=texts()).samples(record)
    for row, sample in enumerate(read_step(tmp_path, 1)):
        length = len(sample.author)
        assert sample.keep == keep[row, :length].tolist()
        assert sample.weights == weights[row, :length].tolist()
        assert (sample.baseline_response, sample.baseline_score) == ("greedy words", 0.5)
        assert len(sample.pieces) == length
        assert sample.unrecorded == frozenset()


def old_file(folder):
    """The run's second step as version 1 wrote it."""
    (folder / "rollouts").mkdir(parents=True)
    record = records.record(1, records.groups(3, 4, skill=0.5))
    RolloutTracker(folder / "rollouts").samples(record)
    path = step_path(folder / "rollouts", 1)
    pq.write_table(pq.read_table(path).drop_columns(sorted(LATER)), path)
    return folder


def test_older_files_are_read_and_say_what_they_lack(tmp_path, monkeypatch, capsys):
    folder = old_file(tmp_path / "old")
    samples = read_step(folder / "rollouts", 1)
    assert all(s.unrecorded == LATER and s.keep is s.pieces is s.baseline_score is None for s in samples)
    assert scalars(samples)["training/groups"] == 3
    printed = shown(capsys, monkeypatch, str(folder), "--group", "0")
    assert "texts of tokens: not recorded in this file" in printed
    assert set(SCHEMA.names) > LATER


@pytest.mark.parametrize(
    "text", ["plain words", "naïve Größe", "数学は難しい", "🙂 and 🙃🙂", "a\nb\tc", ""], ids=lambda text: text[:6]
)
def test_pieces_add_up_to_the_text(text):
    ids = byte_tokenizer()(text)["input_ids"]
    pieces = texts()([*ids, 257])
    assert len(pieces) == len(ids) + 1
    assert "".join(pieces) == text + "<eos>"


def test_pieces_of_broken_characters_are_one_each():
    whole = byte_tokenizer()("é")["input_ids"]
    assert texts()([whole[0], *byte_tokenizer()("a")["input_ids"], whole[1]])[1] == "a"
    assert len(texts()([whole[0]] * 5)) == 5


# --- choosing


def test_groups_are_chosen_by_their_mean_and_the_seed(tmp_path):
    outcomes = [s.outcome for s in made_up(tmp_path, 12)]
    means = {number: np.mean([o.score for o in group]) for number, group in cohorts(outcomes).items()}
    chosen = dict(choose_groups(outcomes, seed=1))
    assert list(chosen) == ["best", "worst", "random"]
    assert len(set(chosen.values())) == 3
    assert means[chosen["best"]] == max(means.values())
    assert means[chosen["worst"]] == min(means.values())
    assert choose_groups(outcomes, seed=1) == list(chosen.items())
    assert len({dict(choose_groups(outcomes, seed=seed))["random"] for seed in range(20)}) > 3
    level = [replace(outcome, score=1.0) for outcome in outcomes]
    assert [label for label, _ in choose_groups(level, seed=0)] == ["random"]


def made_up(folder, groups):
    RolloutTracker(folder).samples(records.record(1, records.groups(groups, 4, skill=0.5)))
    return read_step(folder, 1)


def test_answers_are_best_first_and_few(tmp_path):
    scores = [0, 1, None, 0.5, 0.2, 0.7, 1, 0]
    samples = [replace(s, score=score) for s, score in zip(made_up(tmp_path, 2), scores, strict=True)]
    assert [s.score for s in choose_answers(samples, most=0, seed=0)] == [1, 1, 0.7, 0.5, 0.2, 0, 0, None]
    few = choose_answers(samples, most=3, seed=0)
    assert len(few) == 3
    assert {1, 7} <= {samples.index(s) for s in few}, "the best and the worst"
    assert choose_answers(samples, most=1, seed=0)[0].score == 1


# --- the command


def shown(capsys, monkeypatch, *words, width=100, colour=False):
    """What the command prints."""
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if colour:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLORTERM", "truecolor")
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_the_last_step_is_shown(run_folder, capsys, monkeypatch):
    printed = shown(capsys, monkeypatch, str(run_folder))
    assert printed.startswith("step 2  4 groups, 16 answers\n")
    assert "tokens by advantage" in printed
    assert "best group: " in printed
    assert "worst group: " in printed
    assert "random group: " in printed
    assert "\x1b" not in printed
    assert shown(capsys, monkeypatch, str(run_folder)) == printed


def test_a_group_with_everything_that_is_known(run_folder, capsys, monkeypatch):
    printed = shown(capsys, monkeypatch, str(run_folder), "--step", "1", "--group", "1")
    assert "group 1  row 1 of unknown, 4 answers" in printed
    for number in range(4):
        assert f"#{number}  " in printed
    assert "ValueError: no number" in printed
    assert "did not train" in printed
    for word in ("score 0", "parts  acc ", "pred x", "advantage  ", "value  ", "return  ", "length", "12 tokens"):
        assert word in printed, word


@pytest.mark.parametrize(("width", "columns"), [(60, 1), (100, 2), (200, 4)])
def test_answers_stand_side_by_side_where_there_is_room(run_folder, capsys, monkeypatch, width, columns):
    printed = shown(capsys, monkeypatch, str(run_folder), "--group", "0", width=width)
    heads = [line for line in printed.splitlines() if line.startswith("#")]
    assert [line.count("#") for line in heads] == [columns] * (4 // columns)
    assert max(map(len, printed.splitlines())) <= width


@pytest.mark.parametrize("name", COLOURINGS)
def test_every_colouring_with_and_without_colours(run_folder, capsys, monkeypatch, name):
    plain = shown(capsys, monkeypatch, str(run_folder), "--colour", name)
    coloured = shown(capsys, monkeypatch, str(run_folder), "--colour", name, colour=True)
    assert f"tokens by {name} (" in plain
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    if name in ("advantage", "entropy"):  # of a random model: far from 0
        assert "{" in plain.partition("group:")[2]
        assert "48;2;" in coloured


def test_colours_of_another_author_and_of_what_a_rule_left_out(tmp_path, capsys, monkeypatch):
    record = records.record(1, records.groups(1, 2, skill=0.5))
    keep = record.experience.batch.mask.clone()
    keep[0] = 0
    record = replace(record, experience=replace(record.experience, keep=keep))
    RolloutTracker(tmp_path / "rollouts", pieces=texts()).samples(record)
    printed = shown(capsys, monkeypatch, str(tmp_path), "--colour", "author", width=60)
    assert "{environment " in printed
    assert "{untrained " in printed
    assert "a rule left the others out" in printed
    entropy = shown(capsys, monkeypatch, str(tmp_path), "--colour", "entropy", "--tokens", "3", width=60)
    assert "tokens ..." in entropy


def test_a_tensor_that_the_step_did_not_have(tmp_path, capsys, monkeypatch):
    record = records.record(1, records.groups(1, 2, skill=0.5))
    record = replace(record, entropy=None)
    RolloutTracker(tmp_path / "rollouts", pieces=texts()).samples(record)
    assert "entropy: the step had none" in shown(capsys, monkeypatch, str(tmp_path), "--colour", "entropy")


def test_answers_cannot_steer_the_terminal(tmp_path, capsys, monkeypatch):
    group = records.groups(1, 2, skill=0.5)[0]
    evil = "\x1b[2J\x07\r[bold]x[/bold]\u202e"
    asked = replace(group.prompt, text=evil, data_source=evil)
    score = Score(value=1.0, parts={"p": evil})
    rollouts = tuple(replace(r, prompt=asked, text=evil, score=score) for r in group.rollouts)
    record = records.record(1, [Group(prompt=asked, rollouts=rollouts)])
    for pieces in (None, lambda ids: [evil] * len(ids)):
        RolloutTracker(tmp_path / "rollouts", pieces=pieces).samples(record)
        printed = shown(capsys, monkeypatch, str(tmp_path))
        assert not {"\x1b", "\x07", "\r", "\u202e"} & set(printed)
        assert "[bold]x[/bold]" in printed


def test_the_list_of_steps(run_folder, capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, str(run_folder), "--list", width=80).splitlines()
    assert lines[0].split()[:3] == ["step", "answers", "reward"]
    assert "unscorable" in lines[0]
    assert not any("…" in line for line in lines)
    assert [line.split()[:2] for line in lines[1:]] == [["1", "16"], ["2", "16"]]
    assert all(line.split()[3].endswith("/4") and line.split()[-1] == "1" for line in lines[1:])
    assert len(shown(capsys, monkeypatch, str(run_folder), "--list", "--step", "2").splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["RUN", "--step", "9"], "no samples of step 9; it has steps 1 to 2"),
        (["RUN", "--list", "--step", "9"], "no samples of step 9; it has steps 1 to 2"),
        (["RUN", "--group", "9"], "step 2 has no group 9; it has groups 0 to 3"),
        (["NONE"], "there is no such folder; runs there: "),
        (["ABOVE"], "this is no run folder; runs there: "),
        (["EMPTY"], "the run has no samples yet"),
        (["BROKEN"], "this is no parquet file that can be read"),
        (["FOREIGN"], "these are no samples of a run: there is no column group"),
        (["RUN", "--colour", "red"], "invalid choice"),
        (["RUN", "--tokens", "-1"], "0 or more is wanted"),
        (["RUN", "--answers", "x"], "--answers"),
        ([], "RUN"),
    ],
)
def test_what_is_missing_is_one_line(run_folder, tmp_path, words, part, capsys):
    (tmp_path / "empty" / "rollouts").mkdir(parents=True)
    for name in ("broken", "foreign"):
        (tmp_path / name / "rollouts").mkdir(parents=True)
    step_path(tmp_path / "broken" / "rollouts", 1).write_bytes(b"PAR1 nothing")
    table = pq.read_table(step_path(run_folder / "rollouts", 1)).drop_columns(["group"])
    pq.write_table(table, step_path(tmp_path / "foreign" / "rollouts", 1))
    places = {"RUN": run_folder, "NONE": run_folder.parent / "tyni", "ABOVE": run_folder.parent}
    places |= {name: tmp_path / name.lower() for name in ("EMPTY", "BROKEN", "FOREIGN")}
    assert main(["show", *(str(places.get(word, word)) for word in words)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert part in printed.err
    assert len(printed.err.splitlines()) == 1
    if words in (["NONE"], ["ABOVE"]):
        assert str(run_folder) in printed.err


def test_no_torch_and_no_model(run_folder):
    code = (
        "import sys; from cohort.cli.main import main; code = main(sys.argv[1:]) or main([*sys.argv[1:], '--list']);"
        "bad = {'torch', 'transformers', 'hydra', 'ray'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else code)"
    )
    words = [sys.executable, "-c", code, "show", str(run_folder / "rollouts"), "--colour", "kl"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "90"})
    assert done.returncode == 0, done.stderr
    assert "step 2" in done.stdout


def test_the_parts_in_a_file_are_json(run_folder):
    table = pq.read_table(step_path(run_folder / "rollouts", 1))
    assert table.schema.metadata[b"cohort.rollouts"] == b"2"
    assert all(isinstance(json.loads(text), dict) for text in table["reward_parts"].to_pylist())
