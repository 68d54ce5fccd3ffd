import asyncio
import bdb
import os
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest

from cohort.errors import UserError
from cohort.rewards.runner import RewardRunner
from tests.unit.test_rewards_base import rollout

ROOT = Path(__file__).parents[2]

# As if defined in a script: a worker that had to import this module would import pytest and torch too.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def scores(functions, texts, columns=(), **options):
    """Scores of the texts, all asked for at once, and whether every worker is gone afterwards."""

    async def grade_all():
        return await asyncio.gather(*(runner.score(rollout(text, **dict(columns))) for text in texts))

    runner = RewardRunner(functions, **options)
    try:
        return asyncio.run(grade_all())
    finally:
        pids = [worker.process.pid for worker in runner._pool.workers] if runner._pool else []
        runner.close()
        runner.close()
        assert not [pid for pid in pids if exists(pid)], "a worker outlived close()"


def exists(pid):
    """Whether the process is there, be it as a zombie."""
    return Path(f"/proc/{pid}").exists()


def test_lambdas_closures_and_objects_travel():
    factor = 3

    class Judge:
        def __call__(self, text, ground_truth):
            return float(text == ground_truth) * factor

    first, second = scores(
        [lambda text, level: len(text) + level, Judge()], ["ab", "gold"], {"level": 5}, num_workers=2
    )
    assert (first.value, first.parts) == (7.0, {"lambda": 7.0, "Judge": 0.0})
    assert second.value == 12.0


def test_workers_import_no_torch_unless_the_reward_does():
    def loaded(text):
        import sys

        return float("torch" in sys.modules or "transformers" in sys.modules or "numpy" in sys.modules)

    assert [s.value for s in scores([loaded], ["a"], num_workers=1)] == [0.0]


def test_slow_rewards_overlap_and_the_loop_stays_free():
    async def main():
        ticks = 0
        task = asyncio.gather(*(runner.score(rollout("x")) for _ in range(16)))
        started = time.perf_counter()
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return task.result(), time.perf_counter() - started, ticks

    def slow(text):
        import time

        time.sleep(0.2)
        return 1.0

    runner = RewardRunner([slow], num_workers=8)
    asyncio.run(runner.score(rollout("warm")))
    results, seconds, ticks = asyncio.run(main())
    runner.close()
    assert [s.value for s in results] == [1.0] * 16
    assert all(0.2 <= s.seconds < 1 for s in results)
    assert seconds < 2.8  # 3.2 s one after the other
    assert ticks > 10


def hang(text):
    if text == "python":
        while True:
            pass
    if text == "c":  # holds the interpreter lock for ever
        import re

        re.match("(a+)+$", "a" * 60 + "b")
    return 1.0


@pytest.mark.parametrize("kind", ["python", "c"])
def test_an_endless_loop_costs_one_sample_and_says_where_it_was(kind):
    results = scores([hang], ["x", kind, *["x"] * 20], num_workers=2, timeout=0.5)
    assert [s.value for s in results] == [1.0, None] + [1.0] * 20
    assert results[1].reason.startswith("timeout: the reward took more than 0.5 s; it was here")
    assert "in hang" in results[1].reason
    assert "worker.py" not in results[1].reason


def test_only_the_hung_worker_is_replaced():
    async def main():
        await asyncio.gather(*(runner.score(rollout(text)) for text in ("slow", "slow")))
        before = {worker.process.pid for worker in runner._pool.workers}
        await runner.score(rollout("python"))
        await asyncio.gather(*(runner.score(rollout(text)) for text in ("slow", "slow")))
        return before, {worker.process.pid for worker in runner._pool.workers}

    def reward(text):
        import time

        time.sleep(0.1)
        while text == "python":
            pass
        return 1.0

    runner = RewardRunner([reward], num_workers=2, timeout=0.5)
    before, after = asyncio.run(main())
    runner.close()
    assert len(before) == len(after) == 2
    assert len(before & after) == 1


def crash(text):
    import ctypes
    import os

    if text == "segv":
        ctypes.string_at(0)
    if text == "exit":
        os._exit(3)
    if text == "kill":
        os.kill(os.getpid(), 9)
    if text == "raise":
        raise KeyError(text)
    if text == "sysexit":
        raise SystemExit("bye")
    return None if text == "none" else 1.0


def test_every_way_to_fail_is_data_with_a_reason():
    texts = ["segv", "exit", "kill", "raise", "sysexit", "none", "fine"]
    results = dict(zip(texts, scores([crash], texts, num_workers=2), strict=True))
    assert results["fine"].value == 1.0
    assert all(results[text].value is None for text in texts[:-1])
    assert "killed by SIGSEGV" in results["segv"].reason
    assert "in crash" in results["segv"].reason
    assert "exit code 3" in results["exit"].reason
    assert "killed by SIGKILL, perhaps for lack of memory" in results["kill"].reason
    assert results["raise"].reason.endswith("KeyError: 'raise'")
    assert "in crash" in results["raise"].reason
    assert results["sysexit"].reason.endswith("SystemExit: bye")
    assert results["none"].reason == "the reward returned None"


def test_inline_rewards_run_in_this_process_and_say_so_once():
    said = []
    here = scores([lambda text: os.getpid()], ["a", "b"], num_workers=0, say=said.append)
    assert [s.value for s in here] == [os.getpid()] * 2
    assert len(said) == 1
    assert "reward.num_workers=0" in said[0]
    assert [s.value for s in scores([crash], ["raise"], num_workers=0, say=said.append)] == [None]
    there = scores([lambda text: os.getpid()], ["a"], num_workers=1)
    assert there[0].value != os.getpid()


def test_breakpoints_stop_inline_and_say_what_to_do_in_a_worker(monkeypatch):
    def stops(text):
        breakpoint()
        return 1.0

    def stops_by_hand(text):
        import pdb

        pdb.set_trace()
        return 1.0

    frames = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: frames.append(sys._getframe(1).f_code.co_name))
    assert [s.value for s in scores([stops], ["a"], num_workers=0, say=frames.append)] == [1.0]
    assert frames[1:] == ["stops"]
    for function in (stops, stops_by_hand):
        (score,) = scores([function], ["a"], num_workers=1)
        assert score.value is None
        assert "set reward.num_workers=0" in score.reason

    def leaves(text):
        raise bdb.BdbQuit  # what `q` does in the debugger

    with pytest.raises(bdb.BdbQuit):
        scores([leaves], ["a"], num_workers=0, say=frames.append)


def test_async_rewards_run_here_with_live_objects_and_a_limit():
    async def judge(text, sampler):
        await asyncio.sleep(30 if text == "hang" else 0.01)
        if text == "raise":
            raise TimeoutError("the judge's own")
        return {"score": await sampler(text), "thread": threading.get_ident()}

    async def sampler(text):
        return len(text)

    texts = ["four", "hang", "raise"]
    good, late, bad = scores([judge], texts, live={"sampler": sampler}, timeout=0.2)
    assert good.value == 4.0
    assert good.parts["thread"] == threading.get_ident()
    assert (late.value, late.reason) == (None, "timeout: the reward took more than 0.2 s")
    assert 0.2 <= late.seconds < 2
    assert bad.value is None
    assert bad.reason.endswith("TimeoutError: the judge's own")


def test_plain_and_async_rewards_add_up_and_one_failure_makes_the_answer_unscorable():
    async def judge(text):
        return 2.0

    good, bad = scores([judge, crash, lambda text: 4.0], ["fine", "exit"], num_workers=1)
    assert good.value == 7.0
    assert good.parts == {"judge": 2.0, "crash": 1.0, "lambda": 4.0}
    assert bad.value is None
    assert "crash: the reward ended its worker" in bad.reason
    assert bad.parts == {"judge": 2.0}


def test_equal_names_are_told_apart():
    (score,) = scores([lambda text: 1, lambda text: 2], ["a"], num_workers=1)
    assert score.parts == {"lambda": 1.0, "lambda_2": 2.0}


def test_functions_that_cannot_travel_are_said_at_the_start():
    lock = threading.Lock()

    def reward(text):
        return lock.locked()

    with pytest.raises(UserError, match=r"reward `reward` cannot be sent to a worker process .*num_workers=0"):
        RewardRunner([reward], num_workers=1)
    assert RewardRunner([reward], num_workers=0, say=lambda text: None).functions[0].name == "reward"
    with pytest.raises(UserError, match="no reward function"):
        RewardRunner([])


def test_rows_that_cannot_travel_are_unscorable():
    (score,) = scores([lambda text, lock: 1.0], ["a"], {"lock": threading.Lock()}, num_workers=1)
    assert score.value is None
    assert "the data row cannot be sent to a worker" in score.reason


def test_functions_that_do_not_load_in_a_worker_are_said_and_not_tried_for_ever(tmp_path, monkeypatch):
    (tmp_path / "fragile_reward_module.py").write_text(
        f"import os\nassert os.getpid() == {os.getpid()}\ndef f(text): return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import fragile_reward_module

    started = time.perf_counter()
    results = scores([fragile_reward_module.f], ["a"] * 40, num_workers=2)
    assert time.perf_counter() - started < 10
    assert all(s.value is None and "cannot be loaded in a worker" in s.reason for s in results)
    assert "AssertionError" in results[0].reason


def test_long_answers_and_many_at_once():
    texts = ["x" * (1000 * n) for n in range(1, 400, 7)]
    assert [s.value for s in scores([lambda text: len(text)], texts, num_workers=2)] == [len(t) for t in texts]


def test_a_cancelled_task_frees_its_worker():
    async def main():
        task = asyncio.create_task(runner.score(rollout("python")))
        await asyncio.sleep(0.5)
        waiting = asyncio.create_task(runner.score(rollout("x")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.wait_for(waiting, 5)

    runner = RewardRunner([hang], num_workers=1, timeout=60)
    assert asyncio.run(main()).value == 1.0
    runner.close()


def test_a_worker_that_died_while_idle_costs_nothing():
    async def main():
        first = await runner.score(rollout("x"))
        (worker,) = runner._pool.workers
        worker.process.kill()
        worker.process.wait()
        return first, await runner.score(rollout("x"))

    runner = RewardRunner([hang], num_workers=1)
    assert [s.value for s in asyncio.run(main())] == [1.0, 1.0]
    runner.close()


def test_one_runner_serves_several_event_loops():
    runner = RewardRunner([hang], num_workers=1)
    assert [asyncio.run(runner.score(rollout("x"))).value for _ in range(3)] == [1.0] * 3
    assert runner._pool is not None
    assert len(runner._pool.workers) == 1
    runner.close()


def test_rewards_from_another_thread_than_the_main_one():
    results = []

    def work():
        results.extend(scores([hang], ["x", "x"], num_workers=1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [s.value for s in results] == [1.0, 1.0]
