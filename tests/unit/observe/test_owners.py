# SPDX-License-Identifier: Apache-2.0
"""Whose which cgroups are, as BPF is told, and who wanted more than its part."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from fairsched.bpf import abi
from fairsched.bpf.rooms import OwnRooms
from fairsched.cgroup.names import Names
from fairsched.config import CgroupOwners, from_bytes
from fairsched.observe.owners import MOST_NUMBERS, Owners
from fairsched.observe.tree import TenantView, Tree
from tests.support import FakeTree

S = 1_000_000_000


class Probe:
    """The budgets of one set of programs. Keeps what it is told."""

    def __init__(self, *tables: abi.Table) -> None:
        self.tables = tables
        self.owner_of: dict[int, int] = {}
        self.owners = self.numbers = 0
        self.budgets = [abi.Budget() for _ in range(2 * MOST_NUMBERS)]
        self.refusals = 0
        self.is_full = False

    def budget(self, owner: int) -> abi.Budget:
        return self.budgets[owner]

    def share(self, owners: int, numbers: int = 0) -> None:
        self.owners, self.numbers = owners, numbers

    def set_owner(self, cgroup_id: int, owner: int) -> None:
        if self.is_full:
            raise OSError(errno.E2BIG, "full")
        self.owner_of[cgroup_id] = owner

    def forget_owner(self, cgroup_id: int) -> None:
        del self.owner_of[cgroup_id]

    def refuse(self, owner: int, table: abi.Table, now_ns: int) -> None:
        self.refusals += 1
        self.budgets[owner].refused_ns[table] = now_ns


@pytest.fixture
def probe() -> Probe:
    return Probe(abi.Table.CONTEXTS, abi.Table.PROCESSES, abi.Table.EDGES)


@pytest.fixture
def driver() -> Probe:
    return Probe(abi.Table.CLIENTS, abi.Table.OBJECTS)


@pytest.fixture
def owners(probe: Probe, driver: Probe) -> Owners:
    made = Owners()
    made.follow([probe, driver])
    return made


def view(name: str, *refs: int, below: tuple[int, ...] = (), is_leaf: bool = True) -> TenantView:
    return TenantView(name, is_leaf, {ref: cast(Any, None) for ref in refs}, {*refs, *below})


def tenants(*views: TenantView) -> dict[str, TenantView]:
    return {one.name: one for one in views}


def test_children_without_end_leave_the_other_tenants_their_parts(owners: Owners, probe: Probe) -> None:
    children = [view(f"team/{n}", 100 + n) for n in range(3 * MOST_NUMBERS)]
    owners.refresh(tenants(view("a", 10), *children, view("b", 20)))
    assert probe.owners == 1 + 2 + MOST_NUMBERS
    of = probe.owner_of
    assert len({of[cgroup_id] for cgroup_id in of if cgroup_id >= 100}) == MOST_NUMBERS
    assert len({of[10], of[20], *(of[100 + n] for n in range(MOST_NUMBERS))}) == 2 + MOST_NUMBERS
    assert len(of) == 2 + len(children), "those beyond share one"
    owners.refresh(tenants(view("a", 10), view("b", 20)))
    assert probe.owners == 3


def test_each_of_250_pods_of_a_namespace_keeps_its_part_whatever_two_of_them_take(
    owners: Owners, tmp_path: Path
) -> None:
    """As many as kubelets are let have, in a tree as it is found: each is a child, and has a context."""
    files, names = FakeTree(tmp_path / "cgroup"), Names(str(tmp_path), lambda: 0.0)
    for number in range(250):
        uid = f"0a1b2c3d-1111-2222-3333-{number:012x}"
        (tmp_path / f"var/log/pods/ml_w-{number}_{uid}").mkdir(parents=True)
        files.make(f"/kubepods/burstable/pod{uid}").close()
    config = from_bytes(b'tenants: {ml: {match: {pod: "ml/*"}, children_are: pods, children: {}}}', "f")
    found = Tree(files.mount, CgroupOwners(config, names))
    while len(found.tenants) < 250:
        found.refresh(0, ())
    room = OwnRooms(abi.Table.CONTEXTS, abi.MAX_CTXS)
    owners.follow([room])
    owners.refresh(found.tenants)
    pods = [owners.number(f"ml/w-{number}") for number in range(250)]
    assert len(set(pods)) == 250 and abi.STRANGERS not in pods
    for greedy in pods[-2:]:
        while room.take(greedy) is not abi.Room.NONE:
            pass
    assert [pod for pod in pods[:-2] if room.take(pod) is abi.Room.NONE] == []
    found.close()


def test_a_tenants_own_cgroups_are_named_and_those_below_need_not_be(owners: Owners, probe: Probe) -> None:
    owners.refresh(tenants(view("a", 10, 11, below=(12, 13)), view("b", 20)))
    assert probe.owner_of.keys() == {10, 11, 20}
    assert probe.owner_of[10] == probe.owner_of[11] != probe.owner_of[20]
    assert abi.STRANGERS not in probe.owner_of.values()
    assert probe.owners == 3, "who is in no tenant has a part, too"


def test_a_parent_that_is_no_leaf_is_named_by_its_own_cgroup(owners: Owners, probe: Probe) -> None:
    parent = TenantView("a", False, {}, {10})
    owners.refresh(tenants(parent, view("a/x", 11)))
    assert probe.owner_of.keys() == {10, 11}


def test_what_is_gone_is_forgotten_and_its_number_kept_while_anything_is_charged_to_it(
    owners: Owners, probe: Probe
) -> None:
    owners.refresh(tenants(view("a", 10)))
    probe.budgets[1].used[abi.Table.CONTEXTS] = 2
    owners.refresh(tenants(view("b", 20)))
    assert probe.owner_of == {20: 2}
    probe.budgets[1].used[abi.Table.CONTEXTS] = 0
    owners.refresh(tenants(view("b", 20), view("c", 30)))
    assert probe.owner_of == {20: 2, 30: 1}


def test_a_map_without_room_is_said_and_the_others_go_on(
    owners: Owners, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    probe.is_full = True
    owners.refresh(tenants(view("a", 10)))
    assert "budgets=incomplete tenants=1 error='full'" in caplog.text


def test_who_was_refused_is_over_its_budget_for_some_seconds_and_nobody_else_is(
    owners: Owners, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    owners.refresh(tenants(view("a", 10), view("b", 20)))
    owners.look(100 * S)
    assert owners.over == {}
    probe.refuse(probe.owner_of[20], abi.Table.CONTEXTS, 100 * S)
    owners.look(101 * S)
    assert owners.over == {"b": (abi.Table.CONTEXTS,)}
    assert "budget=exceeded tenant=b tables=contexts" in caplog.text
    owners.look(104 * S)
    assert owners.over.keys() == {"b"}, "though nothing was refused since: it may be held"
    owners.look(106 * S)
    assert owners.over == {}, "it ages"


def test_work_that_has_no_room_is_hidden_for_as_long_and_a_flood_while_it_lasts(
    owners: Owners, probe: Probe
) -> None:
    owners.refresh(tenants(view("a", 10), view("b", 20)))
    probe.refuse(probe.owner_of[10], abi.Table.CONTEXTS, 100 * S)
    probe.refuse(probe.owner_of[20], abi.Table.EDGES, 100 * S)
    owners.look(100 * S)
    assert owners.hidden == {"a", "b"}
    owners.look(101 * S)
    assert owners.hidden == {"a"}, "what came after the flood was told"
    assert owners.over.keys() == {"a", "b"}, "it stays named for some seconds"
    probe.refuse(probe.owner_of[20], abi.Table.EDGES, 102 * S)
    owners.look(102 * S)
    assert owners.hidden == {"a", "b"}
    owners.look(120 * S)
    assert owners.hidden == owners.over.keys() == set()


def test_the_silence_of_one_that_is_held_says_nothing(owners: Owners, probe: Probe) -> None:
    owners.refresh(tenants(view("a", 10), view("b", 20)))
    for number in (probe.owner_of[10], probe.owner_of[20]):
        probe.refuse(number, abi.Table.EDGES, 100 * S)
    owners.look(100 * S)
    assert owners.hidden_beside({"a"}) == {"a", "b"}
    owners.look(101 * S)
    assert owners.hidden_beside({"a"}) == {"a"}, "the other could have gone on, and did not"
    assert owners.hidden_beside({"b"}) == set()
    assert owners.hidden_beside({"a"}) == set(), "once it was let go it is heard again"


def test_strangers_are_nobodys_concern(owners: Owners, probe: Probe) -> None:
    owners.refresh(tenants(view("a", 10)))
    probe.refuse(abi.STRANGERS, abi.Table.EDGES, 100 * S)
    owners.look(100 * S)
    assert owners.over == {}


def test_whoever_keeps_a_budget_has_the_same_numbers(owners: Owners, probe: Probe, driver: Probe) -> None:
    owners.refresh(tenants(view("a", 10), view("b", 20)))
    assert driver.owner_of == probe.owner_of != {}
    assert driver.owners == probe.owners == 3


def test_programs_that_come_later_are_told_and_the_others_not_again(
    owners: Owners, probe: Probe, driver: Probe
) -> None:
    owners.refresh(tenants(view("a", 10), view("b", 20)))
    probe.owner_of[10] = 99  # would be another number if it were told again
    anew = Probe(abi.Table.CLIENTS)
    owners.follow([probe, anew])
    assert anew.owner_of.keys() == {10, 20} and anew.owners == 3
    assert probe.owner_of[10] == 99
    owners.refresh(tenants(view("b", 20)))
    assert anew.owner_of.keys() == probe.owner_of.keys() == {20}
    assert driver.owner_of.keys() == {10, 20}, "it is gone, and is told nothing"


def test_a_number_is_kept_while_anything_is_charged_to_it_anywhere(owners: Owners, driver: Probe) -> None:
    owners.refresh(tenants(view("a", 10)))
    driver.budgets[1].used[abi.Table.OBJECTS] = 1
    owners.refresh(tenants(view("b", 20)))
    assert owners.number("b") == 2
    assert owners.number("nobody") == owners.number(None) == abi.STRANGERS


def test_who_has_no_room_in_the_drivers_books_is_named_and_hides_no_work(
    owners: Owners, driver: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    owners.refresh(tenants(view("a", 10), view("b", 20)))
    driver.refuse(driver.owner_of[20], abi.Table.OBJECTS, 100 * S)
    owners.look(100 * S)
    assert owners.over == {"b": (abi.Table.OBJECTS,)}
    assert "budget=exceeded tenant=b tables=objects" in caplog.text
    assert owners.hidden == owners.over_work == set()


def test_who_has_no_room_for_work_and_for_objects_may_have_hidden_work(
    owners: Owners, probe: Probe, driver: Probe
) -> None:
    owners.refresh(tenants(view("a", 10)))
    driver.refuse(1, abi.Table.OBJECTS, 100 * S)
    probe.refuse(1, abi.Table.CONTEXTS, 100 * S)
    owners.look(100 * S)
    assert owners.over == {"a": (abi.Table.CONTEXTS, abi.Table.OBJECTS)}
    assert owners.hidden == owners.over_work == {"a"}
