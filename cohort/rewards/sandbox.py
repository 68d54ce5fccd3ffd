"""Runs programs that a model wrote, in a box that is made for one answer and thrown away. Imports no torch.

A box is a fresh interpreter in user, mount, process, network, IPC and host-name namespaces of its own. Its root holds
Python's standard library and the system's shared libraries, read-only, and an empty /tmp: there is no /proc, /sys,
/etc or /home, no network, no environment, no open file. Inside, a supervisor starts one process per test case, with
limits (``Limits``), without privileges, and with a filter on system calls; as root it becomes user 65534. Between
cases everything is killed and /tmp is new, so that no case sees what another left. What is expected never
enters the box: the program's output leaves it and is compared outside.

``sandbox="unsafe"`` leaves out the namespaces and the filter. Limits, empty environment, closed files and the
killing of what descends from the program remain; files and network are then open to the program.
"""

from __future__ import annotations

import json
import marshal
import os
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cohort.errors import UserError

Kind = Literal["namespaces", "unsafe"]
KINDS = ("namespaces", "unsafe")
GRACE_SECONDS = 3.0
"""The supervisor keeps the limit; this much later the box is killed from outside."""
MOST_REPORT = 1 << 28
FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8")
"""No site, nobody's folders on the path. Not -I, which would ignore the hash seed."""
BOOTSTRAP = """
import os, marshal
def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return data
names = {"__name__": "inside"}
exec(marshal.loads(take(int.from_bytes(take(8), "big"))), names)
names["main"]()
"""


class SandboxBroken(Exception):
    """The box could not be made; the message says at which step and why. The program has not run."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one answer may use.

    Attributes:
        time_limit: seconds of a test case, of processor time and by the clock.
        total_limit: seconds by the clock for all test cases of an answer.
        memory_mb: address space of a process, in MiB.
        file_mb: size of a file and of /tmp, in MiB.
        processes: processes and threads of a case at a time.
        output_limit: bytes of output.
    """

    time_limit: float = 5.0
    total_limit: float = 20.0
    memory_mb: int = 1024
    file_mb: int = 16
    processes: int = 8
    output_limit: int = 1 << 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 40:
                raise UserError(f"reward `code`: {name}={value!r}; give a number over 0 (reward_kwargs)")


class Ran(NamedTuple):
    """What became of one case.

    Attributes:
        failure: "" if the program ended by itself with exit code 0; else exception, timeout, memory or output.
        output: what it wrote: standard output, or the JSON of the value; "" after a failure.
        said: more about the failure.
    """

    failure: str
    output: str
    said: str


def run_cases(
    program: str,
    cases: Sequence[object],
    limits: Limits,
    *,
    call: bool,
    stop_at_failure: bool,
    sandbox: Kind = "namespaces",
) -> list[Ran]:
    """Runs one program on several cases, each in a process of its own, in one box.

    Args:
        program: the text.
        cases: standard input of each; with ``call`` dicts with ``function`` and ``arguments``, or with ``setup``
            and ``expression``.
        limits: what it may use.
        call: whether a value is asked for instead of standard output.
        stop_at_failure: leave out the cases behind the first that did not end well.
        sandbox: "namespaces" or "unsafe".

    Returns:
        At most one outcome per case: those behind a failure or behind ``total_limit`` may be missing.

    Raises:
        SandboxBroken: the box could not be made.
    """
    job = {
        "program": program, "cases": list(cases), "call": call, "stop_at_failure": stop_at_failure,
        "folders": _folders(), "files": _files(), "nobody": False, **asdict(limits),
    }  # fmt: skip
    seconds = limits.total_limit + GRACE_SECONDS
    if sandbox == "namespaces":  # it has a /tmp of its own
        report = _exchange(job, sandbox, "/", seconds)
    else:
        with tempfile.TemporaryDirectory(prefix="cohort-code-", ignore_cleanup_errors=True) as empty:
            report = _exchange(job, sandbox, empty, seconds)
    if report is None:
        return [Ran("memory", "", "the program brought its sandbox down")]
    return [_ran(case, limits) for case in report]


def _exchange(job: dict[str, Any], sandbox: Kind, folder: str, seconds: float) -> list[dict[str, Any]] | None:
    """The supervisor's report; None if the program ended the box."""
    box = subprocess.Popen(
        [sys.executable, *FLAGS, "-c", BOOTSTRAP, sandbox],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, bufsize=0,
        env=_environment(),
        start_new_session=sandbox == "unsafe",
    )  # fmt: skip
    assert box.stdin
    assert box.stdout
    deadline = time.monotonic() + seconds
    try:
        code = _inside()
        _send(box.stdin.fileno(), struct.pack(">Q", len(code)) + code)
        stage = _read(box.stdout.fileno(), 1, deadline)
        if stage == b"U":
            if sandbox == "namespaces":
                job["nobody"] = _map_users(box.pid)
            body = json.dumps(job).encode()
            _send(box.stdin.fileno(), struct.pack(">Q", len(body)) + body)
            stage = _read(box.stdout.fileno(), 1, deadline)
        if stage != b"R":
            said = _read(box.stdout.fileno(), 1000, deadline).decode("utf-8", "replace") if stage == b"E" else ""
            raise SandboxBroken(said or "the sandbox did not start")
        text = _read(box.stdout.fileno(), MOST_REPORT, deadline)
    except OSError as error:  # the pipe is closed, or the user map is refused
        raise SandboxBroken(f"{error.strerror}") from error
    finally:
        box.stdin.close()
        box.kill()  # process 1 of the box dies with it, and every process of the box with that one
        box.stdout.close()
        box.wait()
    try:
        return json.loads(text)
    except ValueError:
        return None


def _send(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, most: int, deadline: float) -> bytes:
    """Up to ``most`` bytes, fewer at the end of the stream or at the deadline."""
    pieces, size = [], 0
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while size < most and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(fd, min(1 << 20, most - size))
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _map_users(pid: int) -> bool:
    """Gives the box its users: for root, root and 65534 where that may be; else this one alone, seen as 65534.

    Returns:
        Whether there are two, so that the program can be another user than its supervisor.
    """
    user, group, folder = os.geteuid(), os.getegid(), f"/proc/{pid}"
    if user == 0:
        with suppress(OSError):
            for name in ("uid_map", "gid_map"):
                _write(f"{folder}/{name}", "0 0 1\n65534 65534 1\n")
            return True
    with suppress(FileNotFoundError):
        _write(f"{folder}/setgroups", "deny")
    if not Path(f"{folder}/uid_map").read_text():
        _write(f"{folder}/uid_map", f"65534 {user} 1\n")
    _write(f"{folder}/gid_map", f"65534 {group} 1\n")
    return False


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _ran(case: Mapping[str, Any], limits: Limits) -> Ran:
    ended, said = case["ended"], case["err"].strip().rpartition("\n")[2][:300]
    if ended == 0:
        return Ran("", case["out"], "")
    if ended == "timeout" or ended == -24:  # SIGXCPU
        return Ran("timeout", "", f"more than {limits.time_limit:g} s")
    if ended == "output":
        return Ran("output", "", f"more than {limits.output_limit} bytes of output")
    if "MemoryError" in said or ended == -9:
        return Ran("memory", "", f"more than {limits.memory_mb} MiB")
    return Ran("exception", "", said or (f"killed by signal {-ended}" if ended < 0 else f"exit code {ended}"))


def _environment() -> dict[str, str]:
    """What the interpreter needs to start; it is gone before the program runs. The order of sets is always the same."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PYTHONHASHSEED": "0", **kept}


@cache
def _inside() -> bytes:
    """The code of ``sandbox_inside``, compiled once per process."""
    path = Path(__file__).with_name("sandbox_inside.py")
    return marshal.dumps(compile(path.read_text(encoding="utf-8"), path.name, "exec", dont_inherit=True))


@cache
def _folders() -> list[str]:
    """What the box shows of the file system: the standard library and shared libraries."""
    stdlib = Path(os.__file__).parent
    wanted = [Path("/lib"), Path("/lib64"), Path("/usr/lib"), Path("/usr/lib64"), stdlib, stdlib / "lib-dynload"]
    wanted.append(Path(sys.base_prefix) / "lib")
    found = [path for path in dict.fromkeys(wanted) if path.is_dir()]
    return [str(p) for p in found if not any(o != p and p.is_relative_to(o) for o in found)]


@cache
def _files() -> list[str]:
    """Devices without state, and the loader's list of libraries."""
    places = ("/dev/null", "/dev/zero", "/dev/urandom", "/etc/ld.so.cache")
    return [place for place in places if Path(place).exists()]


@cache
def probe() -> str:
    """Makes one box and runs one line in it. "" if that works, else why not."""
    try:
        ran = run_cases("print(6 * 7)", [""], Limits(), call=False, stop_at_failure=True)
    except SandboxBroken as error:
        return str(error)
    return "" if ran and ran[0].output == "42\n" else f"a first program failed in it ({ran[0].said if ran else ''})"


def prepare_sandbox(sandbox: object) -> None:
    """Checks, once per process, that programs can be run as asked.

    Raises:
        UserError: no such setting, or no namespaces here.
    """
    if sandbox not in KINDS:
        raise UserError(f"reward `code`: sandbox={sandbox!r}; give one of {', '.join(KINDS)} (reward_kwargs)")
    if sandbox == "unsafe":
        _say_unsafe()
        return
    why = probe() if sys.platform == "linux" else f"this is {sys.platform}, not Linux"
    if why:
        raise UserError(
            f"reward `code` runs what the model writes in Linux namespaces, which cannot be had here ({why}); allow "
            "unprivileged user namespaces, or set sandbox=unsafe in its kwargs to run it with resource limits alone: "
            "reward.functions=[{name: code, kwargs: {sandbox: unsafe}}]"
        )


@cache
def _say_unsafe() -> None:
    import logging

    logging.getLogger(__name__).warning(
        "reward `code`: sandbox=unsafe: what the model writes runs as you, with your files and your network; "
        "only time, memory, processes and output are limited"
    )
