"""What runs inside the sandbox: a supervisor, and a process per test case for the program. See ``sandbox``.

The text of this file is handed to a bare interpreter; it may import the standard library alone, and little of it,
because every answer pays for that. Standard input carries the job and then stays open: its end is the end of the
box. Standard output carries one byte per stage (U: own namespaces, R: ready, E: an error follows) and the report.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

NAMESPACES = 0x20000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000  # mount uts ipc user pid net
READ_ONLY, NO_SUID, NO_DEV, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime: a user namespace cannot lift them
DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
NOBODY = 65534
TAIL = 2000
"""Bytes of standard error that are kept."""

DENIED = {
    # ptrace, mounts, chroot, unshare, setns, System V and POSIX queues and memory, memfd, io_uring, bpf, perf, keys,
    # userfaultfd, reading and writing other processes, modules, file handles
    "x86_64": (0xC000003E, 56, (101, 165, 166, 155, 161, 272, 308, 29, 64, 68, 240, 319, 425, 321, 298, 248, 249, 250,
                                323, 310, 311, 246, 175, 313, 303, 304, 428, 429, 430, 432, 442)),
    "aarch64": (0xC00000B7, 220, (117, 40, 39, 41, 51, 97, 268, 194, 190, 186, 180, 279, 425, 280, 241, 217, 218, 219,
                                  282, 270, 271, 104, 105, 273, 264, 265, 428, 429, 430, 432, 442)),
}  # fmt: skip
"""Machine -> its audit number, the number of clone, and the system calls that answer "not permitted"."""
CLONE3 = 435

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raises for a failed call of the C library."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mounts a file system or a folder on ``target``, with the arguments of the system call."""
    texts = [text.encode() if text else None for text in (source, target, kind)]
    check(libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def receive(size: int) -> bytes:
    """Exactly ``size`` bytes of standard input; the process ends where it ends."""
    data = b""
    while len(data) < size:
        piece = os.read(0, min(size - len(data), 1 << 20))
        if not piece:
            os._exit(1)
        data += piece
    return data


def send(data: bytes) -> None:
    """All of ``data`` to standard output."""
    while data:
        data = data[os.write(1, data) :]


def main() -> NoReturn:
    """Enters the namespaces, hands over to their first process, and waits for it."""
    boxed = sys.argv[1] == "namespaces"
    try:
        if boxed:
            check(libc.unshare(NAMESPACES), "unshare")
        send(b"U")
        job = json.loads(receive(struct.unpack(">Q", receive(8))[0]))
        pid = os.fork()
        if pid == 0:
            supervise(job, boxed)
    except OSError as error:
        send(b"E" + str(error.strerror or error).encode())
        os._exit(1)
    os.close(1)
    os.waitpid(pid, 0)
    os._exit(0)


def supervise(job: dict[str, Any], boxed: bool) -> NoReturn:
    """Process 1 of the box: prepares it, runs the cases one after the other, and reports."""
    try:
        os.setsid()
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # without namespaces, what a case leaves behind comes here
        if boxed:
            enter(job["folders"], job["files"])
        if sys.platform == "linux":
            libc.prctl(PR_SET_DUMPABLE, 0)  # a program of the same user cannot look into this process
        send(b"R")
    except OSError as error:
        send(b"E" + str(error.strerror or error).encode())
        os._exit(1)
    over = time.monotonic() + job["total_limit"]
    report = []
    for number in range(len(job["cases"])):
        left = over - time.monotonic()
        if left <= 0:
            break
        report.append(one_case(job, number, min(left, job["time_limit"]), boxed))
        if not report[-1]["whole"] and job["stop_at_failure"]:
            break
    send(json.dumps(report).encode())
    os._exit(0)


def enter(folders: list[str], files: list[str]) -> None:
    """An empty root with Python's library, read-only, and nothing else: no /proc, /sys, /etc, /home."""
    with_limits = "/proc/sys/user/max_user_namespaces"
    try:
        with open(with_limits, "w") as own:  # of this user namespace, not of the machine
            own.write("0")
    except OSError:
        pass  # the filter on system calls forbids new ones too
    mount("", "/", "", RECURSIVE | PRIVATE)
    root = "/tmp"
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEV, "size=1m,mode=755")
    for place in (*folders, *files):
        target = root + place
        os.makedirs(target if place in folders else os.path.dirname(target), exist_ok=True)
        if place in files:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(place, target, "", BIND)
        kept = os.statvfs(target).f_flag & KEPT_FLAGS
        lock = NO_SUID if place.startswith("/dev/") else NO_SUID | NO_DEV | READ_ONLY
        mount("", target, "", REMOUNT | BIND | lock | kept)
    for name in ("/tmp", "/.old"):
        os.makedirs(root + name, exist_ok=True)
    os.chdir(root)
    check(libc.pivot_root(b".", b".old"), "pivot_root")
    check(libc.umount2(b"/.old", DETACH), "umount")
    mount("", "/", "", REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEV)


def one_case(job: dict[str, Any], number: int, seconds: float, boxed: bool) -> dict[str, Any]:
    """Runs one case in a process of its own and kills whatever it leaves behind."""
    if boxed:
        if number:
            os.chdir("/")
            check(libc.umount2(b"/tmp", DETACH), "umount")
        mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEV, f"size={job['file_mb']}m,nr_inodes=1024,mode=1777")
        os.chdir("/tmp")
    given = stdin_of(job["cases"][number])
    out, out_child = os.pipe()
    err, err_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            restrict(job, given, out_child, err_child, boxed)
            code = program(job, job["cases"][number])
        except BaseException as error:
            code = failed(error)
        os._exit(code)
    for fd in (given, out_child, err_child):
        os.close(fd)
    ended, data = watch(pid, out, err, job["output_limit"], time.monotonic() + seconds)
    os.close(out)
    os.close(err)
    sweep(pid, boxed)
    text, errors = (part.decode("utf-8", "replace") for part in data)
    return {"ended": ended, "whole": ended == 0, "out": text if ended == 0 else "", "err": errors}


def stdin_of(case: Any) -> int:
    """A file with the case's standard input; a function's is empty."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("input", os.MFD_CLOEXEC)
    else:
        fd = os.open(".input", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.unlink(".input")
    text = case.encode("utf-8", "surrogatepass") if isinstance(case, str) else b""
    while text:
        text = text[os.write(fd, text) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def watch(pid: int, out: int, err: int, most: int, deadline: float) -> tuple[int | str, list[bytes]]:
    """Reads what the process writes until it ends (its exit code, negative for a signal), or why it must end."""
    kept = {out: b"", err: b""}
    poll = select.poll()
    for fd in kept:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    poll.register(0, 0)  # closed when the trainer is gone
    opened, ended = {out, err}, None
    while True:
        ready = poll.poll(0 if ended is not None else 5 if opened else 1)
        for fd, _ in ready:
            if fd == 0:
                os.killpg(pid, signal.SIGKILL)
                os._exit(1)
            piece = os.read(fd, 1 << 16)
            if not piece:
                poll.unregister(fd)
                opened.discard(fd)
            kept[fd] = kept[fd] + piece if fd == out else (kept[fd] + piece)[-TAIL:]
        if len(kept[out]) > most:
            return "output", [b"", kept[err]]
        if ended is not None and not ready:
            return ended, [kept[out], kept[err]]
        if ended is None:
            gone, status = os.waitpid(pid, os.WNOHANG)
            ended = os.waitstatus_to_exitcode(status) if gone else None
        if time.monotonic() > deadline:
            return ("timeout" if ended is None else ended), [kept[out], kept[err]]


def sweep(pid: int, boxed: bool) -> None:
    """Kills and reaps every other process of the box; without one, those that descend from the case."""
    while True:
        try:
            if boxed:
                os.kill(-1, signal.SIGKILL)
            else:
                os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        if not boxed and os.path.exists("/proc/thread-self/children"):
            with open("/proc/thread-self/children") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGKILL)
        try:
            while os.waitpid(-1, 0 if boxed else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def restrict(job: dict[str, Any], given: int, out: int, err: int, boxed: bool) -> None:
    """In the case's process: three files, limits, no privilege. After this nothing here can be trusted."""
    os.setsid()
    os.environ.clear()
    null = os.open(os.devnull, os.O_RDWR)
    # A function's value has a channel of its own, so that what it prints does not matter.
    moved = [os.dup(fd) for fd in (given, null if job["call"] else out, err, out)]
    for target, fd in enumerate(moved):
        os.dup2(fd, target)
    os.closerange(4, 65536)
    memory, file = job["memory_mb"] << 20, job["file_mb"] << 20
    cpu = int(job["time_limit"]) + 1
    limits = {"AS": memory, "CPU": cpu, "FSIZE": file, "NOFILE": 32, "NPROC": job["processes"], "CORE": 0,
              "STACK": 64 << 20, "MEMLOCK": 0, "MSGQUEUE": 0}  # fmt: skip
    for name, most in limits.items():
        number = vars(resource).get(f"RLIMIT_{name}")
        if number is not None:
            hard = resource.getrlimit(number)[1]
            low = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (low, low + (name == "CPU" and low == most)))
    if boxed and job["nobody"]:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    if boxed:
        check(libc.capset(struct.pack("=II", 0x20080522, 0), bytes(24)), "capset")
        forbid()


def forbid() -> None:
    """Forbids the system calls of ``DENIED``, and namespaces through clone (seccomp, classic BPF)."""
    machine = os.uname().machine
    if machine not in DENIED:
        return
    audit, clone, denied = DENIED[machine]
    load, equal, above, bits, give = 0x20, 0x15, 0x35, 0x45, 0x06
    no, unknown, allow = 0x50000 | 1, 0x50000 | 38, 0x7FFF0000
    # Each test falls through or skips the one instruction behind it.
    lines = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, 0), (load, 0, 0, 0)]
    lines += [(above, 0, 1, 0x40000000), (give, 0, 0, 0), (equal, 0, 1, CLONE3), (give, 0, 0, unknown)]
    for call in denied:
        lines += [(equal, 0, 1, call), (give, 0, 0, no)]
    lines += [(equal, 0, 3, clone), (load, 0, 0, 16), (bits, 0, 1, 0x7E020000), (give, 0, 0, no), (give, 0, 0, allow)]
    packed = b"".join(struct.pack("=HBBI", *line) for line in lines)
    keep = ctypes.create_string_buffer(packed, len(packed))
    wrapped = struct.pack("@HP", len(lines), ctypes.addressof(keep))
    check(libc.prctl(PR_SET_SECCOMP, 2, wrapped, 0, 0), "seccomp")


def program(job: dict[str, Any], case: Any) -> int:
    """Runs the program, and where a value is asked for, writes it to descriptor 3. The exit code."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program"]
    names = vars(module)
    for name in ("exit", "quit"):  # they come with the module site, which is left out
        setattr(builtins, name, sys.exit)
    exec(compile(job["program"], "program.py", "exec", dont_inherit=True), names)
    if job["call"]:
        if "expression" in case:
            exec(compile(case["setup"], "setup", "exec", dont_inherit=True), names)
            value = eval(compile(case["expression"], "test", "eval", dont_inherit=True), names)
        else:
            name = case["function"]
            function = names[name] if name in names else getattr(names["Solution"](), name)
            value = function(*case["arguments"])
        text = json.dumps(encoded(value)).encode()
        while text:
            text = text[os.write(3, text) :]
    sys.stdout.flush()
    return 0


def encoded(value: Any) -> Any:
    """A value of Python as JSON that tells tuples and sets from lists, and keeps the keys of dicts."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    for kind, mark in ((list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "set")):
        if isinstance(value, kind):
            return {mark: [encoded(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"the value is a {type(value).__name__}, which no test case can expect")


def failed(error: BaseException) -> int:
    """Says on standard error what ended the program. The exit code."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        try:
            sys.stdout.flush()
        except BaseException:
            return 1
        return 0
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 255 or 1
    os.write(2, b"\nMemoryError" if isinstance(error, MemoryError) else f"\n{type(error).__name__}: ".encode())
    os.write(2, str(error).encode("utf-8", "replace")[:300].replace(b"\n", b" "))
    return 1
