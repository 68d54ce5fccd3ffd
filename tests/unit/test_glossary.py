"""Names are the field's (AGENTS.md): words we do not use for our concepts do not appear as identifiers."""

import ast
import re
from pathlib import Path

import cohort

BANNED = re.compile(r"(^|_)(logps?|episodes?|reward_tensor|off_policiness|trajectories|misc|utils?|helpers?)($|_)")
VERBS = re.compile(r"^(process|handle|do(?!_sample$)|perform|execute)_")
FILES = sorted(Path(cohort.__file__).parent.rglob("*.py"))
THEIRS = {"handle_zero_tail"}
"""Arguments that verl named; people pass them by name."""


def names(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_no_banned_words_and_verbs():
    bad = []
    for path in FILES:
        for name in names(ast.parse(path.read_text(encoding="utf-8"))):
            if name not in THEIRS and (BANNED.search(name.lower()) or VERBS.search(name)):
                bad.append(f"{path.name}: {name}")
    assert not bad, bad
    assert len(FILES) > 100
