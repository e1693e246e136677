# SPDX-License-Identifier: Apache-2.0
"""The simulated libraries, built once for all that is played here."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def build_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of our own: probes belong to an inode, so no other daemon's are on these libraries."""
    return tmp_path_factory.mktemp("simgpu")
