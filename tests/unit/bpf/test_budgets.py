# SPDX-License-Identifier: Apache-2.0
"""However many tenants there are, each has what is kept for it, and nobody can have more than there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairsched.bpf import abi, budgets

SETS = (budgets.GPU_TIME, budgets.DRIVER, budgets.VIEW, budgets.ORDINALS)


@given(st.integers(0, abi.MAX_OWNERS), st.sampled_from(SETS))
def test_all_reserves_and_what_is_shared_fit(owners: int, room: dict[abi.Table, int]) -> None:
    for table, part in budgets.divide(owners, room).items():
        assert max(1, owners) * part.reserve + part.shared <= room[table]
        assert part.reserve < part.ceiling <= room[table]
        assert part.ceiling - part.reserve <= part.shared // 2, "one tenant leaves half of it to the others"


def test_each_of_a_thousand_tenants_has_room_of_its_own() -> None:
    for room in SETS:
        parts = budgets.divide(1000, room)
        assert all(part.reserve >= 1 for table, part in parts.items() if table is not abi.Table.CALLS)


def test_every_table_with_entries_is_divided_once() -> None:
    assert sorted(table for room in SETS for table in room) == list(range(abi.ENTRY_TABLES))


def test_the_ring_holds_the_bursts_of_several_floods() -> None:
    records = abi.EDGE_PAGES * 4096 // 56
    assert records >= 8 * budgets.EDGE_BURST


@given(st.integers(0, abi.MAX_OWNERS), st.integers(0, abi.MAX_OWNERS))
def test_every_number_has_a_part_of_the_marks_to_itself(owners: int, numbers: int) -> None:
    parts = 1 << budgets.write(abi.Limits(), owners, numbers=numbers).mark_bits
    assert max(1, owners, numbers) <= parts, "none stands for two"
    assert parts < 2 * max(1, owners, numbers), "and no more of it is left over than that takes"
    assert abi.MARK_PLACES // parts >= 4
