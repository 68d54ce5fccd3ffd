"""A pool of worker processes behind the event loop: started when needed, killed and replaced one by one."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

from cohort.rewards.base import Graded
from cohort.rewards.worker import BOOTSTRAP, LENGTH, Setup

START_SECONDS = 120.0
"""The most a worker may take to import what the rewards need."""
GRACE_SECONDS = 2.0
"""The worker ends itself at its limit; this much later it is killed from here."""


class WorkerLost(Exception):
    """A worker ended or was killed while it graded; the message says why.

    Attributes:
        seconds: how long it had been grading.
    """

    seconds = 0.0


class FunctionsBroken(Exception):
    """The reward functions cannot be loaded in a worker; the message is the traceback."""


class Worker:
    """One process and the socket to it."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        # The kernel's parent-death signal follows the thread that starts a process, and only the main
        # thread is sure to live as long as the process itself.
        watch = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        self.trace = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOTSTRAP, json.dumps([str(item) for item in sys.path]), str(watch)],
                stdin=theirs.fileno(),
                stdout=self.trace,
                env={"OMP_NUM_THREADS": "1", **os.environ},
                start_new_session=True,  # so that what a reward starts can be killed with it
            )
        self.link = mine

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    async def start(self, setup: Setup) -> None:
        """Hands over the functions and waits until they are loaded."""
        kind, text = await self.exchange(pickle.dumps(setup), START_SECONDS)
        if kind == "broken":
            raise FunctionsBroken(text)

    async def exchange(self, body: bytes, seconds: float | None) -> tuple:
        """Sends one frame and returns the answer to it.

        Raises:
            WorkerLost: if the process ends first or is not done in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self.link, LENGTH.pack(len(body)) + body)
                (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
                return pickle.loads(await self._receive(size))
        except TimeoutError:
            raise WorkerLost(f"timeout: the reward's worker did not answer within {seconds:g} s") from None
        except (ConnectionError, EOFError):
            raise WorkerLost(await self._cause()) from None

    async def _receive(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < size:
            piece = await loop.sock_recv(self.link, min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    async def _cause(self) -> str:
        """Why the process ended, with the Python stack it left behind."""
        # Its exit code is settled when its end of the socket closes; what it started may still run. The group
        # is killed before the process is reaped, while its number cannot belong to anyone else.
        self._kill_group()
        for _ in range(200):
            if not self.alive():
                break
            await asyncio.sleep(0.01)
        left = os.pread(self.trace.fileno(), 1 << 20, 0).decode("utf-8", "replace")
        where = stack(left)
        limit = re.match(r"Timeout \((\d+):(\d+):([\d.]+)\)", left)
        if limit:
            hours, minutes, seconds = (float(part) for part in limit.groups())
            return f"timeout: the reward took more than {3600 * hours + 60 * minutes + seconds:g} s{where}"
        code = self.process.returncode
        if code is None:
            return "the reward closed its worker's connection"
        if code < 0:
            hint = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
            return f"the reward's worker was killed by {signal.Signals(-code).name}{hint}{where}"
        return f"the reward ended its worker process with exit code {code}{where}"

    def _kill_group(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kills the process with all that it started, and reaps it. A pending ``exchange`` sees it end."""
        self._kill_group()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def end(self) -> None:
        """Kills and forgets the process; nobody may be in ``exchange``."""
        self.kill()
        self.link.close()
        self.trace.close()


def stack(dump: str) -> str:
    """The lines of a faulthandler dump that are the reward's, innermost first; "" if there are none."""
    ours = (str(Path(__file__).with_name("worker.py")), str(Path(__file__).with_name("base.py")), threading.__file__)
    lines = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', dump, re.MULTILINE)
    frames = [f'\n  File "{f}", line {n} in {name}' for f, n, name in lines if f not in (*ours, "<string>")]
    return "; it was here, innermost first:" + "".join(frames[:20]) if frames else ""


class WorkerPool:
    """Workers that grade one answer at a time each.

    Args:
        setup: the functions and the time limit.
        size: the most processes.
    """

    def __init__(self, setup: Setup, *, size: int) -> None:
        self.setup = setup
        self.size = size
        self.workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._broken = ""
        self._closed = False
        weakref.finalize(self, _kill_all, self.workers)

    async def grade(self, request: bytes) -> tuple[list[Graded], float]:
        """The outcomes of one pickled dict of values, and the seconds they took.

        A worker that hangs, crashes or is left behind by a cancelled task is killed; the next call starts
        another.

        Raises:
            WorkerLost: if the worker was lost over this answer.
            FunctionsBroken: if no worker can load the functions.
        """
        limit = None if self.setup.timeout is None else self.setup.timeout + GRACE_SECONDS
        worker = await self._acquire()
        started = time.perf_counter()
        try:
            _, outcomes, seconds = await worker.exchange(request, limit)
        except BaseException as error:
            if isinstance(error, WorkerLost):
                error.seconds = time.perf_counter() - started
            self._drop(worker)
            raise
        self._idle.append(worker)
        self._wake()
        return outcomes, seconds

    async def _acquire(self) -> Worker:
        while True:
            if self._closed:
                raise RuntimeError("the reward workers have been closed")
            if self._broken:
                raise FunctionsBroken(self._broken)
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
                    return worker
                self._drop(worker)
            if len(self.workers) < self.size:
                return await self._started()
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # it was this one's turn; pass it on
                raise

    async def _started(self) -> Worker:
        worker = Worker()
        self.workers.add(worker)
        try:
            await worker.start(self.setup)
        except (FunctionsBroken, WorkerLost) as error:
            self._broken = str(error)  # another worker would fail the same way
            self._drop(worker)
            self._wake(everyone=True)
            raise FunctionsBroken(self._broken) from error
        except BaseException:
            self._drop(worker)
            raise
        return worker

    def _drop(self, worker: Worker) -> None:
        self.workers.discard(worker)
        worker.end()
        self._wake()

    def _wake(self, *, everyone: bool = False) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
                if not everyone:
                    return

    def close(self) -> None:
        """Ends every worker; none is left, not even as a zombie. May be called twice."""
        self._closed = True
        for worker in self._idle:
            self.workers.discard(worker)
            worker.end()
        self._idle.clear()
        _kill_all(self.workers)  # a task that still waits for one of these sees it end, and cleans up


def _kill_all(workers: set[Worker]) -> None:
    for worker in tuple(workers):
        worker.kill()
