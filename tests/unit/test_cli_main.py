"""The command: help is light, errors are one line, and each way in leads to the same place."""

import subprocess
import sys
import time
import types

import pytest

from cohort import __version__
from cohort.cli import main as cli
from cohort.cli.main import main
from cohort.config.load import read_yaml
from cohort.errors import UserError
from cohort.main_ppo import main as main_ppo
from tests.unit.verl_command import VERL_COMMAND


def python(*words, code=None):
    command = [sys.executable, *(["-c", code] if code else ["-m", *words])]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy_and_is_fast():
    code = (
        "import sys, time; start = time.perf_counter(); from cohort.cli.main import main; code = main(['--help']);"
        "seconds = time.perf_counter() - start;"
        "bad = {'torch', 'transformers', 'hydra', 'omegaconf', 'numpy', 'ray', 'rich', 'pyarrow'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else code or (f'{seconds:.2f} s' if seconds > 0.3 else 0))"
    )
    done = python(code=code)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    assert "generate" in done.stdout


def test_the_help_of_train_imports_no_torch():
    code = (
        "import sys; from cohort.cli.main import main; code = main(['train', '--help']);"
        "bad = {'torch', 'transformers', 'hydra', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else code)"
    )
    done = python(code=code)
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
    assert "--config-name" in done.stdout


def test_a_bad_key_is_found_without_torch():
    code = (
        "import sys; from cohort.main_ppo import main; code = main(['data.sed=3']);"
        "bad = {'torch', 'transformers', 'numpy'} & set(sys.modules); sys.exit(f'imported {bad}' if bad else code)"
    )
    done = python(code=code)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: data.sed=3: unknown key; did you mean data.seed?")


def test_python_dash_m_is_the_command():
    done = python("cohort", "--version")
    assert (done.returncode, done.stdout) == (0, f"cohort {__version__}\n")
    done = python("cohort", "train", "data.sed=3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_import_of_the_package_is_light():
    start = time.perf_counter()
    done = python(code="import cohort, sys; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0
    assert time.perf_counter() - start < 1


def test_without_arguments_there_is_help(capsys):
    assert main([]) == 0
    assert "usage: cohort COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(("word", "guess"), [("trian", "did you mean train?"), ("xyzxyz", "commands: train")])
def test_an_unknown_command_is_one_line(word, guess, capsys):
    assert main([word]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert word in err
    assert guess in err


@pytest.fixture
def command(monkeypatch):
    """A subcommand of our own, named ``probe``, whose work a test fills in."""
    module = types.ModuleType("probe_command")
    module.seen = []

    def add_arguments(parser):
        parser.add_argument("--number", type=int, default=0)
        parser.add_argument("words", nargs="*")

    def run(args):
        module.seen.append((args.number, args.words))
        return module.work()

    module.add_arguments, module.run, module.work = add_arguments, run, lambda: 7
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setitem(cli.COMMANDS, "probe", ("probe_command", "a test"))
    return module


def test_a_command_gets_its_arguments_and_gives_the_exit_code(command):
    assert main(["probe", "a", "--number", "3", "b"]) == 7
    assert command.seen == [(3, ["a", "b"])]


def test_a_command_may_have_commands_of_its_own(command):
    def add_arguments(parser):
        parts = parser.add_subparsers(dest="part", required=True)
        parts.add_parser("one").add_argument("--size", type=int)

    command.add_arguments = add_arguments
    command.run = lambda args: args.size
    assert main(["probe", "one", "--size", "5"]) == 5


def test_bad_arguments_of_a_command_within_a_command_are_one_line(command, capsys):
    command.add_arguments = lambda parser: parser.add_subparsers(dest="part", required=True).add_parser("one")
    assert main(["probe", "tow"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"cohort {name}" in capsys.readouterr().out


def raising(error):
    def work():
        raise error

    return work


def test_a_user_error_is_one_line_and_exit_code_2(command, capsys):
    command.work = raising(UserError("data.train_files=x: no such file"))
    assert main(["probe"]) == 2
    assert capsys.readouterr().err == "error: data.train_files=x: no such file\n"


def test_control_c_is_one_line_and_exit_code_130(command, capsys):
    command.work = raising(KeyboardInterrupt())
    assert main(["probe"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_a_bug_keeps_its_traceback(command):
    command.work = raising(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        main(["probe"])


@pytest.mark.parametrize("words", [["--number", "x"], ["--nubmer", "3"]])
def test_bad_arguments_are_one_line(command, words, capsys):
    assert main(["probe", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cohort probe --help" in err


@pytest.fixture
def assembled(monkeypatch):
    """Stands in for assemble: keeps the configs that it is asked to train."""
    configs = []
    module = types.ModuleType("cohort.assemble.local")
    module.assemble = lambda config: configs.append(config) or types.SimpleNamespace(fit=lambda: module.outcome)
    module.outcome = types.SimpleNamespace(interrupted=False)
    monkeypatch.setitem(sys.modules, "cohort.assemble.local", module)
    monkeypatch.setitem(sys.modules, "cohort.assemble", types.ModuleType("cohort.assemble"))
    return configs


def test_train_hands_the_config_to_assemble(assembled):
    assert main(["train", "trainer.seed=5", "--config-name", "quickstart", "data.train_batch_size=64"]) == 0
    assert (assembled[0].trainer.seed, assembled[0].data.train_batch_size) == (5, 64)


def test_a_run_that_was_stopped_says_so_in_the_exit_code(assembled):
    sys.modules["cohort.assemble.local"].outcome.interrupted = True
    assert main(["train"]) == 130


def test_the_command_of_a_verl_user_trains_and_prints_its_notes(assembled, capsys):
    assert main_ppo([*VERL_COMMAND, "actor_rollout_ref.rollout.gpu_memory_utilization=0.4"]) == 0
    assert assembled[0].actor_rollout_ref.rollout.n == 5
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert all(line.startswith("note: no effect: ") for line in err)
    assert any("gpu_memory_utilization=0.4" in line for line in err)


def test_main_ppo_takes_another_preset(assembled):
    assert main_ppo(["--config-name", "quickstart"]) == 0
    assert assembled[0].actor_rollout_ref.model.path == "starter"


def test_print_config_prints_what_can_be_read_again(assembled, tmp_path, capsys):
    assert main(["train", "--print-config", "trainer.seed=5"]) == 0
    (tmp_path / "c.yaml").write_text(capsys.readouterr().out)
    assert read_yaml(tmp_path / "c.yaml").trainer.seed == 5
    assert assembled == []


def test_keys_are_listed_with_their_meaning(capsys):
    assert main(["train", "--keys", "clip_ratio_low"]) == 0
    out = capsys.readouterr().out
    assert "actor_rollout_ref.actor.clip_ratio_low  (= actor_rollout_ref.actor.clip_ratio)" in out
    assert "below 1" in out
