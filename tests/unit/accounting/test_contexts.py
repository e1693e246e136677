# SPDX-License-Identifier: Apache-2.0
"""Contexts are found by cgroup, of which a tenant may have thousands and work in one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairsched.accounting.context import Context
from fairsched.accounting.contexts import Contexts
from fairsched.bpf import abi
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of, used


class Crowd(frozenset[int]):
    """Cgroups that nobody may go through one by one."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("thousands were gone through")


@pytest.fixture
def contexts() -> Contexts:
    found = Contexts()
    for slot, cgroup_id in enumerate((5, 5, 6)):
        found.add(Context((slot, 1), 40 + slot, cgroup_id, 0))
    return found


def slots(contexts: list[Context]) -> list[int]:
    return sorted(context.key[0] for context in contexts)


def test_of_a_crowd_of_cgroups_only_those_that_work_are_looked_at(contexts: Contexts) -> None:
    assert slots(contexts.of(Crowd({5, *range(1000, 3000)}))) == [0, 1]


@pytest.mark.parametrize("asked", [(5,), [5, 5], {5}, {5, 7, 8}, iter([5]), frozenset({5}), {5: ""}.keys()])
def test_however_it_is_asked_each_comes_once(contexts: Contexts, asked: list[int]) -> None:
    assert slots(contexts.of(asked)) == [0, 1]
    assert slots(contexts.of([])) == []


TENANTS = {1: "hog", 2: "chat", 21: "chat"}
"""By cgroup: 1 and 2 are the tenants' own."""


def live(cgroup_id: int, charged_id: int, generation: int = 1) -> abi.Ctx:
    return abi.Ctx(cgroup_id=cgroup_id, charged_id=charged_id, generation=generation)


@pytest.mark.parametrize(
    ("cgroup_id", "charged_id", "generation", "place"),
    [
        pytest.param(21, 2, 1, 21, id="known"),
        pytest.param(77, 1, 1, 1, id="gone again"),
        pytest.param(77, 77, 1, 77, id="in no tenant"),
        pytest.param(77, 1, 2, 77, id="its slot is somebody else's by now"),
    ],
)
def test_work_in_a_cgroup_that_nobody_knows_is_where_the_kernel_charges_it(
    cgroup_id: int, charged_id: int, generation: int, place: int
) -> None:
    found = Contexts().place_of((0, 1), cgroup_id, live(cgroup_id, charged_id, generation), TENANTS.get)
    assert place == found


def test_who_is_in_no_known_cgroup_is_its_tenants_until_its_own_is_known() -> None:
    """Slot 0 is in a cgroup that has been removed since the last look, slot 1 in one that comes to be known."""
    known, lives = dict(TENANTS), {0: live(77, 1), 1: live(78, 2)}
    contexts = Contexts()
    for slot, one in lives.items():
        contexts.add(Context((slot, 1), 40 + slot, int(one.cgroup_id), 0))
    assert contexts.place(known.get, lives.__getitem__) == {77, 78}
    assert [slots(contexts.of([place])) for place in (1, 2)] == [[0], [1]]
    known[78] = "chat/inner"
    assert contexts.place(known.get, lives.__getitem__) == {77}
    assert [slots(contexts.of([place])) for place in (1, 2, 78)] == [[0], [], [1]]
    for context in contexts.all():
        contexts.drop(context)
    assert contexts.place(known.get, lives.__getitem__) == set(), "nothing is kept of them"


def test_while_nothing_has_changed_nobody_is_asked_whose_a_cgroup_is() -> None:
    known, asked = dict(TENANTS), list[int]()

    def tenant_of(cgroup_id: int) -> str | None:
        asked.append(cgroup_id)
        return known.get(cgroup_id)

    lives = {0: live(21, 2), 1: live(77, 77)}
    contexts = Contexts()
    for slot, one in lives.items():
        contexts.add(Context((slot, 1), 40 + slot, int(one.cgroup_id), 0))
    assert contexts.place(tenant_of, lives.__getitem__) == {77}, "new, or in no tenant"
    asked.clear()
    assert contexts.place(tenant_of, lives.__getitem__) == set()
    assert asked == []


def test_who_is_in_a_cgroup_that_is_not_known_any_more_is_its_tenants() -> None:
    known, lives = dict(TENANTS), {0: live(21, 2)}
    contexts = Contexts()
    contexts.add(Context((0, 1), 40, 21, 0))
    assert contexts.place(known.get, lives.__getitem__) == set()
    del known[21]
    contexts.is_stale = True
    assert contexts.place(known.get, lives.__getitem__) == {21}
    assert (slots(contexts.of([2])), slots(contexts.of([21]))) == ([0], [])


def test_who_is_in_a_new_cgroup_each_time_is_charged_with_its_tenant() -> None:
    """Each cgroup is gone before anybody looks. The kernel knew whose it was."""
    probe = FakeProbe()
    account = account_of(probe)
    account.tenant_of = {1: "hog"}.get
    probe.create(0, tgid=10, cgroup_id=100)
    live = probe.contexts_by_slot[0]
    live.charged_id = 1
    charged = 0
    for turn in range(10):
        live.cgroup_id = 100 + turn
        probe.launch(0, turn * 10 * MS)
        probe.sync(0, (turn * 10 + 5) * MS)
        rows = account.read((turn + 1) * 10 * MS)
        assert {row.cgroup_id for row in rows if row.used_ns or row.has_demand} == {1}
        assert 100 + turn in account.events.unknown, "the tree is to be looked at"
        charged += used(rows)[1]
    assert charged == 50 * MS
    account.hold([1], 100 * MS)
    assert [one.is_held for one in account._contexts.all()] == [True], "and held with it"
