# SPDX-License-Identifier: Apache-2.0
"""Books on maps made by hand: what is handed out, and what is cleaned up when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairsched.bpf import abi
from fairsched.driver.books import _SWEEP_SLACK, DriverBooks, DriverUse

GIB = 1 << 30
NOTHING: Mapping[int, tuple[int, int]] = {}


class Maps:
    """What the kernel would have; `room` objects are read at a time."""

    def __init__(self, *, sees_files_end: bool = True, room: int = 300) -> None:
        self.sees_files_end = sees_files_end
        self.room = room
        self.calls_by: dict[tuple[int, int], int] = {}
        self.client_by: dict[int, abi.Client] = {}
        self.open_files: dict[int, int] = {}
        self.gone_by: dict[int, int] = {}
        self.partial_by: set[int] = set()
        self.forgotten_files: list[tuple[int, int]] = []
        self.refused = 0
        self.object_by: dict[tuple[int, int], abi.Object] = {}
        self.made = 0
        self.next = 0

    def client(
        self,
        handle: int,
        tgid: int,
        held: Mapping[int, tuple[int, int]] = NOTHING,
        *,
        serial: int = 1,
        file: int = 77,
        cgroup_id: int = 5,
    ) -> None:
        """``held``: (VRAM bytes, contexts) by GPU."""
        made = abi.Client(
            serial=serial, file=file, file_serial=3, cgroup_id=cgroup_id, tgid=tgid, handle=handle
        )
        for gpu, has in held.items():
            made.held[gpu] = abi.Held(*has)
        self.client_by[handle] = made
        self.open_files[file] = 3

    def add(self, client: int, handle: int, parent: int, parent_serial: int, serial: int) -> None:
        self.object_by[client, handle] = abi.Object(serial=serial, parent=parent, parent_serial=parent_serial)
        self.made += 1

    def calls(self):
        return [(abi.Caller(*key), abi.Calls(n, 1, 10 * n, 2)) for key, n in self.calls_by.items()]

    def clients(self):
        return list(self.client_by.values())

    def files(self):
        used = {client.file for client in self.client_by.values()}
        return {address: (serial, address in used) for address, serial in self.open_files.items()}

    def makers(self):
        return {tgid: (ns, tgid in self.partial_by) for tgid, ns in self.gone_by.items()}

    def objects(self, *, is_first: bool):
        start = 0 if is_first else self.next
        rows = list(self.object_by.items())[start : start + self.room]
        self.next = start + len(rows)
        return [(abi.ObjectKey(*key), item) for key, item in rows], self.next < len(self.object_by)

    def object(self, client: int, handle: int):
        return self.object_by.get((client, handle))

    def count(self, what: abi.DriverCount) -> int:
        if what is abi.DriverCount.OVER_BUDGET:
            return self.refused
        is_made = what is abi.DriverCount.OBJECTS_MADE
        return self.made if is_made else self.made - len(self.object_by)

    def free_client(self, handle: int, serial: int) -> None:
        client = self.client_by.get(handle)
        if client is not None and client.serial == serial:
            del self.client_by[handle]

    def forget_calls(self, key: abi.Caller) -> None:
        del self.calls_by[key.cgroup_id, key.tgid]

    def forget_maker(self, tgid: int) -> None:
        del self.gone_by[tgid]

    def forget_file(self, address: int, serial: int) -> None:
        self.forgotten_files.append((address, serial))
        if self.open_files[address] == serial:
            del self.open_files[address]

    def forget_object(self, client: int, handle: int, serial: int) -> None:
        item = self.object_by.get((client, handle))
        if item is not None and item.serial == serial:
            del self.object_by[client, handle]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid in (100, 101):
        (tmp_path / str(pid)).mkdir()
    return tmp_path


def test_sums_become_uses_and_nothing_held_is_nobody(proc: Path) -> None:
    maps = Maps()
    maps.client(1, 100, {0: (GIB, 1)})
    maps.client(2, 101, {abi.GPU_UNKNOWN: (0, 2)}, cgroup_id=6)
    maps.client(3, 100)
    assert DriverBooks(maps, str(proc)).read().uses == (
        DriverUse(5, 100, 0, 1, GIB, made_ns=1),
        DriverUse(6, 101, None, 2, 0, made_ns=1),
    )


def test_a_use_says_when_the_oldest_client_behind_it_was_made(proc: Path) -> None:
    """By which a process that was given the pid of a dead one is told from it."""
    maps = Maps()
    for handle, serial in ((1, 30), (2, 10), (3, 20)):
        maps.client(handle, 100, {0: (GIB, 1)} if handle == 1 else NOTHING, serial=serial)
    maps.client(4, 100, {0: (GIB, 1)}, serial=5, cgroup_id=6)
    assert [use.made_ns for use in DriverBooks(maps, str(proc)).read().uses] == [10, 5]


def test_what_a_process_has_through_several_clients_is_added_up(proc: Path) -> None:
    maps = Maps()
    maps.client(1, 100, {0: (GIB, 1), 1: (5, 0)})
    maps.client(2, 100, {0: (GIB, 2)})
    assert set(DriverBooks(maps, str(proc)).read().uses) == {
        DriverUse(5, 100, 0, 3, 2 * GIB, made_ns=1),
        DriverUse(5, 100, 1, 0, 5, made_ns=1),
    }


def test_a_client_that_is_just_freed_has_nothing(proc: Path) -> None:
    """Its sums are closed one after the other, and it is read meanwhile."""
    maps = Maps()
    maps.client(1, 100, {0: (1 << 62, 1), 1: ((1 << 62) - 4096, 0)})
    maps.client(2, 100, {2: (GIB, 1)})
    maps.client_by[2].is_gone = 1
    assert DriverBooks(maps, str(proc)).read().uses == ()


def test_who_has_more_than_it_had_room_for_is_known(proc: Path) -> None:
    maps = Maps()
    maps.client(1, 100)
    maps.client(2, 101)
    maps.gone_by, maps.partial_by = {100: 0, 101: 0}, {101}
    books = DriverBooks(maps, str(proc))
    books.read()
    assert books.partial == {101}


def test_a_sum_below_zero_for_a_moment_is_shown_as_none(proc: Path) -> None:
    maps = Maps()
    maps.client(1, 100, {0: (-4096, 1)})
    assert DriverBooks(maps, str(proc)).read().uses == (DriverUse(5, 100, 0, 1, 0, made_ns=1),)


def test_a_dead_process_keeps_what_an_open_file_of_it_keeps(proc: Path) -> None:
    """A child has inherited the file: the driver still has the memory."""
    maps = Maps()
    maps.client(1, 999, {0: (GIB, 1)})
    maps.gone_by = {999: 50}
    books = DriverBooks(maps, str(proc))
    assert books.read().uses == (DriverUse(5, 999, 0, 1, GIB, made_ns=1),)
    maps.open_files.clear()
    assert books.read().uses == ()
    assert maps.client_by == {}
    assert maps.gone_by == {}


def test_a_file_at_the_address_of_another_keeps_nothing_of_that(proc: Path) -> None:
    maps = Maps()
    maps.client(1, 100, {0: (GIB, 1)})
    books = DriverBooks(maps, str(proc))
    assert len(books.read().uses) == 1
    maps.open_files[77] = 4
    assert books.read().uses == ()


@pytest.mark.parametrize(
    ("tgid", "gone_ns", "is_live"), [(100, 0, True), (100, 5, True), (100, 20, False), (999, 0, False)]
)
def test_where_files_are_not_seen_to_end_the_process_stands_for_them(
    proc: Path, tgid: int, gone_ns: int, is_live: bool
) -> None:
    """Also that of a process whose pid is used again, and of one that is another program now."""
    maps = Maps(sees_files_end=False)
    maps.client(1, tgid, {0: (GIB, 1)}, serial=10)
    maps.gone_by = {tgid: gone_ns}
    books = DriverBooks(maps, str(proc))
    assert bool(books.read().uses) == is_live
    books.read()
    assert maps.forgotten_files == ([] if is_live else [(77, 3)]), "no file of it takes up room"


def test_where_files_are_seen_to_end_one_without_clients_is_kept(proc: Path) -> None:
    maps = Maps()
    maps.open_files[77] = 3
    DriverBooks(maps, str(proc)).read()
    assert maps.forgotten_files == []


def test_calls_of_the_dead_are_handed_out_once_more(proc: Path) -> None:
    maps = Maps()
    maps.calls_by = {(5, 100): 3, (5, 999): 4}
    books = DriverBooks(maps, str(proc))
    assert [(calls.tgid, calls.ioctls, calls.is_final) for calls in books.read().calls] == [
        (100, 3, False),
        (999, 4, True),
    ]
    assert [calls.tgid for calls in books.read().calls] == [100]


def settle(books: DriverBooks, looks: int = 60) -> None:
    for _ in range(looks):
        books.read()


def test_objects_that_lead_nowhere_are_deleted_and_no_other(proc: Path) -> None:
    maps = Maps()
    maps.client(1, 100, serial=10)
    maps.add(1, 2, 1, 10, serial=20)  # a device
    maps.add(1, 3, 2, 20, serial=30)  # below it
    maps.add(1, 4, 2, 19, serial=31)  # below a former one of the same handle
    maps.add(1, 5, 4, 31, serial=32)  # below that
    maps.add(1, 6, 1, 9, serial=33)  # of a former client of the same handle
    maps.add(9, 2, 9, 10, serial=34)  # of a client that is gone
    for handle in range(100, 100 + 2 * _SWEEP_SLACK):
        maps.add(8, handle, 8, 1, serial=50)
    settle(DriverBooks(maps, str(proc)))
    assert set(maps.object_by) == {(1, 2), (1, 3)}


def test_a_few_objects_are_left_alone(proc: Path) -> None:
    maps = Maps()
    maps.add(9, 2, 9, 10, serial=34)
    settle(DriverBooks(maps, str(proc)))
    assert len(maps.object_by) == 1


def test_objects_that_lead_nowhere_are_deleted_when_somebody_has_no_room_left(proc: Path) -> None:
    maps = Maps()
    maps.add(9, 2, 9, 10, serial=34)
    maps.refused = 1
    settle(DriverBooks(maps, str(proc)))
    assert maps.object_by == {}


def test_a_handle_that_is_given_out_anew_between_two_passes_is_spared(proc: Path) -> None:
    maps = Maps(room=10_000)
    for handle in range(2, 2 + 2 * _SWEEP_SLACK):
        maps.add(1, handle, 1, 10, serial=20)
    books = DriverBooks(maps, str(proc))
    books.read()
    assert len(maps.object_by) == 2 * _SWEEP_SLACK, "one pass deletes nothing"
    maps.client(1, 100, serial=30)
    maps.add(1, 2, 1, 30, serial=40)
    books.read()
    assert set(maps.object_by) == {(1, 2)}


def test_one_look_does_a_bounded_part(proc: Path) -> None:
    maps = Maps(room=300)
    for handle in range(2, 2 + 2 * _SWEEP_SLACK):
        maps.add(1, handle, 1, 10, serial=20)
    books = DriverBooks(maps, str(proc))
    books.read()
    assert maps.next == 300
