"""The code reward and its sandbox: programs that are right, wrong, and hostile."""

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.errors import UserError
from cohort.rewards import sandbox
from cohort.rewards.base import Call, grade
from cohort.rewards.code import compute_score, extract, same_text, same_value
from cohort.rewards.registry import built_in, by_data_source
from cohort.rewards.runner import RewardRunner
from cohort.rewards.sandbox import Limits, SandboxBroken, prepare_sandbox, probe, run_cases
from tests.unit.test_rewards_base import rollout
from tests.unit.test_rewards_processes import gone

ROOT = Path(__file__).parents[2]
BOXED = sys.platform == "linux" and probe() == ""
needs_box = pytest.mark.skipif(not BOXED, reason="no namespaces here")
ADD = {"inputs": ["1 2\n", "3 4\n", "10 -1\n"], "outputs": ["3\n", "7", "9\n"]}
DOUBLE = {"inputs": ["3", "[1, 2]", '"ab"'], "outputs": ["6", "[1, 2, 1, 2]", '"abab"'], "fn_name": "f"}
HOSTILE = {
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "timeout"),
    "thread bomb": ("import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(9,)).start()",
                    "exception memory"),
    "memory bomb": ("x = []\nwhile True: x.append(bytearray(1 << 24))", "memory"),
    "large list": ("x = [0] * 10**10", "memory"),
    "infinite loop": ("while True: pass", "timeout"),
    "deaf loop": ("import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
                  "    except (OSError, ValueError): pass\nwhile True: pass", "timeout"),
    "sleep": ("import time\ntime.sleep(1000)", "timeout"),
    "infinite output": ("while True: print('x' * 10000)", "output"),
    "infinite errors": ("import sys\nwhile True: print('x' * 10000, file=sys.stderr)", "timeout"),
    "network": ("import socket\nsocket.create_connection(('1.1.1.1', 53), timeout=2)\nprint(3)", "exception"),
    "loopback": ("import socket\ns = socket.socket(socket.AF_INET)\ns.connect(('127.0.0.1', 22))\nprint(3)",
                        "exception"),
    "passwd": ("print(open('/etc/passwd').read())", "exception"),
    "parent's environment": ("print(open('/proc/1/environ').read())", "exception"),
    "own environment": ("import os\nassert os.environ", "exception"),
    "outside": ("import os\nfor p in ('/x', '/usr/lib/x', '/dev/x', os.__file__):\n    try: open(p, 'w')\n"
                "    except OSError: continue\n    print(3)", "wrong"),
    "large file": ("f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20))", "exception"),
    "kill parent": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, 9)\nwhile 1: pass",
                    "timeout memory exception"),
    "orphan": ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)"
               "\n    os._exit(0)\nprint(0)", "wrong"),
    "recursion": ("def f(x): return f(x + 1)\nf(0)", "exception"),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): "
                       "return repr([self])\nrepr(A())", "exception memory timeout"),
    "exit": ("import sys\nsys.exit(0)", "wrong"),
    "hard exit": ("import os\nos._exit(0)", "wrong"),
    "answers on disk": ("import os\nfor folder, _, names in os.walk('/'):\n    for n in names:\n"
                        "        if 'output' in n or n.endswith('.json') and 'tmp' in folder:\n"
                        "            print(open(os.path.join(folder, n)).read()); break\n    if folder > '/tm': break",
                        "wrong exception timeout"),
    "answers in memory": ("import gc, sys\nf = sys._getframe()\nwhile f:\n    for v in list(f.f_globals.values()) + "
                          "list(f.f_locals.values()):\n        if isinstance(v, dict) and 'outputs' in v: print(3)\n"
                          "    f = f.f_back", "wrong"),
    "monkeypatch": ("import builtins, json, sys, os\nclass E(str):\n    __eq__ = lambda a, b: True\n"
                    "json.dumps = lambda x: '[{\"ended\": 0, \"whole\": true, \"out\": \"3\", \"err\": \"\"}]'\n"
                    "for m in list(sys.modules.values()):\n    if hasattr(m, 'watch'): m.watch = m.sweep = None\n"
                    "print(E('4'))", "wrong"),
    "new namespaces": ("import ctypes, os\nc = ctypes.CDLL(None)\nif c.unshare(0x10000000) == 0 or "
                       "c.mount(b'p', b'/tmp', b'proc', 0, None) == 0 or c.ptrace(16, os.getppid(), 0, 0) == 0 or "
                       "c.shmget(0, 4096, 0o1600) >= 0 or c.setuid(0) == 0 or c.syscall(319, b'x', 0) >= 0: print(3)",
                       "wrong"),
    "report by hand": ("import os\nfor fd in range(64):\n    try: os.write(fd, b'[{\"whole\": true}]')\n"
                       "    except OSError: pass", "wrong"),
}  # fmt: skip
"""Program and the words with which its reason may begin."""
FAST = {"time_limit": 1.0, "total_limit": 6.0, "memory_mb": 256}


def answer(program):
    return f"Try this:\n```\nwrong\n```\nNo, this:\n```python\n{textwrap.dedent(program)}\n```\nDone."


def ours():
    """Boxes that descend from this process, zombies apart."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in children if b'"inside"' in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture(autouse=True)
def nothing_left():
    """Whatever outlives a box becomes a child of this process, and is found."""
    if sys.platform != "linux":
        yield
        return
    ctypes.CDLL(None).prctl(36, 1)
    yield
    ctypes.CDLL(None).prctl(36, 0)
    assert all(gone(pid) for pid in ours())


@needs_box
@pytest.mark.parametrize(
    ("key", "program"),
    [
        (ADD, "a, b = map(int, input().split())\nprint(a + b)"),
        (json.dumps(ADD), "import sys\nprint(sum(map(int, sys.stdin.read().split())))\nexit()"),
        (ADD, "def main():\n    print(sum(map(int, open(0).read().split())))\nif __name__ == '__main__':\n    main()"),
        (ADD, "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())\nos._exit(0)"),
        (DOUBLE, "def f(x):\n    print('noise')\n    return x * 2"),
        (json.dumps(DOUBLE), "class Solution:\n    def f(self, x):\n        return x + x"),
        ({"inputs": [[1, 2]], "outputs": [[(3, 0.1)]], "fn_name": "f"}, "def f(a, b): return [(a + b, .1 + 1e-12)]"),
        ({"inputs": ["1\n2"], "outputs": ["[3]"], "fn_name": "f"}, "def f(a, b): return a + b"),
        ({"assert_case": ["assert f(1) == (1, {2})", "import math\nassert math.isclose(f(1)[0], 1.0)",
                          "assert not g(1)", "assert 3 != f(0)", "assert abs(f(1)[0] - 1.1) < 0.2"]},
         "f = lambda x: (x, {2})\ndef g(x): return x == 2"),
    ],
)  # fmt: skip
def test_right_programs(key, program):
    found = compute_score(answer(program), key)
    assert found == {"score": 1.0, "acc": 1.0, "passed": 1.0, "parsed": 1.0, "reason": ""}


@needs_box
@pytest.mark.parametrize(
    ("key", "program", "said"),
    [
        (ADD, "print(4)", "wrong answer: '4' is not '3' (case 1 of 3)"),
        (ADD, "print(1 / 0)", "exception: ZeroDivisionError: division by zero (case 1 of 3)"),
        (ADD, "print(", "exception: SyntaxError"),
        (ADD, "import sys\nprint(3)\nsys.exit(4)", "exception: exit code 4"),
        (ADD, "import os\nos.abort()", "exception: killed by signal 6"),
        (DOUBLE, "def g(x): return x", "exception: KeyError: 'Solution'"),
        (DOUBLE, "def f(x): return object()", "exception: TypeError: the value is a object"),
        (DOUBLE, "def f(x): return 7", "wrong answer: 7 is not 6"),
        ({"assert_case": ["assert f(1) == [1]"]}, "def f(x): return (x,)", "wrong answer: (1,) is not [1]"),
    ],
)
def test_wrong_programs(key, program, said):
    found = compute_score(answer(program), key)
    assert found["score"] == found["acc"] == 0.0
    assert said in found["reason"]


@needs_box
def test_partial_credit_and_limits():
    program = answer("a, b = map(int, input().split())\nprint(a + b if a != 3 else 0)")
    assert compute_score(program, ADD)["score"] == 0.0
    found = compute_score(program, ADD, partial=True)
    assert found["score"] == found["passed"] == pytest.approx(2 / 3) and found["acc"] == 0.0
    assert "(case 2 of 3)" in found["reason"]
    assert compute_score(program, ADD, max_cases=1)["score"] == 1.0
    slow = answer("import time\ntime.sleep(0.4)\nprint(sum(map(int, input().split())))")
    found = compute_score(slow, ADD, partial=True, total_limit=1.0)
    assert found["score"] == pytest.approx(2 / 3) and "timeout" in found["reason"]


@needs_box
@pytest.mark.parametrize(("program", "reasons"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_programs_are_contained_and_score_zero(program, reasons):
    started = time.monotonic()
    found = compute_score(answer(program), ADD, **FAST)
    assert time.monotonic() - started < 5
    assert found["score"] == found["passed"] == 0.0
    assert found["reason"].split()[0].strip(":") in reasons.split(), found["reason"]


@needs_box
@pytest.mark.parametrize(
    "program",
    [
        "class E:\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\ndef f(x): return E()",
        "class E(int):\n    __eq__ = lambda a, b: True\ndef f(x): return E(5)",
        "import sys\nsys.exit(0)",
        "import os\nos.write(3, b'true')\nos._exit(0)",
        "import os\nos.write(3, b'[' * 100000)\nos._exit(0)",
        'import os\nos.write(3, b\'{"dict": [[{"list": []}, 1]]}\')\nos._exit(0)',
        "f = lambda x: 0\nimport json\njson.dumps = lambda *a: '6'[:0]",
    ],
)
def test_the_comparison_is_out_of_reach(program):
    for key in (DOUBLE, {"assert_case": ["assert f(1) == 2"]}, {"assert_case": ["assert 2 == f(1)"]}):
        found = compute_score(answer(program), key, **FAST)
        assert found["score"] == 0.0
        assert found["reason"]


@needs_box
def test_cases_do_not_see_one_another():
    program = (
        "import os\nif os.path.exists('x'): print('seen')\nopen('x', 'w').write(input())\nprint(os.listdir('.'))\n"
    )
    program += "if os.fork() == 0:\n    import time\n    time.sleep(30)"
    ran = run_cases(program, ["1", "2", "3"], Limits(), call=False, stop_at_failure=True)
    assert [r.output for r in ran] == ["['x']\n"] * 3


@needs_box
def test_sets_have_the_same_order_each_time():
    text = "print({'a', 'b', 'c', 'd'})"
    ran = {run_cases(text, [""], Limits(), call=False, stop_at_failure=True)[0] for _ in range(4)}
    assert len(ran) == 1


@needs_box
def test_a_killed_reward_leaves_nothing(tmp_path):
    script = "from cohort.rewards.sandbox import *\nrun_cases('import os\\nos.fork()\\nwhile True: pass', [''], "
    script += "Limits(time_limit=60, total_limit=60), call=False, stop_at_failure=True)"
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    deadline = time.monotonic() + 20
    found = []
    while len(found) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
        found = descendants(parent.pid)
    assert len(found) >= 4  # launcher, supervisor, the program and its child
    parent.kill()
    parent.wait()
    assert all(gone(pid) for pid in found)


def descendants(pid):
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return children + [below for child in children for below in descendants(child)]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, "it is NoneType"),
        ("{", "it is not JSON"),
        ("[1]", "it is list"),
        ({}, "it has no inputs; it has: nothing"),
        ({"inputs": ["1"]}, "it has no outputs; it has: inputs"),
        ({"inputs": ["1"], "outputs": []}, "outputs is empty"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "it has 2 inputs and 1 outputs"),
        ({"inputs": "1", "outputs": ["1"]}, "inputs is str, not a list"),
        ({"inputs": [1], "outputs": ["1"]}, "an input or output is int"),
        ({"inputs": ["{"], "outputs": ["1"], "fn_name": "f"}, "input 1 is not one JSON argument a line"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": "a.b"}, "fn_name='a.b' is no name"),
        ({"assert_case": ["assert f("]}, "assert_case 1 is not Python"),
        ({"assert_case": ["f(1)"]}, "assert_case 1 is not statements and one assert"),
        ({"assert_case": ["assert all(f(i) == i for i in [1])"]}, "cannot be decided outside the sandbox"),
        ({"assert_case": ["assert abs(f(1) - 'a') < 1"]}, "compare an expression with a literal"),
        ({"assert_case": ["assert f(1) == f(2)"]}, "compare an expression with a literal"),
    ],
)
def test_a_broken_key_is_unscorable_with_its_reason(key, said):
    call = Call("code", compute_score, {}, frozenset(("solution_str", "ground_truth")))
    outcome = grade(call, {"solution_str": answer("print(1)"), "ground_truth": key})
    assert outcome.value is None
    assert outcome.reason.startswith("broken ground_truth") and said in outcome.reason


def test_no_program_is_refused():
    assert compute_score("print(3)", ADD)["reason"] == "refused: the answer has no ``` block"
    long = compute_score(answer("#" * ((1 << 18) + 1)), ADD)
    assert long["score"] == 0.0 and long["reason"].startswith("refused: the program has more than")
    assert extract("```python\na\n```\n```py\nb\nc\n```")[0] == "b\nc"


def test_comparison_of_text_and_values():
    assert same_text("1 2 \n3\n\n", "1 2\n3")
    assert same_text("0.3333333333", "0.33333333334") and not same_text("0.34", "0.33")
    assert not same_text("1000001", "1000000") and not same_text("1\n2", "1 2") and not same_text("x", "0.5")
    assert same_value((1, {2: "x"}), [1, {"2": "x"}])
    assert not same_value(True, 1) and not same_value([1], 1) and not same_value("1", 1)


def test_unsafe_runs_with_limits_alone_and_says_so_once(caplog):
    sandbox._say_unsafe.cache_clear()
    reward = built_in("code", {"sandbox": "unsafe", **FAST})
    built_in("code", {"sandbox": "unsafe"})
    assert caplog.text.count("runs as you, with your files and your network") == 1
    good = answer("print(sum(map(int, input().split())))")
    assert reward.function(good, ADD, **reward.kwargs)["score"] == 1.0
    orphan = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint(0)"
    for bad in ("while True: pass", "x = [0] * 10**10", "while True: print('x' * 9999)", orphan):
        assert reward.function(answer(bad), ADD, **reward.kwargs)["score"] == 0.0


def test_without_namespaces_it_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "probe", lambda: "unshare: Operation not permitted")
    for make in (lambda: built_in("code"), lambda: by_data_source(["codecontests"])):
        with pytest.raises(UserError, match="cannot be had here .*not permitted.*sandbox=unsafe") as caught:
            make()
        assert "\n" not in str(caught.value)
    assert built_in("code", {"sandbox": "unsafe"}).name == "code"
    with pytest.raises(UserError, match="sandbox='off'; give one of namespaces, unsafe"):
        prepare_sandbox("off")
    with pytest.raises(UserError, match="time_limit=0"):
        built_in("code", {"time_limit": 0, "sandbox": "unsafe"})


def test_a_box_that_cannot_be_made_is_no_zero(monkeypatch):
    monkeypatch.setattr(sandbox, "_folders", lambda: ["/does/not/exist"])
    if BOXED:
        with pytest.raises(SandboxBroken, match="No such file"):
            compute_score(answer("print(3)"), ADD)


@needs_box
@pytest.mark.parametrize("source", ["codecontests", "apps", "codeforces", "taco"])
def test_data_sources_are_routed(source):
    reward = by_data_source([source])
    found = reward.function(source, answer("print(sum(map(int, input().split())))"), json.dumps(ADD), {})
    assert found["score"] == 1.0


@needs_box
def test_in_the_workers_of_a_run():
    async def scores():
        texts = [answer("print(sum(map(int, input().split())))"), answer("while True: pass"), "no program"]
        items = [rollout(text) for text in texts]
        items = [replace(item, prompt=replace(item.prompt, ground_truth=json.dumps(ADD))) for item in items]
        return await asyncio.gather(*(runner.score(item) for item in items))

    runner = RewardRunner([built_in("code", FAST)], num_workers=2, timeout=20)
    good, endless, none = asyncio.run(scores())
    runner.close()
    assert (good.value, endless.value, none.value) == (1.0, 0.0, 0.0)
    assert endless.parts["reason"] == "timeout: more than 1 s (case 1 of 3)" and good.parts["passed"] == 1.0


@pytest.fixture
def readable():
    """The few files of the sandbox where every user can read them."""
    with tempfile.TemporaryDirectory(prefix="cohort-everyone-") as folder:
        for name in ("__init__.py", "errors.py", "rewards/__init__.py", "rewards/sandbox.py",
                     "rewards/sandbox_inside.py"):  # fmt: skip
            target = Path(folder) / "cohort" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("" if name == "__init__.py" else (ROOT / "cohort" / name).read_text())
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield folder


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or not BOXED, reason="needs root, to become another user")
def test_an_ordinary_user_has_the_same_box_or_is_told(readable):
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no Python that everyone may run")
    script = (
        "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"import sys; sys.path.insert(0, {str(readable)!r})\n"
        "from cohort.rewards.sandbox import *\n"
        "bomb = 'import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass'\n"
        "kill = 'import os\\nos.kill(1, 9)\\nopen(\"/etc/passwd\")'\n"
        f"escape = {HOSTILE['new namespaces'][0]!r}\n"
        "for text in ('print(int(input()) + 1)', bomb, kill, escape):\n"
        "    try: print(run_cases(text, ['1'], Limits(time_limit=1), call=False, stop_at_failure=True)[0][:2])\n"
        "    except SandboxBroken as error: print('refused', error)\n"
    )
    out = subprocess.run([python, "-B", "-c", script], capture_output=True, text=True, timeout=60, cwd="/")
    lines = out.stdout.splitlines()
    assert lines == ["('', '2\\n')", "('timeout', '')", "('exception', '')", "('', '')"] or (
        len(lines) == 4 and all(line.startswith("refused ") for line in lines)
    ), out.stdout + out.stderr
