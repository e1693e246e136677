# SPDX-License-Identifier: Apache-2.0
"""tests/mutants.yaml names lines and tests that there are, docs/mutants.md is of that list, and the program says the
truth about a small project. Whether each test really misses its guard is what `make mutants` finds out."""

from __future__ import annotations

import ast
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.support import end_child, wait_until
from tests.unit.repo.tree import ROOT

LIST: list[dict[str, str]] = yaml.safe_load((ROOT / "tests/mutants.yaml").read_text(encoding="utf-8"))
FEWEST = 60

GUARD = "def is_safe(n):\n    return n < 3\n"
TEST = """
from fairsched.guard import is_safe

def test_the_edge():
    assert is_safe(2) and not is_safe(3)

def test_nothing():
    assert is_safe(0)
"""
SMALL = """
- {guard: The edge is kept., file: fairsched/guard.py, old: n < 3, new: n < 4,
   test: "tests/unit/test_it.py::test_the_edge"}
"""
ANOTHER = """
- {guard: It is safe., file: fairsched/guard.py, old: n < 3, new: n < 9,
   test: "tests/unit/test_it.py::test_nothing"}
"""


@cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_the_list_is_long_enough_and_has_nothing_twice() -> None:
    assert len(LIST) >= FEWEST
    for keys in (("guard",), ("file", "old", "new")):
        counts = Counter(tuple(entry[key] for key in keys) for entry in LIST)
        assert [what for what, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("entry", LIST, ids=lambda entry: re.sub(r"\W+", "-", entry["guard"])[:60])
def test_an_entry_breaks_one_line_that_there_is_and_names_a_test_that_there_is(
    entry: dict[str, str],
) -> None:
    assert set(entry) == {"guard", "file", "old", "new", "test"}
    assert entry["file"].startswith(("fairsched/", "bpf/", "cgroup/"))
    assert (ROOT / entry["file"]).read_text(encoding="utf-8").count(entry["old"]) == 1, "the line has changed"
    assert entry["new"] != entry["old"]
    assert "\n" not in entry["old"] + entry["new"]
    file, _, name = entry["test"].partition("::")
    assert file.startswith(("tests/unit/", "tests/node/"))
    assert name.partition("[")[0] in functions_in(file)


def test_the_page_is_of_this_list_and_every_test_has_failed() -> None:
    rows = [
        line.strip("|").split(" | ")
        for line in (ROOT / "docs/mutants.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| guard")
    ]
    said = [row[0].strip() for row in rows]
    assert said == [entry["guard"] for entry in LIST], "sudo make mutants ARGS=--write"
    assert [row[0] for row in rows if row[-1].strip() != "killed"] == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package with one guard, and a test that misses it."""
    files = {
        "fairsched/__init__.py": "",
        "fairsched/guard.py": GUARD,
        "tests/unit/test_it.py": TEST,
        "tests/mutants.yaml": SMALL,
        "docs/README.md": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/mutants.py", tmp_path / "scripts/mutants.py")
    (tmp_path / "tmp").mkdir()
    (tmp_path / ".gitignore").write_text("/tmp/\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def start(project: Path, *words: str) -> subprocess.Popen[str]:
    """With a place of its own for temporary files."""
    return subprocess.Popen(
        [sys.executable, "-B", "scripts/mutants.py", *words],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(project / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_who_is_missed_is_killed_and_who_is_not_survives(project: Path) -> None:
    with (project / "tests/mutants.yaml").open("a") as file:
        file.write(ANOTHER)
    process = start(project, "--write")
    said = process.communicate(timeout=240)[0]
    assert process.returncode == 1, said
    assert re.search(r"^killed .* The edge is kept\.", said, re.MULTILINE), said
    assert re.search(r"^SURVIVED .* It is safe\.", said, re.MULTILINE), said
    assert "2 mutants: 1 killed, 1 survived, 0 errors" in said
    page = (project / "docs/mutants.md").read_text()
    assert "| The edge is kept. | `fairsched/guard.py` | `n < 3` → `n < 4` |" in page
    assert "- 2 mutants: 1 killed, 1 SURVIVED; 2 by unit tests, 0 by node tests." in page
    assert (project / "fairsched/guard.py").read_text() == GUARD, "the checkout is not touched"
    assert list((project / "tmp").iterdir()) == []
    (project / "tests/unit/test_it.py").write_text(TEST.replace("is_safe(0)", "not is_safe(8)"))
    process = start(project, "--write", "--only", "It is")
    said = process.communicate(timeout=240)[0]
    assert process.returncode == 0, said
    again = (project / "docs/mutants.md").read_text()
    assert "- 2 mutants: 2 killed; 2 by unit tests, 0 by node tests." in again
    assert ": 1 of them, the others before." in again


def test_a_break_that_cannot_be_imported_or_a_test_that_fails_unbroken_is_no_kill(project: Path) -> None:
    (project / "tests/mutants.yaml").write_text(SMALL.replace("new: n < 4", "new: n <"))
    process = start(project)
    said = process.communicate(timeout=240)[0]
    assert (process.returncode, "0 killed, 0 survived, 1 errors" in said) == (1, True), said
    (project / "tests/mutants.yaml").write_text(SMALL)
    (project / "fairsched/guard.py").write_text(GUARD.replace("n < 3", "n < 3 < 2"))
    process = start(project)
    said = process.communicate(timeout=240)[0]
    assert (process.returncode, "0 killed, 0 survived, 1 errors" in said) == (1, True), said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_whoever_is_interrupted_leaves_nothing(project: Path, number: signal.Signals) -> None:
    waiting = (
        'import os, signal, pathlib\npathlib.Path("PLACE").write_text(str(os.getpid()))\nsignal.pause()\n'
    )
    place = project / "tmp-pid"
    (project / "fairsched/guard.py").write_text(waiting.replace("PLACE", str(place)) + GUARD)
    process = start(project)
    try:
        wait_until(lambda: place.exists() and place.read_text(), 120, "the test runs")
    finally:
        assert end_child(process, number, 120) == 130
    assert process.stdout is not None
    process.stdout.close()
    assert not Path(f"/proc/{place.read_text()}").exists()
    assert list((project / "tmp").iterdir()) == []
