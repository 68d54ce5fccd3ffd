"""What a person sees, in a terminal of 80 columns and in a log file."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import rich.console

from cohort.tracking import answers, report, wording
from cohort.tracking.console import COLUMNS, Console
from cohort.trainer.evaluate import Evaluation, Interval, Result
from cohort.types import FinishReason, Score
from tests import records


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def console(*, terminal=False, width=80, clock=None, encoding="utf-8", **settings):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True, newline="\n")
    output = rich.console.Console(
        file=file,
        force_terminal=terminal,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        color_system="standard" if terminal else None,
        legacy_windows=False,
        _environ={"TERM": "xterm"},
    )
    made = Console(output=output, clock=clock or Clock(), **settings)
    return made, lambda: raw.getvalue().decode(encoding)


def a_run(made, *, steps=12, clock=None):
    """A whole run, every kind of event in it."""
    made.banner(
        "cohort train", ["16 prompts x 8 answers = 128 rollouts a step."], {"model": "starter", "run": "runs/a"}
    )
    first = records.evaluation(20, 4, skill=0.4, greedy=0.5)
    made.validation(0, first)
    for step in range(1, steps + 1):
        if clock:
            clock.now += 2
        record = records.record(
            step, records.groups(4, 4, skill=0.6, step=step), actor__grad_norm=0.2, actor__kl_loss=0.01
        )
        made.samples(record)
        made.log(step, {})
    last = records.evaluation(20, 4, skill=0.9, greedy=0.95, seed=5)
    made.validation(steps, last)
    made.note("a remark")
    made.warn("a warning")
    made.finish(
        first=first,
        last=last,
        folder=Path("runs/cohort/quickstart"),
        picture=Path("runs/cohort/quickstart/curves.png"),
        commands=["cohort generate --model runs/cohort/quickstart/checkpoints/step_12/hf 'What is 12 + 30?'", "second"],
        seconds=184,
    )
    made.close()
    made.close()


def screen(text):
    """The lines a terminal shows after ``text``: carriage return, line feed and erase-line are all it may use."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            lines, column = [*lines, ""], 0
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part.startswith("\x1b"):
            assert part.endswith("m"), f"control code {part!r}"
        else:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


def test_a_log_file_has_plain_lines_only():
    made, text = console(total_steps=12)
    a_run(made)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text())
    assert "━" not in text()  # no bar
    copied = ("cohort generate", "try next")
    assert all(len(line) <= 80 for line in text().splitlines() if not line.startswith(copied))


def test_a_terminal_shows_the_same_lines_and_ends_without_a_bar():
    plain_console, plain = console(total_steps=12)
    a_run(plain_console)
    made, text = console(terminal=True, total_steps=12)
    a_run(made)
    assert [line.rstrip() for line in screen(text())] == [line.rstrip() for line in plain().split("\n")]
    assert "\x1b[?25l" not in text()  # the cursor is never hidden, so Ctrl-C has nothing to put right


def test_the_bar_knows_the_time_left():
    clock = Clock()
    made, text = console(terminal=True, total_steps=40, clock=clock, sample_every=0)
    made.start()
    assert screen(text())[-1].endswith("0/40  first step")
    clock.now = 100.0
    made.validation(0, records.evaluation(4, 1, skill=0.5))  # its time says nothing about the steps
    for step in range(1, 11):
        clock.now += 3
        made.samples(records.record(step, records.groups(2, 2, skill=0.5, step=step)))
    bar = screen(text())[-1]
    assert bar.endswith("10/40  1:30 left")
    assert len(bar) <= 79
    full = bar.count("━")
    assert full / (full + bar.count("─")) == pytest.approx(0.25, abs=0.02)
    made.busy("validating")
    assert screen(text())[-1].endswith("10/40  validating")
    made.close()
    assert screen(text())[-1] == ""


def test_the_length_of_the_run_may_come_later():
    made, text = console(terminal=True)
    made.busy("building the starter model")
    assert screen(text())[-1] == "  building the starter model"
    made.note("built")
    assert screen(text())[-1] == ""
    made.follow(total_steps=8, first_step=2)
    made.start()
    assert screen(text())[-1].endswith("2/8  first step")


def test_a_resumed_run_counts_its_own_steps():
    clock = Clock()
    made, text = console(terminal=True, total_steps=40, first_step=30, clock=clock, sample_every=0)
    made.start()
    clock.now = 5
    made.samples(records.record(31, records.groups(2, 2, skill=0.5)))
    assert screen(text())[-1].endswith("31/40  0:45 left")


def test_a_line_has_its_numbers_under_their_names():
    made, text = console(total_steps=3, sample_every=0)
    for step, numbers in (
        (1, {}),
        (2, {"actor__grad_norm": 123.4, "actor__kl_loss": 3.2e-5}),
        (3, {"actor__grad_norm": 1e9}),
    ):
        made.samples(records.record(step, records.groups(16, 4, skill=0.5, step=step), **numbers))
    _, _, header, *lines = text().splitlines()
    assert header.split() == ["step", "reward", "signal", "cut", "off", "length", "KL", "grad", "tok/s", "sec"]
    assert {len(line) for line in (header, *lines)} == {sum(width for _, width in COLUMNS)}
    cells = lines[1].split()
    assert cells[0] == "2"
    assert re.fullmatch(r"\d+/16", cells[2])
    assert cells[5:] == ["3.2e-05", "123.4", "4.2k", "2.1"]
    assert lines[0].split()[5:7] == ["-", "-"]  # neither was measured


def test_kl_in_the_reward_is_shown_too():
    made, text = console(total_steps=1, sample_every=0)
    made.samples(records.record(1, records.groups(2, 9, skill=0.5), actor__reward_kl_penalty=0.25))
    assert text().splitlines()[-1].split()[5] == "0.250"


def test_no_signal_says_which_case():
    made, text = console(total_steps=2, sample_every=0)
    groups = records.groups(3, 4, skill=0.0, step=1) + records.groups(2, 4, skill=1.0, step=2)
    record = records.record(1, groups)
    made.samples(record)
    assert "! 0 of 5 groups have differing scores, nothing to learn from: 2 all right, 3 all wrong" in text()


def test_unscorable_answers_give_their_reason_safely():
    made, text = console(total_steps=2, sample_every=0)
    groups = records.groups(2, 2, skill=0.5)
    reason = "Traceback (most recent call last):\n  File x\nValueError: \x1b[31mno number"
    failed = replace(groups[0].rollouts[0], score=Score(value=None, reason=reason))
    collected = [replace(groups[0], rollouts=(failed, groups[0].rollouts[1])), groups[1]]
    kept = [replace(groups[0], rollouts=groups[0].rollouts[1:]), groups[1]]
    made.samples(records.record(1, kept, collected))
    assert "! 1 of 4 answers could not be graded and were left out; 1 x ValueError: \\x1b[31mno number" in text()


def test_skipped_updates_are_said():
    made, text = console(total_steps=2, sample_every=0)
    record = records.record(1, records.groups(2, 2, skill=0.5))
    made.samples(replace(record, warnings=["update skipped: log_probs of row 3 of the minibatch is not finite"]))
    assert "! update skipped: log_probs of row 3 of the minibatch is not finite" in text()


# --- answers


def test_answers_are_shown_at_first_and_every_k():
    made, text = console(total_steps=9, sample_every=4)
    for step in range(1, 10):
        made.samples(records.record(step, records.groups(3, 4, skill=0.5, step=step)))
    assert re.findall(r"answers at step (\d+)", text()) == ["1", "4", "8"]


def test_best_and_worst_answer_one_question():
    for step in range(20):
        groups = records.groups(4, 4, skill=0.5, step=step)
        chosen = dict(answers.choose(groups, step))
        assert chosen["best"].prompt is chosen["worst"].prompt
        assert answers.value(chosen["best"]) > answers.value(chosen["worst"])
        assert chosen["random"] is not chosen["best"]
        assert answers.choose(groups, step) == list(chosen.items())


def test_answers_without_a_difference_or_a_score():
    flat = records.groups(2, 3, skill=1.0)
    assert [label for label, _ in answers.choose(flat, 1)] == ["typical", "random"]
    ungraded = [replace(g, rollouts=tuple(replace(r, score=None) for r in g.rollouts)) for g in flat]
    chosen = answers.choose(ungraded, 1)
    assert [label for label, _ in chosen] == ["any"]
    assert "     -" in answers.render(chosen, width=80, newline=" ")[1].plain


def test_a_long_answer_is_short_and_cannot_steer_the_terminal():
    asked = records.prompt(1, messages=({"role": "user", "content": "Why?\n" * 80},), ground_truth="because")
    text = "First\x1b[2J " + "I think about it, and then I think again. " * 30 + "\n\n#### 42"
    long = records.rollout(asked, 0, Score(value=0.5), text=text, finish=FinishReason.LENGTH)
    empty = records.rollout(asked, 1, Score(value=-1.0), text="  ")
    lines = [line.plain for line in answers.render([("best", long), ("worst", empty)], width=80, newline=" / ")]
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].startswith("  Q  Why? / Why?")
    assert lines[0].endswith("[because]")
    assert lines[1].split()[:5] == ["best", "0.50", "length", "4", "tok"]
    assert lines[2].strip().startswith("First\\x1b[2J")
    assert lines[-2].endswith("/ #### 42")  # the end is kept: the answer stands there
    assert len(lines) <= 6
    assert lines[-1].split()[-1] == "(nothing)"


def test_a_prompt_without_messages():
    plain = records.prompt(0, messages=(), text="2+2=", ground_truth={"a": 1})
    assert answers.question(plain) == "2+2="
    shown = answers.render([("any", records.rollout(plain, 0, Score(value=1.0), text="4"))], width=80, newline=" ")
    assert shown[0].plain == "  Q  2+2="


# --- before and after


def test_the_table():
    first, last = (
        records.evaluation(50, 4, skill=s, greedy=g, seed=i) for i, (s, g) in enumerate([(0.4, 0.6), (0.9, 1.0)])
    )
    found = {line.label: line for line in report.lines(first, last)}
    assert list(found) == ["accuracy, sampled", "accuracy, greedy", "answer length", "ends by itself", "answer parses"]
    sampled = found["accuracy, sampled"]
    mean = first.summaries[0].interval.mean
    assert sampled.before.startswith(f"{100 * mean:.1f}% (")
    assert sampled.change == f"{100 * (last.summaries[0].interval.mean - mean):+.1f} pts"
    assert found["accuracy, greedy"].after.startswith("100.0% (")
    assert found["answer parses"].after == "100.0%"


def test_the_table_without_a_validation_before():
    made, text = console()
    made.finish(last=records.evaluation(5, 2, skill=0.5), folder=Path("runs/x"))
    assert "before" not in text()
    assert re.search(r"accuracy +\d+\.0% \(", text())


def test_a_single_validation_is_no_comparison():
    made, text = console()
    only = records.evaluation(5, 2, skill=0.5)
    made.finish(first=only, last=only, folder=Path("runs/x"))
    assert "change" not in text()


def test_graded_scores_and_several_sources():
    rows = [Result(data_source=s, prompt=p, score=0.25 * p) for s in ("a", "b") for p in range(3)]
    found = report.lines(None, Evaluation(results=tuple(rows)))
    assert [line.label for line in found if "mean" in line.label] == ["a: mean reward", "b: mean reward"]
    assert found[0].after.startswith("0.250 (0.")
    made, text = console()
    made.validation(4, Evaluation(results=tuple(rows)))
    assert len(re.findall(r"held out after step 4 +[ab] mean reward 0\.250", text())) == 2


def test_ungraded_validation_is_said():
    rows = [Result(data_source="a", prompt=p, score=None, reason="timeout after 10 s") for p in range(3)]
    made, text = console()
    made.validation(0, Evaluation(results=tuple(rows)))
    assert "3 of 3 answers could not be graded and were left out; 3 x timeout after 10 s" in text()


# --- the ground


def test_an_encoding_without_the_characters():
    made, text = console(terminal=True, encoding="ascii", total_steps=3)
    a_run(made, steps=3)
    assert "###" in text()  # the bar


def test_no_step_ran():
    made, text = console(total_steps=0)
    made.finish(folder=Path("runs/x"))
    made.close()
    assert text().split() == ["run", "folder", "runs/x"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0000"), (0.00721, "0.0072"), (0.41234, "0.412"), (-3.25, "-3.250"), (23.14, "23.1"), (1234.5, "1234"),
     (12345, "1.2e+04"), (3.21e-5, "3.2e-05"), (float("nan"), "nan"), (float("-inf"), "-inf")],
)  # fmt: skip
def test_numbers(value, text):
    assert wording.number(value) == text


def test_words():
    assert [wording.large(x) for x in (0, 950, 4213, 1.3e6)] == ["0", "950", "4.2k", "1.3M"]
    assert [wording.duration(x) for x in (7.4, 750, 11100)] == ["0:07", "12:30", "3:05:00"]
    assert wording.interval(Interval(0.4123, 0.381, 0.4444), binary=True) == "41.2% (38.1 to 44.4)"
    assert wording.interval(Interval(float("nan"), 0, 0), binary=True) == "-"
    assert (wording.plural(1, "prompt"), wording.plural(1200, "prompt")) == ("1 prompt", "1,200 prompts")
    assert wording.shortened("abcdefghijkl", 9) == "ab ... kl"
    assert wording.safe("a\n\n b\x07\u202e", newline="|") == "a| b\\x07\\u202e"
