# SPDX-License-Identifier: Apache-2.0
"""Whether a result that lies here may stand for a run that is asked for.

Problem. Documents of earlier runs may lie there that another machine, kernel or program made: a measurement that is
continued after a change would mix two programs, and show one machine's figures as another's.

Approach. A document says what made it: machine, kernel, and one hash over the files whose change can change a figure
(``code_hash``): the daemon, the simulated GPU, the stage, the rivals and the measures, and not what only draws or
writes. A run that is continued takes over what was made by the same; ``--resume-any`` takes over all.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, machine

_PROGRAMS = ("fairsched", "cgroup", "bpf", "benchmarks/fair", "benchmarks/rivals")
_ALONE = ("rig.py", "fairness.py", "stats.py", "tricks.py", "trick_*.py")
"""Of benchmarks itself."""
_ENDINGS = {".py", ".c", ".h"}
_SHOWS = {
    "bars.py",
    "front_page.py",
    "honest.py",
    "marked.py",
    "overview_plot.py",
    "plots.py",
    "progress.py",
    "quoted.py",
    "reference_page.py",
    "results.py",
    "rows.py",
    "rung_page.py",
    "summary.py",
    "table.py",
}
"""Of benchmarks/fair: judges, draws or writes what has been measured."""


def of_this_run() -> dict[str, Any]:
    """The keys of a document that say what made it."""
    return {
        "machine": machine(),
        "kernel": os.uname().release,
        "code_hash": code_hash(),
    }


def is_same(document: Mapping[str, Any], made_by: Mapping[str, Any]) -> bool:
    """Whether it was made by ``made_by``; documents of before there were hashes never were."""
    return all(document.get(key) == value for key, value in made_by.items())


@functools.cache
def code_hash(root: Path = ROOT) -> str:
    """Of names and contents. Raises OSError."""
    found = hashlib.sha256()
    for path in sorted(set(_files(root))):
        found.update(f"{path.relative_to(root)}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _files(root: Path) -> Iterator[Path]:
    for name in _ALONE:
        yield from (root / "benchmarks").glob(name)
    for program in _PROGRAMS:
        for path in (root / program).rglob("*"):
            is_shown = program == "benchmarks/fair" and path.name in _SHOWS
            if path.suffix in _ENDINGS and path.is_file() and not is_shown:
                yield path
