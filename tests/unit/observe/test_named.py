# SPDX-License-Identifier: Apache-2.0
"""Tenants by the names of containers, in the tree: when a name comes, the tenant does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.cgroup import tree as cgroup_tree
from fairsched.cgroup.names import Names
from fairsched.config import CgroupOwners, from_bytes
from fairsched.errors import ConfigError
from fairsched.observe.tree import Tree, refuse_own_cgroup
from tests.support import FakeTree

S = 1_000_000_000
CONFIG = "tenants: {chat: {cgroup: /gpu/chat}, train: {cgroup: /gpu/train}}"


@pytest.fixture
def files(tmp_path: Path) -> FakeTree:
    fake = FakeTree(tmp_path / "cgroup")
    fake.make("/gpu/train").close()
    return fake


def id_of(files: FakeTree, path: str) -> int:
    return (files.root / path.strip("/")).stat().st_ino


class Named:
    """A tree with a container of docker, whose name is written down or not, and a clock for its names."""

    def __init__(self, files: FakeTree, root: Path) -> None:
        self.files, self.root, self.now_s = files, root, 0.0
        self.path = f"/docker/{'3f' * 32}"
        files.make(f"{self.path}/worker").close()
        self.names = Names(str(root), lambda: self.now_s)

    def write(self, name: str) -> None:
        where = self.root / f"var/lib/docker/containers/{'3f' * 32}/config.v2.json"
        where.parent.mkdir(parents=True)
        where.write_text(f'{{"Name": "/{name}"}}')

    def tree(self) -> Tree:
        config = from_bytes(b"tenants: {chat: {match: {docker: chat}}, train: {cgroup: /gpu/train}}", "f")
        made = Tree(self.files.mount, CgroupOwners(config, self.names))
        made.refresh(0, ())
        return made


def test_a_container_with_a_name_is_the_tenant_that_names_it(files: FakeTree, tmp_path: Path) -> None:
    named = Named(files, tmp_path)
    named.write("chat")
    tree = named.tree()
    assert [ref.path for ref in tree.tenants["chat"].refs.values()] == [named.path]
    assert tree.tenant_of(id_of(files, f"{named.path}/worker")) == "chat"


def test_a_name_that_comes_later_is_taken_in_before_the_next_second(files: FakeTree, tmp_path: Path) -> None:
    named = Named(files, tmp_path)
    tree = named.tree()
    assert set(tree.tenants) == {"train"}
    named.write("chat")
    assert not tree.refresh(S // 10, ())
    named.now_s += 10
    named.names.poll()
    assert tree.refresh(S // 5, ())
    assert set(tree.tenants) == {"chat", "train"}
    changes = tree.changes
    assert not tree.refresh(2 * S, ())
    assert tree.changes == changes, "once"


def test_a_name_that_says_nothing_new_disturbs_nobody(files: FakeTree, tmp_path: Path) -> None:
    tree = Tree(files.mount, CgroupOwners(from_bytes(CONFIG.encode(), "f"), Names(str(tmp_path))))
    tree.refresh(0, ())
    tree._owners.names.version += 1
    assert not tree.refresh(S // 5, ())


def test_names_are_read_beside_the_loop_until_the_tree_is_closed(files: FakeTree, tmp_path: Path) -> None:
    owners = CgroupOwners(from_bytes(CONFIG.encode(), "f"), Names(str(tmp_path)))
    tree = Tree(files.mount, owners, is_beside=True)
    assert owners.names.is_beside
    tree.close()
    assert not owners.names.is_beside


def test_the_daemon_does_not_run_in_what_it_would_freeze(
    files: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_tree, "cgroup_path_of", lambda _pid, _mount: "/system.slice/fairsched.service")
    config = from_bytes(b"tenants: {all: {match: {unit: '*.service'}}}", "f")
    with pytest.raises(ConfigError) as caught:
        refuse_own_cgroup(CgroupOwners(config, Names(str(tmp_path))), files.mount, "f")
    assert caught.value.key == "tenants.all.match"
