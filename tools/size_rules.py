"""Fails when a file, a function or a name breaks the rules of the house.

Files have at most 400 lines, functions at most 60 (a docstring with its formulas apart), and no module is named after
nothing in particular.
"""

import ast
import sys
from pathlib import Path

MAX_FILE = 400
MAX_FUNCTION = 60
BANNED_NAMES = {"utils", "util", "misc", "helpers", "helper", "common"}
PURE_DATA = {Path("cohort/config/verl.py"), Path("cohort/tracking/meanings.py")}
ROOTS = ("cohort", "tests", "tools", "bench", "examples")


def complaints(path: Path) -> list[str]:
    """What is wrong with one file, a line each."""
    text = path.read_text(encoding="utf-8")
    found = []
    if path.stem in BANNED_NAMES:
        found.append(f"{path}: name the file after its one idea")
    if len(text.splitlines()) > MAX_FILE and path not in PURE_DATA:
        found.append(f"{path}: {len(text.splitlines())} lines, at most {MAX_FILE}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = length(node) - (length(node.body[0]) if ast.get_docstring(node) else 0)
            if lines > MAX_FUNCTION:
                found.append(f"{path}:{node.lineno}: {node.name}() has {lines} lines, at most {MAX_FUNCTION}")
        if path.parts[0] == "cohort" and isinstance(node, ast.Call) and silent_fallback(node):
            found.append(f"{path}:{node.lineno}: getattr with a default hides a missing attribute")
    return found


def length(node: ast.stmt) -> int:
    """Lines that a statement takes."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def silent_fallback(node: ast.AST) -> bool:
    """Whether ``node`` is ``getattr(x, "name", default)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) == 3
    )


def main() -> int:
    """Checks every Python file of the project."""
    files = [path for root in ROOTS if Path(root).is_dir() for path in sorted(Path(root).rglob("*.py"))]
    found = [line for path in files for line in complaints(path)]
    print("\n".join(found) if found else f"size rules: {len(files)} files are fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
