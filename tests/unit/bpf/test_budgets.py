# SPDX-License-Identifier: Apache-2.0
"""However many tenants there are, each has what is kept for it, and nobody can have more than there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairsched.bpf import abi, budgets

ROOM = {abi.Table.CONTEXTS: abi.MAX_CTXS, abi.Table.PROCESSES: abi.MAX_PROCS}


@given(st.integers(0, abi.MAX_OWNERS))
def test_all_reserves_and_what_is_shared_fit(owners: int) -> None:
    for table, part in budgets.divide(owners).items():
        assert max(1, owners) * part.reserve + part.shared <= ROOM[table]
        assert part.reserve < part.ceiling
        assert part.ceiling - part.reserve <= part.shared // 2, "one tenant leaves half of it to the others"


def test_each_of_a_thousand_tenants_has_room_of_its_own() -> None:
    assert all(part.reserve >= 1 for part in budgets.divide(1000).values())


def test_the_ring_holds_the_bursts_of_several_floods() -> None:
    records = abi.EDGE_PAGES * 4096 // 56
    assert records >= 8 * budgets.EDGE_BURST
