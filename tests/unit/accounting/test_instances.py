# SPDX-License-Identifier: Apache-2.0
"""What is charged on MIG instances without samples: an instance's load, and to nobody as more than is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.accounting.context import ProcessUse
from fairsched.accounting.instances import InstanceUses
from fairsched.accounting.nvml import NvmlAccount
from fairsched.gpu.sampler import NoReader
from fairsched.model import Confidence

S = 1_000_000_000
A, B = 11, 12
"""Cgroups of the tenants a and b; processes 1 and 2 are a's, 3 is b's, 9 has ended."""
CGROUPS = {1: A, 2: A, 3: B}
TENANTS = {A: "a", B: "b"}


class Node:
    """``loads`` and who is listed, by slot."""

    def __init__(self, loads: Mapping[int, float], listed: Mapping[int, Collection[int]]) -> None:
        self.loads, self.listed = dict(loads), dict(listed)
        self.period_s: float | None = 1.0
        self.uses = InstanceUses(self, lambda: self.listed, CGROUPS.get)

    def load(self, slot: int) -> float | None:
        return self.loads.get(slot)

    def read(
        self, elapsed_ns: int = S, held: Collection[int] = (), paused: Collection[int] = ()
    ) -> list[ProcessUse]:
        return self.uses.read(elapsed_ns, TENANTS.get, set(held), set(paused))


def used(rows: Collection[ProcessUse]) -> dict[int, int]:
    return {row.tgid: row.used_ns for row in rows}


def test_a_tenant_that_has_an_instance_is_charged_its_load() -> None:
    node = Node({0: 0.5, 1: 0.25}, {0: [1, 2], 1: [3, 9]})
    rows = node.read()
    assert used(rows) == {1: S // 4, 2: S // 4, 3: S // 4}
    assert {(row.cgroup_id, row.gpu, row.confidence, row.has_demand) for row in rows} == {
        (A, 0, Confidence.SAMPLED, True),
        (B, 1, Confidence.SAMPLED, True),
    }
    assert node.uses.error_ratio("a", 0) == 0.1 and node.uses.error_ratio("a", 1) is None
    node.period_s = None
    assert node.uses.error_ratio("a", 0) is None, "a page's period is not known"


def test_tenants_that_share_an_instance_are_not_told_apart_and_that_is_said() -> None:
    node = Node({0: 0.9}, {0: [1, 2, 3]})
    rows = node.read()
    assert used(rows) == {1: 3 * S // 10, 2: 3 * S // 10, 3: 3 * S // 10}
    assert {row.confidence for row in rows} == {Confidence.LOW}
    assert node.uses.error_ratio("a", 0) is None


def test_who_is_held_is_charged_nothing_while_somebody_else_runs_and_its_queue_while_nobody_does() -> None:
    node = Node({0: 1.0, 1: 1.0}, {0: [1, 3]})
    node.read()
    rows = node.read(held={A})
    assert used(rows) == {1: 0, 3: S}
    assert all(row.has_demand for row in rows), "it wanted the instance when it was held"
    node.listed = {1: [1]}
    node.read()
    assert used(node.read(held={A})) == {1: S}


def test_an_idle_instance_is_nobodys_wish_and_one_that_others_paused_wants_nothing() -> None:
    node = Node({0: 0.001}, {0: [1]})
    assert [row.has_demand for row in node.read()] == [False]
    node.loads[0] = 0.4
    assert [row.has_demand for row in node.read()] == [True]
    assert [row.has_demand for row in node.read(held={A})] == [True]
    assert [row.has_demand for row in node.read(held={A}, paused={A})] == [False]
    assert [row.has_demand for row in node.read(held={A})] == [False], "it has not run since"


def test_where_the_load_is_not_known_nothing_is_told() -> None:
    node = Node({}, {0: [1]})
    assert node.read() == [] and list(node.uses.rows()) == []


def test_between_two_reads_who_is_there_is_told_and_no_time() -> None:
    node = Node({0: 1.0}, {0: [1]})
    node.read()
    assert [(row.tgid, row.used_ns, row.has_demand) for row in node.uses.rows()] == [(1, 0, True)]


@given(
    st.dictionaries(st.integers(0, 2), st.floats(-0.5, 1.5), max_size=3),
    st.dictionaries(st.integers(0, 2), st.lists(st.sampled_from([1, 2, 3, 9]), unique=True), max_size=3),
    st.sets(st.sampled_from([A, B])),
    st.integers(0, 5 * S),
)
def test_no_instance_is_charged_more_than_its_load_nor_less_but_for_rounding(
    loads: dict[int, float], listed: dict[int, list[int]], held: set[int], elapsed_ns: int
) -> None:
    rows = Node(loads, listed).read(elapsed_ns, held)
    for slot, load in loads.items():
        mine = [row for row in rows if row.gpu == slot]
        due_ns = min(1.0, max(0.0, load)) * elapsed_ns
        assert all(row.used_ns >= 0 for row in mine)
        assert not mine or due_ns - len(mine) - 1 <= sum(row.used_ns for row in mine) <= due_ns + 1


def test_the_account_tells_of_instances_beside_what_is_sampled() -> None:
    """A poll each 250 ms; the first says what was before, which does not count."""
    account = NvmlAccount([NoReader(None, None)], CGROUPS.get)
    account.tenant_of = TENANTS.get
    node = Node({0: 0.5}, {0: [1]})
    account.scale(node, lambda: node.listed)
    assert used(account.read(S)) == {1: 0}
    assert used(account.read(S + S // 10)) == {1: 0}
    assert used(account.read(2 * S)) == {1: S // 2}
    assert account.error_ratio("a", 0) == 0.1 and account.error_ratio("a", 3) is None
    account.hold([A], 2 * S)
    node.loads[0] = 0.0
    assert [row.has_demand for row in account.read(3 * S)] == [True]
    account.thaw([A], 3 * S)
    account.read(4 * S)
    assert [row.has_demand for row in account.read(5 * S)] == [False]


@pytest.mark.parametrize("slot", [1, 7])
def test_an_instance_that_came_later_is_told_of_too(slot: int) -> None:
    account = NvmlAccount([NoReader(None, None)], CGROUPS.get)
    node = Node({slot: 1.0}, {slot: [1]})
    account.scale(node, lambda: node.listed)
    account.read(S)
    assert [(row.gpu, row.used_ns) for row in account.read(2 * S)] == [(slot, S)]
