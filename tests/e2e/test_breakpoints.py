"""A scripted debugger session stops in the reward, in the loss and in the sampler, and looks at a tensor."""

import subprocess
import sys

from tests.e2e.conftest import ROOT, environment, small_run

SCRIPT = """
import sys
from cohort.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def line_of(path: str, text: str) -> int:
    lines = (ROOT / path).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_breakpoints_in_reward_loss_and_sampler(workplace, tmp_path):
    loss = f"cohort/algorithms/ppo_loss.py:{line_of('cohort/algorithms/ppo_loss.py', 'ratio = log_ratio.exp()')}"
    engine = "cohort/rollout/native/engine.py"
    draw = f"{engine}:{line_of(engine, 'tokens, log_probs = sample(')}"
    (workplace / "stops.py").write_text(
        "def compute_score(solution_str):\n    share = len(solution_str) / 10\n    breakpoint()\n    return share\n"
    )
    script = tmp_path / "session.py"
    script.write_text(SCRIPT)
    commands = [
        f"b {ROOT / draw}", "c",
        "p 'in the sampler', tuple(logits.shape)", "cl 1", "c",
        "p 'in the reward', share", f"b {ROOT / loss}", "import sys; sys.breakpointhook = lambda *a, **k: None", "c",
        "p 'in the loss', tuple(log_ratio.shape)", "cl 2", "c", "q",
    ]  # fmt: skip
    arguments = small_run("debugged", "reward.num_workers=0", "custom_reward_function.path=stops.py",
                          "trainer.val_before_train=False", "trainer.total_training_steps=1")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pdb", str(script), *arguments],
        cwd=workplace, env=environment(), input="\n".join(commands) + "\n", capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    output = done.stdout
    assert "('in the sampler', (" in output, output + done.stderr
    assert "('in the reward', 0." in output, output
    assert "('in the loss', (12, " in output, output
