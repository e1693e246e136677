# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the cgroup unit tests: a tree of plain files and a journal beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Entry, Journal, read_boot_id
from fairsched.cgroup.path import CgroupRef
from tests.support import FakeTree

SECOND_NS = 1_000_000_000


@pytest.fixture
def fake(tmp_path: Path) -> FakeTree:
    return FakeTree(tmp_path / "cgroup2")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(str(tmp_path / "holds"))
    yield journal
    journal.close()


@pytest.fixture
def freezer(journal: Journal) -> Iterator[Freezer]:
    with Freezer(journal) as freezer:
        yield freezer


@pytest.fixture
def entry_of() -> Callable[..., Entry]:
    """An entry as a daemon of this boot would write it for a cgroup; fields can be replaced by name."""

    def make(ref: CgroupRef, **fields: object) -> Entry:
        now_ns = time.monotonic_ns()
        values: dict[str, object] = {
            "cgroup_id": ref.id,
            "path": ref.path,
            "tenant": "chat",
            "reason": "over_entitlement",
            "since_ns": now_ns,
            "deadline_ns": now_ns + SECOND_NS,
            "daemon": ProcessId.me(),
            "boot_id": read_boot_id(),
        }
        return Entry(**{**values, **fields})  # type: ignore[arg-type]

    return make
