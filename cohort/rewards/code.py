"""Programs, run on test cases in a sandbox.

The program is the last fenced block of the answer. The answer key is a dict, or its JSON, in one of three forms:

    {"inputs": ["1 2\\n", ...], "outputs": ["3\\n", ...]}                    standard input and output
    {"inputs": ["[1, 2]\\n3", ...], "outputs": ["6", ...], "fn_name": "f"}   a function, one JSON argument a line
    {"assert_case": ["assert f(1) == 2", ...]}                              assertions

They are the forms of verl's code data. Inputs of a function may also be lists of arguments, its outputs any JSON. A
method of a class ``Solution`` counts as a function. Outputs are compared here, outside the box, so that the program
can neither see what is expected nor touch the comparison: for that an assertion must compare an expression with a
literal (``==``, ``!=``, ``is``), be ``math.isclose(EXPRESSION, LITERAL)``, ``abs(EXPRESSION - LITERAL) < LITERAL``, or
be a plain call, negated or not.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from cohort.rewards.sandbox import Kind, Limits, Ran, prepare_sandbox, run_cases

FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:\n[ \t]*)?```", re.DOTALL)
MOST_PROGRAM = 1 << 18
"""Characters of a program; longer ones are refused."""
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""How far a printed or returned fraction may be from the expected one."""


class BrokenKey(ValueError):
    """The row's answer key cannot be used; the message says why."""


class Test(NamedTuple):
    """What the box gets, and what must come back."""

    case: Any
    expected: Any
    how: str


class Suite(NamedTuple):
    """All tests of a row."""

    call: bool
    tests: tuple[Test, ...]


def prepare(settings: Mapping[str, Any]) -> None:
    """Asked once at the start: whether programs can be run here as ``settings`` say.

    Raises:
        UserError: no namespaces, or a setting that cannot be.
    """
    Limits(**{name: settings[name] for name in ("time_limit", "total_limit", "memory_mb") if name in settings})
    prepare_sandbox(settings.get("sandbox", "namespaces"))


def compute_score(
    solution_str: str,
    ground_truth: object,
    *,
    partial: bool = False,
    time_limit: float = 5.0,
    total_limit: float = 20.0,
    memory_mb: int = 1024,
    max_cases: int | None = None,
    sandbox: Kind = "namespaces",
) -> dict[str, object]:
    """1 if the program in the answer passes every test case, else 0, or the share it passes with ``partial``.

    Args:
        solution_str: the answer; its last ``` block is the program.
        ground_truth: the test cases; see the module's text.
        partial: whether the share of passed cases is the score; all cases are then run.
        time_limit: seconds of a case.
        total_limit: seconds of all cases; keep it below ``reward.timeout``.
        memory_mb: MiB of a process of the program.
        max_cases: run no more than the first so many.
        sandbox: "namespaces", or "unsafe" to run with resource limits alone.

    Returns:
        ``score``; ``passed``, the share of passed cases (without ``partial`` those behind the first failure count
        as failed); ``acc``, 1 if all passed; ``parsed``, whether there was a program; ``reason``: "" or what went
        wrong first (wrong answer, exception, timeout, memory, output, refused). ``score`` is None for a broken key.

    Raises:
        SandboxBroken: the box could not be made; the answer then has no score.
    """
    try:
        suite = read_key(ground_truth, max_cases)
    except BrokenKey as error:
        return {"score": None, "reason": f"broken ground_truth: {error}"}
    program, refusal = extract(solution_str)
    if refusal:
        return {"score": 0.0, "acc": 0.0, "passed": 0.0, "parsed": 0.0, "reason": f"refused: {refusal}"}
    limits = Limits(
        time_limit=time_limit,
        total_limit=total_limit,
        memory_mb=memory_mb,
        output_limit=(1 << 20) + 2 * max(len(str(test.expected)) for test in suite.tests),
    )
    ran = run_cases(
        program,
        [test.case for test in suite.tests],
        limits,
        call=suite.call,
        stop_at_failure=not partial,
        sandbox=sandbox,
    )
    wrong = [judge(test, outcome) for test, outcome in zip(suite.tests, ran, strict=False)]
    wrong += [f"timeout: more than {total_limit:g} s for all cases"] * (len(suite.tests) - len(wrong))
    count = len(suite.tests)
    first = next(((i, text) for i, text in enumerate(wrong) if text), None)
    share = sum(not text for text in wrong) / count
    acc = float(first is None)
    reason = "" if first is None else f"{first[1]} (case {first[0] + 1} of {count})"
    return {"score": share if partial else acc, "acc": acc, "passed": share, "parsed": 1.0, "reason": reason}


def extract(text: str) -> tuple[str, str]:
    """The program of an answer, and why there is none."""
    blocks = FENCED.findall(text)
    if not blocks:
        return "", "the answer has no ``` block"
    if len(blocks[-1]) > MOST_PROGRAM:
        return "", f"the program has more than {MOST_PROGRAM} characters"
    return blocks[-1], ""


def read_key(key: object, max_cases: int | None = None) -> Suite:
    """The tests of an answer key.

    Raises:
        BrokenKey: saying what is wrong with it.
    """
    suite = _read_text(key) if isinstance(key, str) else _read(key)
    return suite._replace(tests=suite.tests[:max_cases])


@lru_cache(maxsize=64)
def _read_text(text: str) -> Suite:
    """The same for JSON; every sample of a group asks for the same one."""
    try:
        return _read(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BrokenKey(f"it is not JSON ({error})") from error


def _read(key: object) -> Suite:
    if not isinstance(key, Mapping):
        raise BrokenKey(f"it is {type(key).__name__}, not a dict with inputs and outputs or assert_case")
    if key.get("assert_case") is not None:
        return Suite(True, tuple(_assertion(i, text) for i, text in enumerate(_items(key, "assert_case"))))
    inputs, outputs = _items(key, "inputs"), _items(key, "outputs")
    if len(inputs) != len(outputs):
        raise BrokenKey(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    name = key.get("fn_name")
    if not name:
        return Suite(False, tuple(Test(_lines(i), _lines(o), "text") for i, o in zip(inputs, outputs, strict=True)))
    if not isinstance(name, str) or not name.isidentifier():
        raise BrokenKey(f"fn_name={name!r:.60} is no name of a function")
    tests = [
        Test({"function": name, "arguments": _arguments(i, given)}, _expected(wanted), "value")
        for i, (given, wanted) in enumerate(zip(inputs, outputs, strict=True))
    ]
    return Suite(True, tuple(tests))


def _items(key: Mapping[Any, Any], name: str) -> list[Any]:
    if name not in key or key[name] is None:
        raise BrokenKey(f"it has no {name}; it has: {', '.join(map(str, key)) or 'nothing'}")
    items = key[name]
    if isinstance(items, str) and name == "assert_case":
        items = [items]
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, "__len__") or not hasattr(items, "__iter__"):
        raise BrokenKey(f"{name} is {type(items).__name__}, not a list")
    if not len(items):
        raise BrokenKey(f"{name} is empty")
    return list(items)


def _lines(item: object) -> str:
    """Text of a standard stream; lists of lines are joined."""
    if isinstance(item, str):
        return item
    if isinstance(item, list | tuple) and all(isinstance(line, str) for line in item):
        return "\n".join(item)
    raise BrokenKey(f"an input or output is {type(item).__name__}, not text")


def _arguments(number: int, given: object) -> list[Any]:
    if isinstance(given, list | tuple):
        return list(given)
    if not isinstance(given, str):
        raise BrokenKey(f"input {number + 1} is {type(given).__name__}, not a list of arguments or lines of JSON")
    try:
        return [json.loads(line) for line in given.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        raise BrokenKey(f"input {number + 1} is not one JSON argument a line ({error})") from error


def _expected(wanted: object) -> object:
    try:
        return json.loads(wanted) if isinstance(wanted, str) else wanted
    except (ValueError, RecursionError):
        return wanted


def _assertion(number: int, text: object) -> Test:
    """One assertion, split into what the box evaluates and what is compared here."""
    try:
        body = ast.parse(str(text).strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BrokenKey(f"assert_case {number + 1} is not Python ({error})") from error
    if not body or not isinstance(body[-1], ast.Assert) or any(isinstance(line, ast.Assert) for line in body[:-1]):
        raise BrokenKey(f"assert_case {number + 1} is not statements and one assert at the end")
    split = _split(body[-1].test)
    if split is None:
        raise BrokenKey(
            f"assert_case {number + 1} ({ast.unparse(body[-1].test)[:80]}) cannot be decided outside the sandbox; "
            "compare an expression with a literal"
        )
    expression, expected, how = split
    setup = "\n".join(ast.unparse(line) for line in body[:-1])
    return Test({"setup": setup, "expression": ast.unparse(expression)}, expected, how)


def _split(test: ast.expr) -> tuple[ast.expr, object, str] | None:
    match test:
        case ast.Compare(left=ast.Call(func=ast.Name("abs"), args=[ast.BinOp(left, ast.Sub(), right)]),
                         ops=[ast.Lt() | ast.LtE()], comparators=[most]):  # fmt: skip
            return _near(left, right, 0.0, _literal(most))
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.NotEq() | ast.IsNot() as op], comparators=[right]):
            pair = _pair(left, right)
            return (*pair, "same" if isinstance(op, ast.Eq | ast.Is) else "other") if pair else None
        case ast.Call(func=ast.Attribute(ast.Name("math"), "isclose") | ast.Name("isclose"), args=[left, right]):
            within = {word.arg: _literal(word.value) for word in test.keywords}
            return _near(left, right, within.get("rel_tol", 1e-9), within.get("abs_tol", 0.0))
        case ast.UnaryOp(ast.Not(), ast.Call() as call) if _plain(call):
            return call, None, "false"
        case ast.Call() if _plain(test):
            return test, None, "true"
    return None


def _near(left: ast.expr, right: ast.expr, relative: object, absolute: object) -> tuple[ast.expr, object, str] | None:
    pair = _pair(left, right)
    if pair is None or not all(isinstance(number, int | float) for number in (pair[1], relative, absolute)):
        return None
    return pair[0], (pair[1], relative, absolute), "near"


def _pair(left: ast.expr, right: ast.expr) -> tuple[ast.expr, object] | None:
    for expression, literal in ((left, right), (right, left)):
        value = _literal(literal)
        if value is not Ellipsis:
            return expression, value
    return None


def _literal(node: ast.expr) -> object:
    """Its value; ``...`` if it is no literal."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Ellipsis


def _plain(call: ast.Call) -> bool:
    """Whether it calls the program's own function on literals: what ``all`` says of a comparison is no evidence."""
    values = [*call.args, *(word.value for word in call.keywords)]
    return all(_literal(value) is not Ellipsis for value in values)


def judge(test: Test, ran: Ran) -> str:
    """Why the case is not passed; empty if it is."""
    if ran.failure:
        return f"{ran.failure}: {ran.said}" if ran.said else ran.failure
    if test.how == "text":
        if same_text(ran.output, test.expected):
            return ""
        return f"wrong answer: {ran.output.strip()!r:.80} is not {test.expected.strip()!r:.80}"
    try:
        value = decoded(json.loads(ran.output))
    except (ValueError, TypeError, KeyError, RecursionError):
        return "wrong answer: the program ended without a value"
    try:
        good = _holds(test, value)
    except (RecursionError, OverflowError):
        good = False
    wanted = {"other": "another value than ", "near": "near ", "true": "true", "false": "false"}.get(test.how, "")
    shown = test.expected[0] if test.how == "near" else test.expected
    return "" if good else f"wrong answer: {value!r:.80} is not {wanted}{'' if shown is None else repr(shown)[:80]}"


def _holds(test: Test, value: Any) -> bool:
    match test.how:
        case "same":
            return value == test.expected
        case "other":
            return value != test.expected
        case "near":
            wanted, relative, absolute = test.expected
            number = isinstance(value, int | float)
            return number and math.isclose(value, wanted, rel_tol=relative, abs_tol=absolute)
        case "true" | "false":
            return bool(value) == (test.how == "true")
    single = isinstance(test.expected, list) and len(test.expected) == 1
    return same_value(value, test.expected) or (single and same_value(value, test.expected[0]))


def same_text(output: str, expected: str) -> bool:
    """Line by line, but for blanks at the end; where a fraction is expected, a number close to it will do."""
    got, wanted = ([line.split() for line in text.rstrip().split("\n")] for text in (output, expected))
    return len(got) == len(wanted) and all(
        len(a) == len(b) and all(_same_word(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(got, wanted, strict=True)
    )


def _same_word(got: str, wanted: str) -> bool:
    if got == wanted:
        return True
    if not re.fullmatch(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?", wanted):
        return False
    try:
        return math.isclose(float(got), float(wanted), rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    except ValueError:
        return False


def same_value(value: Any, wanted: Any) -> bool:
    """Equality of JSON: tuples are lists, keys of dicts are text, fractions may be a little off."""
    if isinstance(wanted, list | tuple):
        fits = isinstance(value, list | tuple) and len(value) == len(wanted)
        return fits and all(same_value(a, b) for a, b in zip(value, wanted, strict=True))
    if isinstance(wanted, Mapping):
        if not isinstance(value, Mapping):
            return False
        value, wanted = ({str(k): v for k, v in d.items()} for d in (value, wanted))
        return value.keys() == wanted.keys() and all(same_value(value[k], wanted[k]) for k in wanted)
    if isinstance(wanted, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return math.isclose(value, wanted, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def decoded(item: Any) -> Any:
    """What ``sandbox_inside.encoded`` wrote. It came from the program: anything may be in it."""
    if not isinstance(item, dict):
        return item
    ((mark, items),) = item.items()
    if mark == "dict":
        return {decoded(key): decoded(value) for key, value in items}
    return {"list": list, "tuple": tuple, "set": set}[mark](decoded(value) for value in items)
