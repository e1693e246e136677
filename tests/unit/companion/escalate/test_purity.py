# SPDX-License-Identifier: Apache-2.0
"""The policy of the escalation is a function of its arguments, and acts nowhere: read from its imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fairsched.companion.escalate

HERE = Path(fairsched.companion.escalate.__file__).parent
PURE = {
    "__future__",
    "collections.abc",
    "dataclasses",
    "enum",
    "typing",
    "fairsched.companion.escalate.model",
}
OWN = {"fairsched.companion.escalate.dry_run"}
DATA = {
    "fairsched.cgroup.containers",
    "fairsched.k8s.objects",
    "fairsched.model",
    "fairsched.protocol.status",
    "fnmatch",
}


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("model.py", PURE),
        ("dry_run.py", PURE),
        ("policy.py", PURE | OWN),
        ("reading.py", PURE | DATA),
        ("pods.py", PURE | DATA),
    ],
)
def test_what_decides_imports_only_data(name: str, allowed: set[str]) -> None:
    found = set()
    for node in ast.walk(ast.parse((HERE / name).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "exec", "eval", "__import__", "id", "hash"}
    assert found <= allowed


def test_the_daemon_does_not_load_the_escalation() -> None:
    """It looks outward: only the companion and the command line may."""
    root = HERE.parents[1]
    wrong = []
    for path in root.rglob("*.py"):
        if path.is_relative_to(HERE) or path.relative_to(root).parts[0] in ("companion", "cli"):
            continue
        if "fairsched.companion.escalate" in path.read_text(encoding="utf-8"):
            wrong.append(str(path))
    assert wrong == []
