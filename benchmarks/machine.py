# SPDX-License-Identifier: Apache-2.0
"""On what, and of what, a measurement was made."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "benchmarks/results"


def describe() -> dict[str, Any]:
    """Machine, kernel, commit and time; what cannot be found out is None."""
    return {
        "machine": machine(),
        "kernel": os.uname().release,
        "commit": commit(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": os.getloadavg()[0],
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def machine() -> str:
    """By its processor."""
    return cpu_model(Path("/proc/cpuinfo").read_text()) or platform.machine()


def cpu_model(cpuinfo: str) -> str | None:
    """The first processor's name."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def commit(root: Path = ROOT) -> str | None:
    """With ``-dirty`` when tracked files differ from it: results do not count, a run of an hour writes many of them."""
    name = _git(root, "rev-parse", "--short=12", "HEAD")
    if not name:
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RESULTS}")
    return f"{name}-dirty" if changed else name


def _git(root: Path, *arguments: str) -> str:
    """Nothing where there is no git, or no repository."""
    # Root measures in a checkout that belongs to somebody else, and git would refuse to answer.
    trust = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, env={**os.environ, **trust}, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
