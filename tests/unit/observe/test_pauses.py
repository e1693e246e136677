# SPDX-License-Identifier: Apache-2.0
"""Pauses of somebody else are told to the account when they begin and when they end; ours are not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairsched.config import CgroupOwners
from fairsched.config.loader import from_bytes
from fairsched.observe.pauses import Pauses
from fairsched.observe.tree import Tree
from tests.support import FakeTree

CONFIG = b"tenants: {chat: {cgroup: /gpu/chat}, train: {cgroup: /gpu/train}}"


@dataclass
class Told:
    """The account, and whom we hold."""

    said: list[tuple[str, set[int]]] = field(default_factory=list)
    ours: set[int] = field(default_factory=set)

    def hold(self, cgroup_ids: Iterable[int], _now_ns: int, *, by_others: bool) -> None:
        assert by_others
        self.said.append(("hold", set(cgroup_ids)))

    def thaw(self, cgroup_ids: Iterable[int], _now_ns: int) -> None:
        self.said.append(("thaw", set(cgroup_ids)))

    def take(self) -> list[tuple[str, set[int]]]:
        said, self.said = self.said, []
        return said


class Node:
    def __init__(self, files: FakeTree) -> None:
        self.files = files
        for path in ("/gpu/chat/worker", "/gpu/train"):
            files.make(path).close()
        self.tree = Tree(files.mount, CgroupOwners(from_bytes(CONFIG, "f")))
        self.tree.refresh(0, ())
        self.told = Told()
        self.pauses = Pauses(files.mount, self.tree, self.told, lambda cgroup_id: cgroup_id in self.told.ours)
        self.users = {self.id("/gpu/chat/worker"), self.id("/gpu/train")}

    def id(self, path: str) -> int:
        return os.stat(self.files.mount.absolute(path)).st_ino

    def poll(self) -> list[tuple[str, set[int]]]:
        self.pauses.poll(1, self.users)
        return self.told.take()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(FakeTree(tmp_path / "cgroup"))
    yield node
    node.pauses.close()
    node.tree.close()


def test_a_pause_is_told_once_and_so_is_its_end(node: Node) -> None:
    train = node.id("/gpu/train")
    assert node.poll() == []
    node.files.make("/gpu/train", frozen=True).close()
    assert node.poll() == [("hold", {train})]
    assert node.poll() == []
    assert node.tree.tenants["train"].is_paused, "at once, not at the next look at all of them"
    node.files.make("/gpu/train").close()
    assert node.poll() == [("thaw", {train})]
    assert not node.tree.tenants["train"].is_paused
    assert node.poll() == []


def test_a_pause_above_is_one_of_all_below(node: Node) -> None:
    worker, train = node.id("/gpu/chat/worker"), node.id("/gpu/train")
    node.poll()
    node.files.make("/gpu", frozen=True).close()
    for path in ("/gpu/chat", "/gpu/chat/worker", "/gpu/train"):
        node.files.make(path, parent_frozen=True).close()
    assert node.poll() == [("hold", {worker, train})]


def test_what_we_hold_is_no_pause_and_what_we_have_just_let_go_neither(node: Node) -> None:
    train = node.id("/gpu/train")
    node.poll()
    node.told.ours = {train}
    node.files.make("/gpu/train", frozen=True).close()
    assert node.poll() == []
    node.told.ours = set()
    node.files.make("/gpu/train", parent_frozen=True).close()
    assert node.poll() == [], "its processes have not run yet, and nobody asks for it"
    node.files.write_freeze("/gpu/train", "1")
    assert node.poll() == [("hold", {train})], "now somebody does"


def test_a_child_of_what_we_hold_is_not_paused_by_others(node: Node) -> None:
    node.poll()
    node.told.ours = {node.id("/gpu/chat")}
    node.files.make("/gpu/chat", frozen=True).close()
    node.files.make("/gpu/chat/worker", parent_frozen=True).close()
    assert node.poll() == []


def test_a_pause_that_ends_while_we_hold_is_ours_to_end(node: Node) -> None:
    train = node.id("/gpu/train")
    node.files.make("/gpu/train", frozen=True).close()
    assert node.poll() == [("hold", {train})]
    node.told.ours = {train}
    node.files.make("/gpu/train").close()
    assert node.poll() == []
    assert node.pauses.paused == set()


def test_another_account_is_told_anew(node: Node) -> None:
    train = node.id("/gpu/train")
    node.files.make("/gpu/train", frozen=True).close()
    assert node.poll() == [("hold", {train})]
    node.pauses.forget()
    assert node.poll() == [("hold", {train})]


def test_whose_work_has_ended_is_not_watched_any_more(node: Node) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    node.files.make("/gpu/train", frozen=True).close()
    node.poll()
    assert descriptors() == before + 2
    node.users = set()
    assert node.poll() == []
    assert (descriptors(), node.pauses.paused) == (before, set())


def test_a_cgroup_that_nobody_has_found_yet_is_watched_when_somebody_has(node: Node) -> None:
    node.files.make("/gpu/train/new", frozen=True).close()
    new = node.id("/gpu/train/new")
    node.users = {new, 12345}
    assert node.poll() == []
    node.tree.refresh(10**9, ())
    assert node.poll() == [("hold", {new})]
