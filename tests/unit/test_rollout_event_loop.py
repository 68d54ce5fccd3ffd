"""The event loop that synchronous code drives."""

import asyncio
import signal
import threading

import pytest

from cohort.rollout.event_loop import MOST_YIELDS, EventLoop, quiet


@pytest.fixture
def loop():
    event_loop = EventLoop()
    yield event_loop
    event_loop.close()


async def add(a, b):
    await asyncio.sleep(0)
    return a + b


def test_it_runs_coroutines_one_after_the_other(loop):
    assert [loop.run(add(1, 2)), loop.run(add(3, 4))] == [3, 7]


def test_it_runs_inside_a_running_loop_in_the_same_thread(loop):
    async def notebook():
        task, thread = asyncio.current_task(), threading.current_thread()
        outer = asyncio.get_running_loop()

        async def inner():
            assert asyncio.get_running_loop() is not outer
            assert threading.current_thread() is thread
            return await asyncio.wait_for(add(1, 1), 1)

        results = [loop.run(inner()), loop.run(inner())]
        assert asyncio.get_running_loop() is outer
        assert asyncio.current_task() is task
        assert await asyncio.wait_for(add(2, 3), 1) == 5
        return results

    assert asyncio.run(notebook()) == [2, 2]


def test_event_loops_nest(loop):
    other = EventLoop()

    async def outer():
        return other.run(add(5, 5))

    assert loop.run(outer()) == 10
    other.close()


def test_the_exception_reaches_the_caller_and_everything_else_is_cancelled(loop):
    cleaned = []

    async def sleeper():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def fail():
        task = asyncio.create_task(sleeper())
        await asyncio.sleep(0)
        raise KeyError(f"{task}")

    with pytest.raises(KeyError):
        loop.run(fail())
    assert cleaned == [True]
    assert loop.run(add(1, 1)) == 2


def test_the_running_loop_is_restored_after_a_failure(loop):
    async def fail():
        raise ValueError("inner")

    async def notebook():
        with pytest.raises(ValueError, match="inner"):
            loop.run(fail())
        return await add(1, 1)

    assert asyncio.run(notebook()) == 2


@pytest.mark.parametrize("busy", [True, False])
def test_ctrl_c_cancels_all_tasks_and_leaves_the_loop_usable(loop, busy):
    cleaned = []

    async def sleeper():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cleaned.append(True)
            raise

    async def work():
        task = asyncio.create_task(sleeper())
        await asyncio.sleep(0)
        if busy:
            signal.raise_signal(signal.SIGINT)  # in the middle of a coroutine
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, signal.SIGINT)
        await task

    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert cleaned == [True]
    assert loop.run(add(2, 2)) == 4


def test_a_closed_loop_says_so():
    loop = EventLoop()
    loop.close()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(add(1, 1))


def test_a_loop_cannot_run_itself(loop):
    async def again():
        loop.run(add(1, 1))

    with pytest.raises(RuntimeError, match="await the coroutine"):
        loop.run(again())


def test_quiet_waits_for_everything_that_is_ready_and_for_nothing_else(loop):
    seen = []

    async def hops():
        for i in range(10):
            await asyncio.sleep(0)
            seen.append(i)

    async def work():
        sleeper = asyncio.create_task(asyncio.sleep(60))
        task = asyncio.create_task(hops())
        await quiet()
        assert seen == list(range(10))
        assert not sleeper.done()
        await task

    loop.run(work())


def test_quiet_is_not_starved_by_a_coroutine_that_polls(loop):
    turns = 0

    async def poll():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work():
        polling = asyncio.create_task(poll())
        await quiet()
        polling.cancel()

    loop.run(work())
    assert turns <= MOST_YIELDS + 1
