# SPDX-License-Identifier: Apache-2.0
"""Node tests act on the real kernel: they need root. Finer needs (cgroup2, tracefs) are fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairsched.cgroup.path import Mount, find_mount
from fairsched.errors import HostUnsupported

HERE = Path(__file__).resolve().parent
NEEDS_ROOT = "needs root: sudo make test-node (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    mark = pytest.mark.skip(reason=NEEDS_ROOT)
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(mark)


@pytest.fixture(scope="session")
def mount() -> Mount:
    try:
        return find_mount()
    except HostUnsupported as error:
        pytest.skip(f"{error}; {error.remedy} (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)")
