# SPDX-License-Identifier: Apache-2.0
"""What the daemon can say to an operator, read from its code: lines of the log and warnings, with holes for values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.repo.tree import ROOT, project_files

HOLE = "…"
LEVELS = {"info", "warning", "error", "exception", "critical"}
ROOMS = ("fairsched", "bpf", "cgroup")
NOT_THE_DAEMON = ("cli", "demo", "simgpu")
"""Rooms of commands, whose errors name their remedy."""
_PLACEHOLDER = re.compile(r"%[#0\- +]*[\d.]*[a-zA-Z]")

WARNED = {
    "fairsched/daemon/report.py": (
        "_warnings",
        "_contradictions",
        "_unseen_warnings",
        "_crowd_warnings",
        "_unsampled",
        "_gate_warnings",
    ),
    "fairsched/guardian/keeper.py": ("warning",),
    "fairsched/config/settings.py": ("overrides_warning", "pods_warning"),
    "fairsched/driver/gate.py": ("choose_rules", "resolve"),
    "fairsched/companion/keeper.py": ("_is_alive",),
    "fairsched/companion/history/part.py": ("_write",),
    "fairsched/companion/pods/part.py": ("take", "_run"),
    "fairsched/companion/dra/part.py": ("_faults",),
    "fairsched/companion/escalate/part.py": ("_finding",),
    "fairsched/companion/guard/watch.py": ("faults",),
}
"""The functions that make the warnings of ``fairsched status``."""


def daemon_files() -> list[Path]:
    return [
        path
        for path in project_files()
        if path.suffix == ".py" and path.parts[0] in ROOMS and path.parts[1] not in NOT_THE_DAEMON
    ]


def tree_of(path: Path | str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def shape(node: ast.expr) -> str | None:
    """A text with ``…`` for what is put into it; None for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [shape(part) if isinstance(part, ast.Constant) else HOLE for part in node.values]
        return "".join(part or "" for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):  # what is added may be left out
        return shape(node.left)
    return None


def log_lines() -> Iterator[tuple[str, str | None]]:
    """(file:line, shape) of each line but those for debugging; a shape of None cannot be read from the code."""
    for path in daemon_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                yield from ((f"{path}:{node.lineno}", text) for text in _said_by(node, path))


def _said_by(call: ast.Call, path: Path) -> Iterator[str | None]:
    function = call.func
    if (
        isinstance(function, ast.Name)
        and function.id == "log"
        and path.parts[:2] == ("fairsched", "guardian")
    ):
        yield shape(call.args[0])
    if not isinstance(function, ast.Attribute):
        return
    if function.attr in LEVELS and ast.unparse(function.value) in ("logger", "self._logger", "log"):
        text = shape(call.args[0])
        if text != "%s":  # a decision, or another event that has fields
            yield None if text is None else _PLACEHOLDER.sub(HOLE, text)
    if function.attr == "tell" and ast.unparse(function.value).endswith("book"):
        yield " ".join(f"{word.arg}={shape(word.value) or HOLE}" for word in call.keywords if word.arg)


def warnings() -> Iterator[tuple[str, str]]:
    """(file:line, shape) of each warning of the status."""
    for file, names in WARNED.items():
        found = [
            node
            for node in ast.walk(tree_of(file))
            if isinstance(node, ast.FunctionDef) and node.name in names
        ]
        assert {node.name for node in found} == set(names), (
            f"{file}: a function of tests/unit/repo/said.py is gone"
        )
        for function in found:
            yield from ((f"{file}:{line}", text) for line, text in _texts(function))


def _texts(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Whole texts: no docstring, no part of another text, nothing that is logged, no single word."""
    inside: set[int] = set()
    for node in ast.walk(function):
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")
        if isinstance(node, ast.JoinedStr) or is_log or _is_docstring(node):
            inside |= {id(part) for part in ast.walk(node) if part is not node}
    for node in ast.walk(function):
        text = (
            shape(node) if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inside else None
        )
        if text is not None and " " in text and not text.startswith((";", ",")):
            yield node.lineno, text  # type: ignore[attr-defined]


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
