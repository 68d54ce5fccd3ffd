"""No process outlives its trainer, however that ends."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import cloudpickle
import pytest

from cohort.rewards.runner import RewardRunner
from tests.unit.test_rewards_base import rollout

ROOT = Path(__file__).parents[2]
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def exists(pid):
    """Whether the process is there, be it as a zombie."""
    return Path(f"/proc/{pid}").exists()


def gone(pid, seconds=5.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def returns(text):
    return 1.0


def test_close_ends_a_busy_worker_and_its_children(tmp_path):
    async def main():
        tasks = [asyncio.create_task(runner.score(rollout(str(pid_file)))) for _ in range(2)]
        while not pid_file.exists() or not pid_file.read_text():
            await asyncio.sleep(0.02)
        runner.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    def spawns(text):
        import pathlib
        import subprocess

        child = subprocess.Popen(["sleep", "100"])
        pathlib.Path(text).write_text(str(child.pid))
        child.wait()

    pid_file = tmp_path / "pid"
    runner = RewardRunner([spawns], num_workers=1, timeout=60)
    busy, waiting = asyncio.run(main())
    assert busy.value is None
    assert "SIGKILL" in busy.reason
    assert isinstance(waiting, RuntimeError)
    assert gone(int(pid_file.read_text()))


def test_what_a_hung_reward_started_dies_with_it(tmp_path):
    def spawns(text):
        import pathlib
        import subprocess

        child = subprocess.Popen(["sleep", "100"])
        pathlib.Path(text).write_text(str(child.pid))
        child.wait()

    runner = RewardRunner([spawns], num_workers=1, timeout=0.5)
    score = asyncio.run(runner.score(rollout(str(tmp_path / "pid"))))
    runner.close()
    assert score.reason.startswith("timeout")
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_forgotten_runner_takes_its_workers_along():
    runner = RewardRunner([returns], num_workers=1)
    asyncio.run(runner.score(rollout("x")))
    assert runner._pool is not None
    (worker,) = runner._pool.workers
    pid = worker.process.pid
    del runner, worker
    assert gone(pid)


SCRIPT = """
import asyncio, sys, time
from cohort.rewards.runner import RewardRunner
from cohort.types import Prompt, Rollout

print("main is imported", flush=True)
bonus = 40

class Kind:
    level = 2

def reward(text, kind):
    print("said by the reward")
    while text == "hang":
        pass
    if text == "lock":
        import re
        re.match("(a+)+$", "a" * 60 + "b")
    return bonus + kind.level

runner = RewardRunner([reward], num_workers=2, timeout=100)

def rollout(text):
    return Rollout(prompt=Prompt(row=0, ids=(1,), text="q", columns={"kind": Kind()}), sample=0, text=text)

async def main():
    print((await runner.score(rollout("x"))).value, flush=True)
    tasks = [asyncio.ensure_future(runner.score(rollout(text))) for text in sys.argv[1:]]
    await asyncio.sleep(0.5)
    print(*[worker.process.pid for worker in runner._pool.workers], flush=True)
    await asyncio.gather(*tasks)

asyncio.run(main())
"""


def start(tmp_path, *argv):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_script_without_a_main_guard_works_and_leaves_nothing_behind(tmp_path):
    process = start(tmp_path)  # it does not even close the runner
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    first, value, pids = out.splitlines()
    assert (first, value) == ("main is imported", "42.0")
    assert "said by the reward" in err
    assert all(gone(int(pid)) for pid in pids.split())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_workers_die_with_a_killed_parent_whatever_they_do(tmp_path):
    process = start(tmp_path, "hang", "lock")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    pids = [int(pid) for pid in lines[2].split()]
    assert len(pids) == 2
    assert all(exists(pid) for pid in pids)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert all(gone(pid) for pid in pids)


def test_ctrl_c_is_the_trainer_s(tmp_path):
    process = start(tmp_path, "hang")
    assert process.stdout is not None
    pids = [int(pid) for pid in [process.stdout.readline() for _ in range(3)][2].split()]
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    assert all(exists(pid) for pid in pids)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in err
    assert all(gone(pid) for pid in pids)
