# SPDX-License-Identifier: Apache-2.0
"""Law 1: policy is a function of its arguments. Reads its imports; nothing else could tell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fairsched.policy

HERE = Path(fairsched.policy.__file__).parent
PURE = {
    "__future__", "collections", "dataclasses", "enum", "functools", "itertools", "math", "typing", "fairsched.model"
}  # fmt: skip


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.name)
def test_policy_imports_only_the_model_and_pure_parts_of_the_library(path: Path) -> None:
    for name in imports(path):
        is_own = name == "fairsched.policy" or name.startswith("fairsched.policy.")
        assert is_own or name in PURE or name.split(".")[0] in PURE - {"fairsched"}, name


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.name)
def test_policy_opens_nothing_and_imports_nothing_behind_our_back(path: Path) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__", "id", "hash"}


def test_the_policy_was_found() -> None:
    assert {"shares.py", "lag.py", "decide.py"} <= {path.name for path in HERE.glob("*.py")}
