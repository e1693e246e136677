# SPDX-License-Identifier: Apache-2.0
"""Plays with small programs of their own, on one node with the real daemon; only the GPU is simulated.

Each is judged by the engine's truth and by what becomes of the others.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.node.daemon.conftest import make_site as make_site
from tests.node.daemon.conftest import site as site

HERE = Path(__file__).resolve().parent


def compiled(name: str, directory: Path) -> Path:
    """The program made of ``name``.c in this directory."""
    program = directory / name
    command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), f"{HERE}/{name}.c", "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=240)
    return program


@pytest.fixture(scope="session")
def ghost_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See ghost.c."""
    return compiled("ghost", tmp_path_factory.mktemp("hostile"))
