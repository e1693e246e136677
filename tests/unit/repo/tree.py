# SPDX-License-Identifier: Apache-2.0
"""The files of the project, as git sees them: what is tracked, and what is new and not ignored."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
IGNORED_DIRS = {".git", ".venv", "build", "dist", "__pycache__", "node_modules"}


@cache
def project_files() -> tuple[Path, ...]:
    """Relative paths, without what the symlinked packages show a second time."""
    listed = _from_git() if (ROOT / ".git").exists() else _from_walk()
    return tuple(sorted(path for path in listed if (ROOT / path).is_file()))


def _from_git() -> list[Path]:
    # In a container the checkout often belongs to another user than root, and git then refuses to answer.
    # Every git since that rule takes permission from the user's configuration; not every one from -c.
    with tempfile.NamedTemporaryFile("w", suffix=".gitconfig") as config:
        config.write("[safe]\n\tdirectory = *\n")
        config.flush()
        out = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            env={**os.environ, "GIT_CONFIG_GLOBAL": config.name},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return [Path(name) for name in out.split("\0") if name]


def _from_walk() -> list[Path]:
    found: list[Path] = []
    for directory, names, files in os.walk(ROOT):
        names[:] = [n for n in names if n not in IGNORED_DIRS and not n.endswith(("_cache", ".egg-info"))]
        found += [Path(directory, name).relative_to(ROOT) for name in files]
    return found


def with_suffix(*suffixes: str) -> tuple[Path, ...]:
    return tuple(path for path in project_files() if path.suffix in suffixes)


def text_of(path: Path) -> str | None:
    """The text of a file, or None when it is not text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
