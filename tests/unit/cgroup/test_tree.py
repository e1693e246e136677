# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount
from fairsched.errors import KernelRefused
from tests.support import FakeTree


@pytest.fixture
def ids(fake: FakeTree) -> dict[str, int]:
    ids = {}
    for path in ("/gpu.slice/a", "/gpu.slice/b/c", "/system.slice/x", "/gpu.slice/b", "/gpu.slice"):
        with fake.make(path) as ref:
            ids[path] = ref.id
    return ids


def test_walk_names_every_cgroup_once_parents_first(fake: FakeTree, ids: dict[str, int]) -> None:
    paths = [node.path for node in tree.walk(fake.mount)]
    assert sorted(paths) == sorted([*ids, "/system.slice"])
    assert paths.index("/gpu.slice") < paths.index("/gpu.slice/b") < paths.index("/gpu.slice/b/c")
    assert {node.path: node.id for node in tree.walk(fake.mount, "/gpu.slice")} == {
        path: ids[path] for path in ("/gpu.slice/a", "/gpu.slice/b", "/gpu.slice/b/c")
    }


def test_walk_of_a_vanished_cgroup_is_empty(fake: FakeTree) -> None:
    assert list(tree.walk(fake.mount, "/never")) == []


def test_a_walk_leaves_the_rest_of_a_cgroup_when_that_is_enough(fake: FakeTree, ids: dict[str, int]) -> None:
    for number in range(20):
        fake.make(f"/gpu.slice/a/{number}").close()
    found: list[str] = []
    for node in tree.walk(fake.mount, most=lambda path: 7 if path == "/gpu.slice/a" else None):
        if node.path.startswith("/gpu.slice/a/"):
            found.append(node.path)
    assert len(found) == 7
    assert "/gpu.slice/b/c" in [
        node.path for node in tree.walk(fake.mount, most=lambda path: 0 if path.endswith("/a") else None)
    ]


MANY = 20


@pytest.fixture
def asked(fake: FakeTree, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``/gpu.slice/a`` with many children; the paths whose links a walk then asks for."""
    for number in range(MANY):
        fake.make(f"/gpu.slice/a/{number}").close()
    found: list[str] = []
    stat = os.stat

    def record(path: str, **options: bool) -> os.stat_result | SimpleNamespace:
        if not str(path).startswith(str(fake.root)):
            return stat(path, **options)
        found.append(path)
        # As kernfs counts them; not every file system does.
        return SimpleNamespace(st_nlink=2 + sum(entry.is_dir() for entry in os.scandir(path)))

    monkeypatch.setattr(os, "stat", record)
    return found


def say_descendants(fake: FakeTree, path: str, count: int) -> None:
    (fake.root / path / "cgroup.stat").write_text(f"nr_descendants {count}\nnr_dying_descendants 3\n")


def test_many_children_that_have_none_are_not_asked_one_by_one(fake: FakeTree, asked: list[str]) -> None:
    say_descendants(fake, "gpu.slice/a", MANY)
    assert len({node.id for node in tree.walk(fake.mount, "/gpu.slice/a")}) == MANY
    assert asked == [f"{fake.root}/gpu.slice/a"]


@pytest.mark.parametrize("said", [MANY + 1, 10 * MANY, 2, None])
def test_where_the_kernel_tells_of_more_than_the_children_each_is_looked_into(
    fake: FakeTree, asked: list[str], said: int | None
) -> None:
    fake.make("/gpu.slice/a/7/hidden").close()
    if said is not None:
        say_descendants(fake, "gpu.slice/a", said)
    paths = [node.path for node in tree.walk(fake.mount, "/gpu.slice/a")]
    assert len(paths) == MANY + 1
    assert "/gpu.slice/a/7/hidden" in paths


def test_no_id_of_what_is_no_cgroup_leads_anywhere(fake: FakeTree, ids: dict[str, int]) -> None:
    assert tree.path_of_id(fake.mount, ids["/gpu.slice/a"]) is None


def test_ids_are_found_wherever_they_are(fake: FakeTree, ids: dict[str, int]) -> None:
    wanted = {ids["/gpu.slice/b/c"], 1}
    assert tree.find_ids(fake.mount, wanted) == {ids["/gpu.slice/b/c"]: "/gpu.slice/b/c"}
    assert tree.find_ids(fake.mount, ()) == {}


def test_processes_are_listed_recursively(fake: FakeTree) -> None:
    fake.make("t", pids=(10, 11)).close()
    fake.make("t/child", pids=(12,)).close()
    assert tree.read_pids_recursive(fake.mount, "/t") == [10, 11, 12]
    assert tree.read_pids_recursive(fake.mount, "/never") == []


def proc_with(tmp_path: Path, text: str) -> str:
    (tmp_path / "proc/42").mkdir(parents=True)
    (tmp_path / "proc/42/cgroup").write_text(text)
    return str(tmp_path / "proc")


def test_hybrid_host_names_the_v2_cgroup_among_v1_lines(fake: FakeTree, tmp_path: Path) -> None:
    proc = proc_with(tmp_path, "9:name=systemd:/x\n4:memory:/y\n0::/gpu.slice/a\n")
    assert tree.cgroup_path_of(42, fake.mount, proc) == "/gpu.slice/a"
    assert tree.cgroup_path_of(43, fake.mount, proc) is None


def test_v1_only_process_has_no_v2_cgroup(fake: FakeTree, tmp_path: Path) -> None:
    assert tree.cgroup_path_of(42, fake.mount, proc_with(tmp_path, "4:memory:/y\n")) is None


def test_on_v1_whose_first_thread_has_ended_is_where_the_others_are(fake: FakeTree, tmp_path: Path) -> None:
    mount = Mount(fake.mount.path, v1="freezer")
    proc = proc_with(tmp_path, "6:freezer:/\n")  # as the kernel says of all that has ended
    (tmp_path / "proc/42/stat").write_text("42 (x) Z 1 1")
    assert tree.cgroup_path_of(42, mount, proc) is None
    for tid, state, group in ((42, "Z", "/"), (43, "X", "/"), (44, "S", "/a")):
        thread = tmp_path / f"proc/42/task/{tid}"
        thread.mkdir(parents=True)
        (thread / "stat").write_text(f"{tid} (x) {state} 1 1")
        (thread / "cgroup").write_text(f"6:freezer:{group}\n")
    assert tree.cgroup_path_of(42, mount, proc) == "/a"


def test_create_makes_ancestors_and_remove_spares_a_namesake(fake: FakeTree) -> None:
    ref = tree.create(fake.mount, "/gpu.slice/new")
    assert (fake.root / "gpu.slice/new").is_dir()
    os.rename(fake.root / "gpu.slice/new", fake.root / "elsewhere")
    with tree.create(fake.mount, "/gpu.slice/new") as other:
        tree.remove(fake.mount, ref)
        assert (fake.root / "gpu.slice/new").is_dir()
        tree.remove(fake.mount, other)
        assert not (fake.root / "gpu.slice/new").exists()
        tree.remove(fake.mount, other)
    ref.close()


def test_cgroup_with_content_is_not_removed(fake: FakeTree) -> None:
    with fake.make("full") as ref, pytest.raises(KernelRefused, match="cannot remove"):
        tree.remove(fake.mount, ref)


def test_place_writes_the_pid(fake: FakeTree) -> None:
    with fake.make("t") as ref:
        tree.place(ref, 4711)
        assert tree.read_pids(ref) == [4711]


@pytest.mark.parametrize(
    ("known", "found"),
    [
        pytest.param({7, 8, 9}, 7, id="its own"),
        pytest.param({8, 9}, 8, id="the innermost around it"),
        pytest.param({9}, 9, id="the outermost"),
        pytest.param(set(), 7, id="none is"),
    ],
)
def test_of_cgroups_inside_each_other_the_innermost_known_one_counts(known: set[int], found: int) -> None:
    assert tree.innermost_known(iter([7, 8, 9]), known.__contains__) == found
    assert tree.innermost_known(iter([]), known.__contains__) is None


def test_what_is_known_is_not_asked_for_further() -> None:
    asked = iter([7, 8])
    tree.innermost_known(asked, {7}.__contains__)
    assert list(asked) == [8]


def test_the_cgroup_of_a_process_has_an_id_while_it_is_there(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.make("/gpu.slice/a").close()
    place: list[str | None] = ["/gpu.slice/a"]
    monkeypatch.setattr(tree, "cgroup_path_of", lambda _pid, _mount: place[0])
    assert tree.cgroup_id_of(42, fake.mount) == os.stat(fake.root / "gpu.slice/a").st_ino
    place[0] = "/gpu.slice/gone"
    assert tree.cgroup_id_of(42, fake.mount) is None
    place[0] = None
    assert tree.cgroup_id_of(42, fake.mount) is None
