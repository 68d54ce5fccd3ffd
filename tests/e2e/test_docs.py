"""Every command and every Python block of README.md and docs/ runs, in order, as the page says.

Each page gets an empty folder that looks like the checkout. Blocks with a title are written to a file of that name;
other Python blocks are run. Of what a page shows as output, only lines that begin with ``error:`` or ``note:`` are
compared: an error must end with exit code 2, everything else with 0.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import GENERATED, PAGES, ROOT, Block, Command, blocks

EXEMPT = re.compile(r"make (quickstart|test)\b|pip install |.*download\.pytorch\.org")
"""What makes environments: .ci/run does it."""
LANGUAGES = {"console", "bash", "python", "yaml", "json", "text"}
HEAVY = re.compile(
    r"cohort train(?! --(keys|print-config))|main_ppo|cohort\.train\(|examples/|cohort (eval|generate)|\.fit\("
)
SECONDS = 600


def is_heavy(page: Path) -> bool:
    return any(HEAVY.search(block.text) for block in blocks(page) if block.language in ("console", "bash", "python"))


def runnable(page: Path) -> bool:
    return page != GENERATED and bool(blocks(page))


@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if is_heavy(page) else [])
        for page in filter(runnable, PAGES)
    ],
)
def test_every_block_of_a_page_runs(page, tmp_path):
    folder, environment = checkout(tmp_path)
    for block in blocks(page):
        if block.title:
            place = folder / block.title
            assert not place.is_symlink(), f"{block.place}: {block.title} is a file of the project"
            place.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            (folder / "block.py").write_text(block.text, encoding="utf-8")
            run(Command("python block.py"), block, folder, environment)
        elif block.language in ("console", "bash"):
            for command in block.commands():
                if not EXEMPT.match(command.text):
                    run(command, block, folder, environment)


def checkout(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder with links to what a checkout holds, and an environment in which ``cohort`` and ``python`` are ours."""
    folder, programs = tmp_path / "cohort-rl", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name in ("README.md", "docs", "examples", "tests", "cohort"):
        (folder / name).symlink_to(ROOT / name)
    for name, options in (("cohort", "-m cohort"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n')
        (programs / name).chmod(0o755)
    # COHORT_CACHE and XDG_CACHE_HOME stay as they are: the starter model is built once for all tests.
    ours = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return folder, {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **ours}


def run(command: Command, block: Block, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    said = f"{block.place}: {command.text}\n{done.stdout}\n{done.stderr}"
    expected = [line for line in command.shown if line.startswith(("error: ", "note: "))]
    assert done.returncode == (2 if any(line.startswith("error: ") for line in expected) else 0), said
    for line in expected:
        assert line in (done.stdout + done.stderr).splitlines(), f"the page shows: {line}\n{said}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_block_escapes(page):
    text = page.read_text(encoding="utf-8")
    found = blocks(page)
    assert 2 * len(found) == len(re.findall(r"^```", text, re.MULTILINE)), "a fence that the tests cannot read"
    assert {block.language for block in found} <= LANGUAGES
    assert not re.search(r"^    (make|cohort|python|pip) ", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)


def test_what_is_exempt_is_short():
    lines = {c.text for page in PAGES for b in blocks(page) for c in b.commands() if EXEMPT.match(c.text)}
    assert {line.split(" PIP_ARGS")[0] for line in lines if line.startswith("make")} == {"make quickstart", "make test"}
    assert all(line.startswith(("make ", "pip install ")) for line in lines)


def anchors(page: Path) -> set[str]:
    """The names that links can point to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name}: {target}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{page.name}: {target}"


def test_the_readme_names_every_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"docs/{page.name}" not in readme] == []
