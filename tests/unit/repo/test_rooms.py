# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md says which room may import which; the code does exactly that, and nothing in a circle.

A room is a package below fairsched (bpf and cgroup through their links), a loose module there, or benchmarks. Naming a
module in a string that is nothing else (``-m``, importlib) counts as an import.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.unit.repo.tree import ROOT, text_of, with_suffix

TOPS = ("fairsched", "bpf", "cgroup", "benchmarks")
MOST_LOOSE_MODULES = 8
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def module_of(path: Path) -> str:
    parts = [*path.with_suffix("").parts]
    if parts[0] in ("bpf", "cgroup"):
        parts.insert(0, "fairsched")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in with_suffix(".py") if path.parts[0] in TOPS}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[0] if parts[0] != "fairsched" or len(parts) == 1 else parts[1]


def named_in(tree: ast.AST) -> set[str]:
    """What a module names: ``a.b`` or ``a.b.c``, where c may be a name in a.b."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def started_in(tree: ast.AST) -> set[str]:
    """Modules that it names in a string which is nothing else."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text in modules() and "." in text}


def ours(names: set[str]) -> set[str]:
    """The modules of ours among these names, or that hold them."""
    found = set()
    for name in names:
        while name and name not in modules():
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {""}


@cache
def trees() -> dict[str, ast.AST]:
    return {module: ast.parse(text_of(path) or "") for module, path in modules().items()}


def between_rooms() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees().items():
        room = room_of(module)
        found[room] |= {room_of(target) for target in ours(named_in(tree) | started_in(tree))} - {room}
    return found


def table() -> dict[str, set[str] | None]:
    """Room -> rooms it may import; None: everything."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    inside = text.partition("<!-- rooms -->")[2].partition("<!-- rooms: end -->")[0]
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in inside.splitlines() if line
    ]
    rooms = {row[0].strip("`"): row[-1] for row in rows if row[0].startswith("`")}
    return {room: None if may == "everything" else set(may.split()) for room, may in rooms.items()}


def test_the_table_has_every_room() -> None:
    assert set(table()) == {room_of(module) for module in modules()}


@pytest.mark.parametrize("room", table())
def test_a_room_imports_what_the_table_says(room: str) -> None:
    may, does = table()[room], between_rooms()[room]
    if may is not None:
        assert does - may == set(), "imported, and not in docs/architecture.md"
        assert may - does == set(), "in docs/architecture.md, and not imported: take it out"


def test_the_table_goes_downward() -> None:
    order = list(table())
    wrong = [
        (room, may)
        for room, below in table().items()
        for may in below or ()
        if order.index(may) < order.index(room)
    ]
    assert wrong == []


def test_no_module_imports_one_that_imports_it() -> None:
    graph = {module: ours(named_in(tree)) - {module} for module, tree in trees().items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_few_modules_are_loose() -> None:
    loose = [path for path in modules().values() if path.parts[0] == "fairsched" and len(path.parts) == 2]
    assert len(loose) <= MOST_LOOSE_MODULES


def test_c_includes_what_lies_beside_it() -> None:
    """And no header includes one that includes it."""
    graph = {}
    for path in with_suffix(".c", ".h"):
        if path.parts[0] not in TOPS:
            continue
        found = {path.parent / name for name in INCLUDE.findall(text_of(path) or "")}
        assert [str(one) for one in found if not (ROOT / one).is_file()] == [], (
            f"{path} includes another room's"
        )
        graph[path] = found
    graphlib.TopologicalSorter(graph).prepare()
