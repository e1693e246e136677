# SPDX-License-Identifier: Apache-2.0
"""Who is in a cgroup that no look has found, is in the one around it; and nobody can make it dear to ask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairsched.cgroup import tree as cgroup_tree
from fairsched.config import CgroupOwners, from_bytes
from fairsched.observe.tree import Tree
from tests.support import FakeTree

PID = 42
CONFIG = b"tenants: {hog: {cgroup: /gpu/hog}, team: {cgroup: /team, children: {a: {}}}}"


class Site:
    """A tree that was looked at, and one process."""

    def __init__(self, files: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = files
        self.path: str | None = None
        for path in ("/gpu/hog/known", "/team/a", "/gpu/nobody"):
            files.make(path).close()
        self.tree = Tree(files.mount, CgroupOwners(from_bytes(CONFIG, "f")))
        self.tree.refresh(0, ())
        self.asked: list[str] = []
        monkeypatch.setattr(cgroup_tree, "cgroup_path_of", lambda _pid, _mount: self.path)
        id_at = cgroup_tree.id_at

        def counted(mount: object, path: str) -> int | None:
            self.asked.append(path)
            return id_at(files.mount, path)

        monkeypatch.setattr(cgroup_tree, "id_at", counted)

    def id_of(self, path: str) -> int:
        return os.stat(self.files.root / path.lstrip("/")).st_ino

    def told(self, path: str | None) -> tuple[int | None, str | None]:
        """Of a process there."""
        self.path = path
        return self.tree.cgroup_of(PID), self.tree.tenant_of_process(PID)


class Counted(dict[str, int]):
    """Homes; counts how often it is asked for one."""

    asked = 0

    def get(self, *args: Any) -> Any:
        self.asked += 1
        return super().get(*args)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(FakeTree(tmp_path / "cgroup"), monkeypatch)


@pytest.mark.parametrize(
    ("path", "where", "tenant"),
    [
        pytest.param("/gpu/hog", "/gpu/hog", "hog", id="its tenant's own"),
        pytest.param("/gpu/hog/known", "/gpu/hog/known", "hog", id="a known one"),
        pytest.param("/team/a", "/team/a", "team/a", id="of a child"),
        pytest.param("/team", "/team", "team", id="of a parent, in no child"),
        pytest.param("/gpu/nobody", "/gpu/nobody", None, id="in no tenant"),
    ],
)
def test_who_is_in_a_known_cgroup_is_there(site: Site, path: str, where: str, tenant: str | None) -> None:
    assert site.told(path) == (site.id_of(where), tenant)


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize(
    ("path", "home", "tenant"),
    [
        ("/gpu/hog/again1", "/gpu/hog", "hog"),
        ("/gpu/hog/known/again1/inner", "/gpu/hog", "hog"),
        ("/team/a/again1", "/team/a", "team/a"),
    ],
)
def test_who_is_in_a_cgroup_that_nobody_knows_is_in_its_tenants(
    site: Site, path: str, home: str, tenant: str, is_removed: bool
) -> None:
    """As one that goes to a new cgroup again and again, and removes the one before."""
    if not is_removed:
        site.files.make(path).close()
    assert site.told(path) == (site.id_of(home), tenant)


def test_a_new_cgroup_of_nobody_is_itself_and_one_that_is_gone_is_none(site: Site) -> None:
    site.files.make("/gpu/hogs/new").close()
    assert site.told("/gpu/hogs/new") == (site.id_of("/gpu/hogs/new"), None), "hogs is not hog"
    assert site.told("/gpu/gone") == (None, None)
    assert site.told(None) == (None, None), "the process is gone"


def test_however_deep_a_tenant_nests_nothing_more_is_asked(site: Site) -> None:
    deep = "/gpu/hog" + "/x" * 1000
    site.tree._homes = homes = Counted(site.tree._homes)
    assert site.told(deep) == (site.id_of("/gpu/hog"), "hog")
    assert site.asked == [deep, deep], "for the cgroup, and for the tenant"
    assert homes.asked == 2 * len(["/gpu", "/gpu/hog"])


def test_whoever_asks_while_tenants_are_built_anew_is_told_of_all_or_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread asks whose the processes are that NVML names."""
    told = []
    opened = site.tree._open

    def asked(path: str) -> object:
        told.append([site.told(f"{home}/again1")[1] for home in ("/gpu/hog", "/team/a")])
        return opened(path)

    site.files.make("/team/a/more").close()
    for ref in site.tree.tenants["hog"].refs.values():
        ref.close()
    site.tree.tenants["hog"].refs.clear()  # so that it is opened again
    monkeypatch.setattr(site.tree, "_open", asked)
    site.tree.refresh(2 * 10**9, ())
    assert told == [["hog", "team/a"]]


def test_the_version_tells_when_answers_may_be_others(site: Site) -> None:
    before = site.tree.version
    site.tree.refresh(2 * 10**9, ())
    assert site.tree.version == before, "nothing has changed"
    site.files.make("/gpu/hog/more").close()
    site.tree.refresh(4 * 10**9, ())
    assert site.tree.version > before
    assert site.tree.tenant_of(site.id_of("/gpu/hog/more")) == "hog"


def test_a_tenant_is_lived_in_while_one_of_its_cgroups_has_a_process(tmp_path: Path) -> None:
    config = b"tenants: {chat: {cgroup: [/gpu/chat, /gpu/also]}, train: {cgroup: /gpu/train}}"
    files = FakeTree(tmp_path / "cgroup")
    for path, processes in {"/gpu/chat": 0, "/gpu/also": 1, "/gpu/train": 0, "/other": 1}.items():
        files.make(path).close()
        (files.root / path.strip("/") / "cgroup.events").write_text(f"populated {processes}\nfrozen 1\n")
    tree = Tree(files.mount, CgroupOwners(from_bytes(config, "f")))
    tree.refresh(0, ())
    assert [name for name in ("chat", "train", "nobody") if tree.is_lived_in(name)] == ["chat"]
    (files.root / "gpu/also/cgroup.events").unlink()
    assert not tree.is_lived_in("chat"), "it is gone"
