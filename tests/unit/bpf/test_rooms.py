# SPDX-License-Identifier: Apache-2.0
"""Room in a table that user space fills: as in BPF, nobody uses up what is kept for another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairsched.bpf import abi
from fairsched.bpf.rooms import OwnRooms

TABLE = abi.Table.ORDINALS


def rooms(entries: int, owners: int) -> OwnRooms:
    made = OwnRooms(TABLE, entries)
    made.share(owners)
    return made


def test_who_wants_all_gets_its_part_and_what_is_left_of_the_shared_half() -> None:
    table = rooms(16, 2)
    taken = [table.take(1) for _ in range(20)]
    assert taken == [abi.Room.OWN] * 4 + [abi.Room.SHARED] * 4 + [abi.Room.NONE] * 12
    assert table.refusals == table.budget(1).refused[TABLE] == 12
    assert table.budget(1).refused_ns[TABLE] > 0
    assert [table.take(2) for _ in range(9)] == [abi.Room.OWN] * 4 + [abi.Room.SHARED] * 4 + [abi.Room.NONE]


def test_what_was_refused_is_not_given_back() -> None:
    table = rooms(16, 2)
    table.give(1, abi.Room.NONE)
    assert table.budget(1).used[TABLE] == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=200))
def test_room_that_is_given_back_is_there_again(steps: list[tuple[int, bool]]) -> None:
    table, had = rooms(24, 4), {owner: [] for owner in range(4)}
    for owner, is_taken in steps:
        if is_taken and (room := table.take(owner)) is not abi.Room.NONE:
            had[owner].append(room)
        elif not is_taken and had[owner]:
            table.give(owner, had[owner].pop())
        assert sum(map(len, had.values())) <= 24
        assert [table.budget(owner).used[TABLE] for owner in range(4)] == [*map(len, had.values())]
    shared = [room for one in had.values() for room in one if room is abi.Room.SHARED]
    assert table.limits.shared_used[TABLE] == len(shared)
