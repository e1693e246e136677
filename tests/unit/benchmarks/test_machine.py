# SPDX-License-Identifier: Apache-2.0
"""A result names the code it was made with, and says when that code is in no commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.machine import RESULTS, commit


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    done = subprocess.run(
        ["git", "-C", str(root), *who, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_changed_code_is_told_and_results_that_a_run_writes_are_not(tmp_path: Path) -> None:
    code, result = tmp_path / "code.py", tmp_path / RESULTS / "one.json"
    result.parent.mkdir(parents=True)
    code.write_text("1")
    result.write_text("1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert commit(tmp_path) == head
    result.write_text("2")
    result.with_name("two.json").write_text("1")
    assert commit(tmp_path) == head
    code.write_text("2")
    assert commit(tmp_path) == f"{head}-dirty"


def test_outside_of_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
