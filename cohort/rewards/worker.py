"""The process that runs plain reward functions. Started as a fresh interpreter, it imports no torch itself.

It is not a child of ``multiprocessing``: nothing is forked after torch has started threads, and the
user's script is not imported again, so a script without a ``__main__`` guard and a notebook work.

Frames go both ways over one socket (its standard input): 8 bytes of length, then a pickle.

    in   Setup once, then a dict of values per answer
    out  ("ready", "") or ("broken", traceback) once, then ("graded", [Graded], seconds) per answer
"""

from __future__ import annotations

import bdb
import ctypes
import faulthandler
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cohort.rewards.base import Call, Graded, grade_all, user_traceback

LENGTH = struct.Struct(">Q")
PR_SET_PDEATHSIG = 1

BOOTSTRAP = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from cohort.rewards.worker import main; main()"
"""Run with ``python -c``: running this file by its path would put math.py and format.py of this folder on the path."""

NO_DEBUGGER = "a debugger has no terminal in a reward worker; set reward.num_workers=0 to stop at breakpoints"


class Setup(NamedTuple):
    """What a worker is told first.

    Attributes:
        functions: cloudpickle of a list of (name, function, kwargs, wanted, origin); ``function`` is None
            where ``origin()`` makes it.
        timeout: seconds an answer may take; None for no limit.
    """

    functions: bytes
    timeout: float | None


def framed(message: object) -> bytes:
    """A message of builtins and this module's types, ready to send."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """Serves until the other end of the socket closes."""
    connection, trace = os.dup(0), os.dup(1)
    _silence()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to answer
    sys.breakpointhook = _no_debugger
    _die_with(int(sys.argv[2]))
    faulthandler.enable(file=trace)  # a segmentation fault leaves its stack for the trainer to read
    link = socket.socket(fileno=connection)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, frames), daemon=True).start()
    setup: Setup = pickle.loads(frames.get())
    try:
        calls = _load(setup.functions)
    except (Exception, SystemExit) as error:
        link.sendall(framed(("broken", user_traceback(error))))
        return
    link.sendall(framed(("ready", "")))
    while True:
        link.sendall(framed(_answer(calls, frames.get(), setup.timeout, trace)))


def _no_debugger(*_: object, **__: object) -> None:
    raise RuntimeError(NO_DEBUGGER)


def _silence() -> None:
    """Standard input is empty and what a reward prints goes to standard error."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]


def _die_with(parent: int) -> None:
    """On Linux the kernel kills this process when the thread that started it ends; 0 means do not ask.

    The reader thread sees a dead trainer too, but not while a reward in C holds the interpreter lock.
    """
    if parent and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _read(link: socket.socket, frames: queue.SimpleQueue[bytes]) -> None:
    """Queues what arrives; when the trainer is gone, ends this process and every one it started."""
    while (header := _exactly(link, LENGTH.size)) is not None:
        body = _exactly(link, *LENGTH.unpack(header))
        if body is None:
            break
        frames.put(body)
    os.killpg(0, signal.SIGKILL)


def _exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            piece = link.recv(min(size - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def _load(functions: bytes) -> list[Call]:
    loaded: list[tuple[str, Callable[..., object], Any, Any, Any]] = pickle.loads(functions)
    return [
        Call(name, function if origin is None else origin(), kwargs, wanted)
        for name, function, kwargs, wanted, origin in loaded
    ]


def _answer(calls: Sequence[Call], frame: bytes, timeout: float | None, trace: int) -> tuple[str, list[Graded], float]:
    """Grades one answer. Past the limit a watchdog in C writes down where it was and ends the process."""
    started = time.perf_counter()
    try:
        values = pickle.loads(frame)
    except Exception as error:
        return "graded", [Graded(None, reason=f"the worker cannot read the data row\n{user_traceback(error)}")], 0.0
    if timeout is not None:
        faulthandler.dump_traceback_later(timeout, exit=True, file=trace)
    try:
        outcomes = grade_all(calls, values)
    except bdb.BdbQuit:
        outcomes = [Graded(None, reason=NO_DEBUGGER)] * len(calls)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "graded", outcomes, time.perf_counter() - started
