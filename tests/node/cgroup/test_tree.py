# SPDX-License-Identifier: Apache-2.0
"""Walks of real cgroups: how many children and descendants one has is the kernel's to say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount

MANY = 40


@pytest.fixture
def crowd(mount: Mount) -> Iterator[str]:
    """A cgroup with many children."""
    path = f"/fairsched-test-tree.{os.getpid()}"
    top = Path(mount.absolute(path))
    top.mkdir()
    try:
        for number in range(MANY):
            (top / str(number)).mkdir()
        yield path
    finally:
        for directory, _, _ in os.walk(top, topdown=False):
            os.rmdir(directory)


def test_many_children_are_walked_over_without_a_question_to_each(
    mount: Mount, crowd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: asked.append(path) or stat(path, **options))
    found = {node.path for node in tree.walk(mount, crowd)}
    assert found == {f"{crowd}/{number}" for number in range(MANY)}
    assert [str(path) for path in asked] == [mount.absolute(crowd)]


def test_one_below_one_of_many_is_found_while_it_is_there(mount: Mount, crowd: str) -> None:
    hidden = Path(mount.absolute(crowd)) / "17" / "hidden"
    for _ in range(3):
        hidden.mkdir()
        assert f"{crowd}/17/hidden" in {node.path for node in tree.walk(mount, crowd)}
        hidden.rmdir()
        assert len(list(tree.walk(mount, crowd))) == MANY
