# SPDX-License-Identifier: Apache-2.0
"""The laws of the source tree that a program can check. Each failure names the file and the line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.repo.tree import ROOT, project_files, text_of, with_suffix

MAX_PYTHON_LINES = 450
GPL = {".c", ".h"}
# The word is built so that this file does not contain it.
LEFT_BEHIND = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
HOME_PATH = re.compile(r"(?<![\w.$}/-])/(?:home|root|Users)/[\w.-]+")
# Directories that are the same everywhere; a checkout in one of them says nothing about a machine.
COMMON_PLACES = {
    "/",
    "/tmp",
    "/var/tmp",
    "/opt",
    "/srv",
    "/usr/src",
    "/usr/local/src",
    "/root",
    "/home",
    "/mnt",
}
# The home of wait_until, which has to pause between two looks.
WAITS = Path("tests/support.py")
KNOW_SIMGPU = {("fairsched", "demo"), ("fairsched", "simgpu")}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of each import."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def lines_of_text_files() -> Iterator[tuple[Path, int, str]]:
    for path in project_files():
        if path.parts[0] == "LICENSES" or path.name == "LICENSE":
            continue
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            yield path, number, line


def licence_of(path: Path) -> str:
    """BPF programs, the test driver, and headers they use are what the kernel sees: GPL. All else is Apache."""
    is_kernel = (
        path.parts[0] == "bpf" or path.is_relative_to("tests/vm/module") or path.name.endswith(".bpf.c")
    )
    return "GPL-2.0-only" if is_kernel and path.suffix in GPL else "Apache-2.0"


def test_every_source_names_its_licence() -> None:
    wrong = []
    for path in with_suffix(".py", ".c", ".h"):
        head = "\n".join((text_of(path) or "").splitlines()[:3])
        if (
            head.strip()
            and f"SPDX-License-Identifier: {licence_of(path)}\n" not in head.replace(" */", "") + "\n"
        ):
            wrong.append(f"{path}: wants SPDX-License-Identifier: {licence_of(path)}")
    assert wrong == []


def test_eyes_and_hands_are_imported_under_one_name() -> None:
    wrong = [
        f"{path}:{line}: import fairsched.{module}"
        for path in with_suffix(".py")
        for line, module in imports_of(path)
        if module.split(".")[0] in ("bpf", "cgroup")
    ]
    assert wrong == []


def test_bcc_is_imported_in_one_place() -> None:
    where = {
        str(path)
        for path in with_suffix(".py")
        for _, module in imports_of(path)
        if module.split(".")[0] == "bcc"
    }
    assert where <= {"bpf/compiler.py"}


def test_the_simulated_gpu_is_known_to_its_demo_alone() -> None:
    """What schedules must not be able to tell it from a real one."""
    wrong = [
        f"{path}:{line}: {module}"
        for path in with_suffix(".py")
        if path.parts[0] in ("fairsched", "bpf", "cgroup") and path.parts[:2] not in KNOW_SIMGPU
        for line, module in imports_of(path)
        if f"{module}.".startswith("fairsched.simgpu.")
    ]
    assert wrong == []


def test_nothing_is_left_for_later() -> None:
    wrong = [f"{path}:{number}" for path, number, line in lines_of_text_files() if LEFT_BEHIND.search(line)]
    assert wrong == []


def test_no_file_names_a_place_on_one_machine() -> None:
    here = {str(ROOT), str(ROOT.parent)} - COMMON_PLACES
    wrong = [
        f"{path}:{number}: {line.strip()[:80]}"
        for path, number, line in lines_of_text_files()
        if HOME_PATH.search(line) or any(place + "/" in line + "/" for place in here)
    ]
    assert wrong == []


def is_sleep(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    call = node.func
    return (isinstance(call, ast.Attribute) and call.attr == "sleep") or (
        isinstance(call, ast.Name) and call.id == "sleep"
    )


def test_no_test_sleeps() -> None:
    """A sleep is too long on one machine and too short on another: wait_until waits for the claim itself."""
    wrong = [
        f"{path}:{getattr(node, 'lineno', 0)}: use the wait_until fixture"
        for path in with_suffix(".py")
        if path.parts[0] == "tests" and path != WAITS
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if is_sleep(node)
    ]
    assert wrong == []


def test_python_files_stay_short() -> None:
    wrong = [
        f"{path}: {count} lines"
        for path in with_suffix(".py")
        if (count := len((text_of(path) or "").splitlines())) > MAX_PYTHON_LINES
    ]
    assert wrong == []


def test_text_files_end_in_a_newline() -> None:
    suffixes = {".py", ".c", ".h", ".md", ".yaml", ".toml", ".service", ".conf", ".slice"}
    wrong = [
        str(path)
        for path in project_files()
        if path.suffix in suffixes and (text := text_of(path)) and not text.endswith("\n")
    ]
    assert wrong == []
