# SPDX-License-Identifier: Apache-2.0
"""Rows and cgroups become a Snapshot of tenants."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.accounting.context import ProcessUse
from fairsched.cgroup import tree as cgroup_tree
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.tree import Node
from fairsched.config import CgroupOwners, from_bytes
from fairsched.errors import KernelRefused
from fairsched.gpu.nvml import Gpu
from fairsched.model import Confidence, Hold, Use
from fairsched.observe import processes
from fairsched.observe import tree as observe_tree
from fairsched.observe.snapshot import Observation, build_snapshot
from fairsched.observe.tree import Tree, specs_in_force
from tests.support import FakeTree

S = 1_000_000_000
GPUS = (Gpu("GPU-a"), Gpu("GPU-b"))
CONFIG = "tenants: {chat: {cgroup: /gpu/chat}, train: {cgroup: /gpu/train}}"


@pytest.fixture
def files(tmp_path: Path) -> FakeTree:
    fake = FakeTree(tmp_path / "cgroup")
    for path in ("/gpu/chat/worker", "/gpu/train", "/other"):
        fake.make(path).close()
    return fake


@pytest.fixture
def tree(files: FakeTree) -> Tree:
    made = Tree(files.mount, CgroupOwners(from_bytes(CONFIG.encode(), "f")))
    assert made.refresh(0, ())
    return made


def id_of(files: FakeTree, path: str) -> int:
    return (files.root / path.strip("/")).stat().st_ino


def row(
    cgroup_id: int,
    used_ns: int = 5,
    gpu: int = 0,
    *,
    demand: bool = True,
    confidence: Confidence = Confidence.HIGH,
    tgid: int = 1,
) -> ProcessUse:
    return ProcessUse(cgroup_id, tgid, gpu, used_ns, demand, 7, confidence, 2)


# ---- the tree ----


def test_everything_below_a_tenants_cgroup_is_its_use_and_the_top_is_what_is_held(
    tree: Tree, files: FakeTree
) -> None:
    view = tree.tenants["chat"]
    assert view.cgroup_ids == {id_of(files, "/gpu/chat"), id_of(files, "/gpu/chat/worker")}
    assert set(view.refs) == {id_of(files, "/gpu/chat")}
    assert tree.tenant_of(id_of(files, "/gpu/chat/worker")) == "chat"
    assert tree.tenant_of(id_of(files, "/other")) is None


def test_the_tree_is_walked_once_a_second(tree: Tree, files: FakeTree) -> None:
    files.make("/gpu/chat/new").close()
    assert not tree.refresh(S - 1, ())
    assert tree.refresh(S, ())
    assert not tree.refresh(2 * S, ()), "nothing has changed"


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each walk."""
    begun: list[str] = []
    walk = cgroup_tree.walk

    def counted(mount: Mount, under: str = "/", **options: Any) -> Iterator[Node]:
        begun.append(under)
        return walk(mount, under, **options)

    monkeypatch.setattr(cgroup_tree, "walk", counted)
    return begun


def test_an_unknown_user_has_it_walked_sooner_but_not_at_every_tick(tree: Tree, files: FakeTree) -> None:
    assert not tree.refresh(10_000_000, (), [12345])
    files.make("/gpu/chat/new").close()
    new = id_of(files, "/gpu/chat/new")
    assert tree.refresh(50_000_000, (), [new])
    assert tree.tenant_of(new) == "chat"


def test_a_stranger_is_no_reason_to_walk_for_ever(tree: Tree, files: FakeTree, walks: list[str]) -> None:
    stranger = id_of(files, "/other")
    for tick in range(1, 201):
        tree.refresh(tick * S // 20, (), [stranger])
    assert 10 <= len(walks) <= 12


def test_a_large_tree_is_looked_at_a_portion_at_a_time(
    files: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe_tree, "_PORTION", 8)
    tree = Tree(
        files.mount, CgroupOwners(from_bytes(b"tenants: {t: {cgroup: /many, children: {'*': {}}}}", "f"))
    )
    for number in range(20):
        files.make(f"/many/{number}").close()
    assert tree.refresh(0, ())
    assert len(tree.tenants) == 21, "the first time all at once: nobody could be held before"
    assert not any(tree.refresh(step, ()) for step in range(20)), "that look ends without news"
    files.make("/many/new", frozen=True).close()
    new = id_of(files, "/many/new")
    steps = [tree.refresh(10 * S + step, (), [new]) for step in range(40)]
    assert 2 <= steps.index(True) < 5, "25 cgroups, 8 at a time"
    assert sum(steps) == 1
    assert tree.tenants["t/new"].foreign == {new}, "its 21 tenants, 2 at a time"


@pytest.fixture
def crowd(files: FakeTree, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """More cgroups of ``chat`` than are taken in; the paths of the tree by id, as the kernel would tell them."""
    monkeypatch.setattr(observe_tree, "MOST_CGROUPS", 10)
    monkeypatch.setattr(
        cgroup_tree, "path_of_id", lambda _mount, number: known.get(number) if number in _ids(files) else None
    )
    for number in range(30):
        files.make(f"/gpu/chat/worker/{number}").close()
    known = {id_of(files, f"/gpu/chat/worker/{number}"): f"/gpu/chat/worker/{number}" for number in range(30)}
    known[id_of(files, "/other")] = "/other"
    return known


def _ids(files: FakeTree) -> set[int]:
    return {path.stat().st_ino for path in files.root.rglob("*")}


def test_of_a_tenant_so_many_cgroups_are_taken_in_and_it_is_named(
    tree: Tree, files: FakeTree, crowd: dict[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    tree.refresh(S, ())
    assert len(tree.tenants["chat"].cgroup_ids) == 10
    assert tree.tenants["train"].cgroup_ids == {id_of(files, "/gpu/train")}
    assert tree.crowded == {"chat"}
    assert [line for line in caplog.messages if "cgroups=" in line] == [
        "cgroups=many tenant=chat at_least=10"
    ]
    shutil.rmtree(files.root / "gpu/chat/worker")
    tree.refresh(2 * S, ())
    assert tree.crowded == frozenset()


def test_a_cgroup_that_no_walk_has_taken_in_is_its_tenants_once_it_uses_a_gpu(
    tree: Tree, files: FakeTree, crowd: dict[int, str]
) -> None:
    tree.refresh(S, ())
    user = next(
        number for number, path in crowd.items() if tree.tenant_of(number) is None and path != "/other"
    )
    assert not tree.has_cgroup(user)
    version = tree.version
    tree.refresh(S + 1, (), [user])
    assert tree.tenant_of(user) == "chat"
    assert tree.version != version, "whose a cgroup is has another answer"
    assert user in tree.tenants["chat"].cgroup_ids, "who holds the tenant tells the account of it"
    assert tree.has_cgroup(user)
    files.make("/gpu/train/new").close()
    tree.refresh(2 * S, (), [user])
    assert tree.tenant_of(user) == "chat", "also after the tenants were built anew"
    shutil.rmtree(files.root / crowd[user].strip("/"))
    version = tree.version
    tree.refresh(3 * S, ())
    tree.refresh(4 * S, ())
    assert not tree.has_cgroup(user)
    assert tree.version != version
    assert tree.tenant_of(user) is None


def test_what_could_not_be_opened_is_tried_again(
    tree: Tree, files: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.set_owners(CgroupOwners(from_bytes(b"tenants: {rest: {cgroup: /other}}", "f")))
    with monkeypatch.context() as patch:
        patch.setattr(CgroupRef, "open", classmethod(refuse))
        tree.refresh(1, ())
        assert tree.tenants["rest"].refs == {}
    tree.refresh(2 * S, ())
    assert set(tree.tenants["rest"].refs) == {id_of(files, "/other")}


def refuse(_cls: type[CgroupRef], _mount: Mount, path: str) -> CgroupRef:
    raise KernelRefused(path, 24, "cannot open the cgroup")


def test_pauses_are_remembered_when_the_tenants_are_built_anew(
    tree: Tree, files: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, train = id_of(files, "/gpu/chat"), id_of(files, "/gpu/train")
    files.make("/gpu/chat", frozen=True).close()
    tree.refresh(S, ())
    tree.tenants["train"].foreign.add(train)
    files.make("/gpu/train/new").close()
    monkeypatch.setattr(observe_tree, "_PORTION", 1)
    step = next(step for step in range(20) if tree.refresh(2 * S + step, ()))
    assert (tree.tenants["chat"].foreign, tree.tenants["train"].foreign) == ({chat}, {train})
    for more in range(10):
        tree.refresh(2 * S + step + more, ())
    assert (tree.tenants["chat"].foreign, tree.tenants["train"].foreign) == ({chat}, set()), (
        "that one is over"
    )


def test_a_cgroup_made_again_under_its_name_is_another(tree: Tree, files: FakeTree) -> None:
    before = id_of(files, "/gpu/train")
    kept = tree.tenants["chat"].refs[id_of(files, "/gpu/chat")]
    shutil.rmtree(files.root / "gpu" / "train")
    (files.root / "another").mkdir()  # takes the freed inode number
    files.make("/gpu/train").close()
    assert tree.refresh(S, ())
    assert set(tree.tenants["train"].refs) == {id_of(files, "/gpu/train")}
    if id_of(files, "/gpu/train") != before:
        assert tree.tenant_of(before) is None
    assert tree.tenants["chat"].refs[kept.id] is kept


def test_a_tenant_whose_cgroup_is_gone_is_gone(tree: Tree, files: FakeTree) -> None:
    shutil.rmtree(files.root / "gpu" / "train")
    tree.refresh(S, ())
    assert set(tree.tenants) == {"chat"}


def test_a_pause_that_is_not_ours_is_seen_and_ours_is_not_taken_for_one(tree: Tree, files: FakeTree) -> None:
    for path in ("/gpu/chat", "/gpu/train"):
        files.make(path, frozen=True).close()
    tree.refresh(S, {id_of(files, "/gpu/train")})
    assert tree.tenants["chat"].foreign == {id_of(files, "/gpu/chat")}
    assert tree.tenants["train"].foreign == set()


def test_a_pause_that_is_over_is_forgotten_at_the_next_walk(tree: Tree, files: FakeTree) -> None:
    files.make("/gpu/chat", frozen=True).close()
    tree.refresh(S, ())
    files.make("/gpu/chat").close()
    tree.refresh(2 * S, ())
    assert tree.tenants["chat"].foreign == set()


def test_without_a_freezer_what_a_hold_has_found_stopped_is_tried_again(tree: Tree, files: FakeTree) -> None:
    files.freeze_file("/gpu/chat").unlink()
    tree.tenants["chat"].foreign.add(id_of(files, "/gpu/chat"))
    tree.refresh(S, ())
    assert tree.tenants["chat"].foreign == set()


def test_a_new_configuration_is_matched_at_once(tree: Tree, files: FakeTree) -> None:
    tree.set_owners(CgroupOwners(from_bytes(b"tenants: {rest: {cgroup: /other}}", "f")))
    assert tree.refresh(1, ())
    assert set(tree.tenants) == {"rest"}


def test_the_processes_of_all_tenants_are_listed(tree: Tree, files: FakeTree) -> None:
    files.make("/gpu/chat", pids=[1, 2]).close()
    files.make("/gpu/chat/worker", pids=[3]).close()
    files.make("/other", pids=[9]).close()
    assert tree.pids(begin=False) is None
    assert sorted(tree.pids(begin=True) or []) == [1, 2, 3]
    assert tree.pids(begin=False) is None


def test_the_processes_of_many_tenants_are_listed_a_portion_at_a_time(
    tree: Tree, files: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PORTION", 2)
    files.make("/gpu/chat", pids=[1, 2]).close()
    files.make("/gpu/train", pids=[3]).close()
    assert tree.pids(begin=True) is None
    assert tree.pids(begin=True) == {1: "chat", 2: "chat", 3: "train"}, "begun once, though asked for twice"


def test_who_has_many_cgroups_is_listed_in_turns_and_keeps_nobody_waiting(
    tree: Tree, files: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PORTION", 10)
    monkeypatch.setattr(processes, "_TURN", 8)
    for number in range(30):
        files.make(f"/gpu/chat/{number}", pids=[1000 + number]).close()
    files.make("/gpu/train", pids=[3]).close()
    tree.refresh(S, ())
    rounds = [tree.pids(begin=True) for _ in range(4)]
    assert all(found is not None and found[3] == "train" for found in rounds)
    assert len(rounds[0] or ()) < 10
    assert rounds[3] == {3: "train", **{1000 + number: "chat" for number in range(30)}}
    files.make("/gpu/chat/new", pids=[7]).close()
    shutil.rmtree(files.root / "gpu/chat/0")
    tree.refresh(2 * S, ())
    found = tree.pids(begin=True)
    assert found is not None
    assert found[7] == "chat", "a new one comes first"
    assert 1000 not in found


# ---- what was promised to them ----


def test_a_parent_that_the_file_names_no_more_has_its_spec_until_the_next_look(files: FakeTree) -> None:
    """As between a reload and the next tick."""
    old = from_bytes(b"tenants: {gpu: {cgroup: /gpu, weight: 3, children: {chat: {}}}}", "f")
    new = from_bytes(b"tenants: {rest: {cgroup: /other, weight: 5}}", "f")
    tree = Tree(files.mount, CgroupOwners(old))
    tree.refresh(0, ())
    assert not tree.tenants["gpu"].is_leaf
    tree.set_owners(CgroupOwners(new))
    specs = specs_in_force(new.tenant_specs(), tree.tenants)
    assert (specs["rest"].weight, specs["gpu"].weight) == (5, 3)
    assert specs["gpu"].is_exempt
    tree.refresh(1, ())
    assert set(specs_in_force(new.tenant_specs(), tree.tenants)) == {"rest"}


def test_children_of_a_child_given_by_pattern_have_what_the_file_says(files: FakeTree) -> None:
    files.make("/gpu/chat/d").close()
    config = from_bytes(
        b"tenants: {t: {cgroup: /gpu, children: {'c*': {weight: 3, children: {d: {weight: 7}}}}}}", "f"
    )
    tree = Tree(files.mount, CgroupOwners(config))
    tree.refresh(0, ())
    specs = specs_in_force(config.tenant_specs(), tree.tenants)
    assert (specs["t/chat"].weight, specs["t/chat"].is_exempt) == (3, True)
    assert (specs["t/chat/d"].weight, specs["t/chat/d"].is_exempt) == (7, False)
    assert specs["t/chat/worker"].weight == 1, "a child the file does not speak of"
    assert specs["t"].is_exempt


# ---- the snapshot ----


def snapshot_of(
    tree: Tree, *rows: ProcessUse, idle: tuple[int, ...] = ()
) -> tuple[dict[str, Use], dict[str, int]]:
    snapshot, strangers = build_snapshot(Observation(10, 5, rows, idle_slots=idle), tree, GPUS)
    assert (snapshot.now_ns, snapshot.interval_ns) == (10, 5)
    return {f"{use.tenant} {use.gpu}": use for use in snapshot.uses}, strangers


def test_the_processes_of_a_tenant_are_added_up_per_gpu(tree: Tree, files: FakeTree) -> None:
    chat, worker = id_of(files, "/gpu/chat"), id_of(files, "/gpu/chat/worker")
    uses, strangers = snapshot_of(
        tree, row(chat, 5, demand=False), row(worker, 6), row(worker, 7, gpu=1, demand=False)
    )
    assert strangers == {}
    assert uses["chat GPU-a"] == Use("chat", "GPU-a", 11, True, 14, Confidence.HIGH, launches=4)
    assert uses["chat GPU-b"] == Use("chat", "GPU-b", 7, False, 7, Confidence.HIGH, launches=2)


def test_one_unsure_process_makes_the_tenant_unsure(tree: Tree, files: FakeTree) -> None:
    chat = id_of(files, "/gpu/chat")
    for rows in (
        [row(chat), row(chat, confidence=Confidence.LOW)],
        [row(chat, confidence=Confidence.LOW), row(chat)],
    ):
        uses, _ = snapshot_of(tree, *rows)
        assert uses["chat GPU-a"].confidence is Confidence.LOW


def test_a_process_that_is_bounded_leaves_its_tenant_held_for_all_it_may_have_had(
    tree: Tree, files: FakeTree
) -> None:
    """Or one odd helper would free its siblings. Of a guess it is charged nothing."""
    chat = id_of(files, "/gpu/chat")
    bound, low = row(chat, 6, confidence=Confidence.BOUND), row(chat, 7, confidence=Confidence.LOW)
    sure = row(chat, 5)
    for rows, most_ns in (
        ([sure, bound], 11),
        ([bound, sure], 11),
        ([bound, low], 6),
        ([low, sure], 5),
        ([low, low], None),
    ):
        use = snapshot_of(tree, *rows)[0]["chat GPU-a"]
        assert (use.confidence, use.most_ns) == (Confidence.LOW, most_ns)
        assert use.is_enforced == (most_ns is not None)


def test_the_time_of_nobodys_processes_is_kept_apart(tree: Tree, files: FakeTree) -> None:
    other = id_of(files, "/other")
    uses, strangers = snapshot_of(tree, row(other, 5), row(other, 6, gpu=1), row(other, 7))
    assert uses == {}
    assert strangers == {"GPU-a": 12, "GPU-b": 6}


def test_idle_gpus_and_holds_go_by_their_names(tree: Tree) -> None:
    holds = {"chat": Hold("chat", 1, 2, is_ours=True)}
    snapshot, _ = build_snapshot(Observation(10, 5, [], holds, {"chat": 9}, (0, 2)), tree, GPUS)
    assert snapshot.idle_gpus == {"GPU-a", "GPU-unknown-2"}
    assert (snapshot.holds, snapshot.freeze_latency_ns) == (holds, {"chat": 9})


def test_a_doubted_account_is_of_low_confidence_on_that_gpu_only(tree: Tree, files: FakeTree) -> None:
    chat, train = id_of(files, "/gpu/chat"), id_of(files, "/gpu/train")
    rows = [row(chat), row(chat, gpu=1), row(train)]
    doubted = {("chat", "GPU-a"), ("gone", "GPU-a")}
    snapshot, _ = build_snapshot(Observation(S, S, rows, doubted=doubted), tree, GPUS)
    assert {(use.tenant, use.gpu): use.confidence for use in snapshot.uses} == {
        ("chat", "GPU-a"): Confidence.LOW,
        ("chat", "GPU-b"): Confidence.HIGH,
        ("train", "GPU-a"): Confidence.HIGH,
    }


def test_work_that_never_ends_excuses_no_sibling_from_being_held(tree: Tree, files: FakeTree) -> None:
    train = id_of(files, "/gpu/train")
    rows = [row(train, 50, tgid=7), row(train, 20, tgid=8), row(train, 10, demand=False, tgid=9)]
    for mine, used_ns in ((rows, 80), ([rows[0], rows[2]], 60)):  # no hold stops it, and nobody else has work
        seen = Observation(S, S, mine, doubted={("train", "GPU-a")}, stuck={(7, "GPU-a"), (8, "GPU-b")})
        (use,) = build_snapshot(seen, tree, GPUS)[0].uses
        assert (use.confidence, use.charged_ns, use.is_enforced) == (Confidence.LOW, used_ns, mine is rows)


def test_who_is_kept_for_a_group_of_mps_is_never_held(tree: Tree, files: FakeTree) -> None:
    rows = [row(id_of(files, "/gpu/train"), 20, tgid=pid) for pid in (7, 8)]
    seen = Observation(S, S, rows, kept={("train", "GPU-a")}, stuck={(7, "GPU-a")})
    (use,) = build_snapshot(seen, tree, GPUS)[0].uses
    assert (use.confidence, use.is_enforced) == (Confidence.LOW, False)
