"""One asyncio loop, driven by ordinary synchronous calls.

The trainer owns an ``EventLoop`` for its life. Rollouts, rewards and the embedded engine are
coroutines on it; nothing runs in a background thread, so breakpoints work everywhere.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")

MOST_YIELDS = 64
"""Cycles ``quiet`` waits at most, so that a coroutine that polls cannot starve the engine."""


class EventLoop:
    """Runs coroutines to their end from synchronous code, also where another loop is running already.

    A notebook runs every cell inside its own running loop, and asyncio refuses to nest. ``run``
    therefore sets the outer loop aside for the duration of the call, in the same thread: the outer
    loop is blocked, as by any synchronous call, and is put back before ``run`` returns.

    Ctrl-C and every other exception end the call only after all tasks were cancelled and have
    cleaned up, so the next ``run`` starts from nothing.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of ``coroutine``; its exception where it raises one.

        Raises:
            RuntimeError: if this event loop is closed, or is the one that is running now.
        """
        if self._loop.is_closed() or self._loop.is_running():
            state = "closed" if self._loop.is_closed() else "running already: await the coroutine instead"
            coroutine.close()
            raise RuntimeError(f"this EventLoop is {state}")
        with _OuterLoopAside():
            try:
                return self._loop.run_until_complete(coroutine)
            finally:
                self._cancel_all()

    def close(self) -> None:
        """Cancels what is left and closes the loop. May be called twice."""
        if not self._loop.is_closed():
            with _OuterLoopAside():
                self._cancel_all()
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _cancel_all(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(0))  # callbacks of tasks that ended last
        # A task that is cancelled may start another one (a retry, a clean-up); three rounds are plenty.
        for _ in range(3):
            tasks = asyncio.all_tasks(self._loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
            for task in tasks:
                retrieved(task)  # the exception that ended the call is the one to show


def retrieved(task: asyncio.Task[Any]) -> None:
    """A done-callback that says: whoever waited for this task has been told of its exception."""
    if not task.cancelled():
        task.exception()


class _OuterLoopAside:
    """Hides the running loop of this thread, and its current task, while the block runs.

    asyncio keeps both per thread. The current task is kept apart from the loop from Python 3.12 on,
    and a loop that starts while it is set is refused there.
    """

    def __enter__(self) -> None:
        self._outer = asyncio._get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        if self._outer is not None:
            if sys.version_info >= (3, 12):
                self._task = asyncio.tasks._swap_current_task(self._outer, None)
            asyncio._set_running_loop(None)

    def __exit__(self, *exc: object) -> None:
        if self._outer is not None:
            asyncio._set_running_loop(self._outer)
            if sys.version_info >= (3, 12):
                asyncio.tasks._swap_current_task(self._outer, self._task)


class _Ready(Protocol):
    _ready: deque[asyncio.Handle]


async def quiet() -> None:
    """Returns when no other coroutine of this loop is ready to run; does not wait for timers or I/O.

    The standard library has no public call for "is anything ready", so this reads the ready queue that
    every asyncio loop has kept since Python 3.4. Other loops (uvloop) get one plain yield.
    """
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.BaseEventLoop):
        ready = cast(_Ready, loop)._ready
        for _ in range(MOST_YIELDS):
            if not ready:
                return
            await asyncio.sleep(0)
