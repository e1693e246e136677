# SPDX-License-Identifier: Apache-2.0
"""The ring reader on a file laid out like a BPF ring buffer: the kernel is the test."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairsched.bpf.ring import RingReader

PAGE = mmap.PAGESIZE
DATA = PAGE
BUSY, DISCARD = 1 << 31, 1 << 30
RECORD = struct.Struct("=QQ")
TAKEN = RECORD.size + 8


class Ring:
    """Writes as the kernel does. Its data is not mapped twice in a row, so a record that wraps is written twice."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(2 * PAGE + 2 * DATA))
        self.fd = os.open(path, os.O_RDWR)
        self.memory = mmap.mmap(self.fd, 2 * PAGE + 2 * DATA)
        self.reader = RingReader(self.fd, DATA)
        self.position = 0

    def put(self, *values: int, flags: int = 0, data: bytes | None = None) -> int:
        """Append a record; returns where its header is."""
        body = RECORD.pack(*values) if data is None else data
        raw = struct.pack("=II", len(body) | flags, 0) + body
        at = self.position & (DATA - 1)
        for copy in (at, at - DATA if at + len(raw) > DATA else at + DATA):
            for offset, byte in enumerate(raw):
                where = copy + offset
                if 0 <= where < 2 * DATA:
                    self.memory[2 * PAGE + where] = byte
        self.position += (len(raw) + 7) & ~7
        struct.pack_into("=Q", self.memory, PAGE, self.position)
        return at

    def commit(self, at: int) -> None:
        (length,) = struct.unpack_from("=I", self.memory, 2 * PAGE + at)
        struct.pack_into("=I", self.memory, 2 * PAGE + at, length & ~BUSY)

    def consumed(self) -> int:
        (position,) = struct.unpack_from("=Q", self.memory, 0)
        assert isinstance(position, int)
        return position

    def read(self) -> list[tuple[int, ...]]:
        return self.reader.read(RECORD)

    def close(self) -> None:
        self.reader.close()
        self.memory.close()
        os.close(self.fd)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path / "ring")
    yield ring
    ring.close()


def test_records_come_once_and_in_order(ring: Ring) -> None:
    assert ring.read() == []
    ring.put(1, 2)
    ring.put(3, 4)
    assert ring.read() == [(1, 2), (3, 4)]
    assert ring.read() == []
    assert ring.consumed() == ring.position


def test_a_record_still_being_written_is_waited_for_and_holds_back_the_rest(ring: Ring) -> None:
    ring.put(1, 1)
    at = ring.put(2, 2, flags=BUSY)
    ring.put(3, 3)
    assert ring.read() == [(1, 1)]
    assert ring.consumed() == TAKEN
    ring.commit(at)
    assert ring.read() == [(2, 2), (3, 3)]


def test_a_discarded_record_is_passed_over(ring: Ring) -> None:
    ring.put(1, 1, flags=DISCARD)
    ring.put(2, 2)
    assert ring.read() == [(2, 2)]


def test_a_record_of_another_length_is_passed_over(ring: Ring) -> None:
    ring.put(data=b"short")
    ring.put(2, 2)
    ring.put(data=bytes(100))
    ring.put(3, 3)
    assert ring.read() == [(2, 2), (3, 3)]


def test_odd_records_between_long_runs_neither_end_the_read_nor_shift_it(ring: Ring) -> None:
    for n in range(20):
        ring.put(n, n)
    ring.put(99, 99, flags=DISCARD)
    ring.put(data=b"short")
    for n in range(20, 40):
        ring.put(n, n)
    at = ring.put(40, 40, flags=BUSY)
    ring.put(41, 41)
    assert ring.read() == [(n, n) for n in range(40)]
    assert ring.consumed() == ring.position - 2 * TAKEN
    ring.commit(at)
    assert ring.read() == [(40, 40), (41, 41)]


def test_a_run_of_records_is_unpacked_at_once_and_not_one_by_one(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RingReader, "_record", None)
    for n in range(100):
        ring.put(n, n)
    assert ring.reader.peek(RECORD) == ring.read() == [(n, n) for n in range(100)]
    assert ring.consumed() == ring.position


def test_a_record_whose_length_is_no_multiple_of_8_is_padded(ring: Ring) -> None:
    odd = struct.Struct("=QI")
    for n in range(3):
        ring.put(data=odd.pack(n, n))
    assert list(ring.reader.read(odd)) == [(n, n) for n in range(3)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.integers(0, DATA // TAKEN), max_size=8), odd=st.integers(0, 40))
def test_nothing_is_lost_or_torn_at_the_wrap(tmp_path: Path, rounds: list[int], odd: int) -> None:
    ring = Ring(tmp_path / "ring")
    try:
        ring.put(data=bytes(odd))
        ring.read()
        number = 0
        for count in rounds:
            wanted = [(number + n, ~(number + n) & 0xFFFFFFFF) for n in range(count)]
            for pair in wanted:
                ring.put(*pair)
            number += count
            assert ring.read() == wanted
    finally:
        ring.close()


def test_a_portion_is_the_oldest_and_the_rest_is_still_there(ring: Ring) -> None:
    for number in range(5):
        ring.put(number, number)
    assert ring.reader.unread(RECORD) == 5
    assert ring.reader.read(RECORD, 2) == [(0, 0), (1, 1)]
    assert ring.reader.unread(RECORD) == 3
    assert ring.reader.read(RECORD, 9) == [(2, 2), (3, 3), (4, 4)]
    assert ring.reader.unread(RECORD) == 0


def test_what_was_peeked_at_is_there_to_be_read_and_is_not_peeked_at_again(ring: Ring) -> None:
    ring.put(1, 1)
    assert ring.reader.peek(RECORD) == [(1, 1)]
    ring.put(2, 2)
    assert ring.reader.peek(RECORD) == [(2, 2)]
    assert ring.consumed() == 0
    assert ring.read() == [(1, 1), (2, 2)]
    ring.put(3, 3)
    assert ring.reader.peek(RECORD) == [(3, 3)]


def test_a_record_read_without_a_peek_is_not_peeked_at_later(ring: Ring) -> None:
    ring.put(1, 1)
    assert ring.read() == [(1, 1)]
    assert ring.reader.peek(RECORD) == []


def test_a_peek_stops_before_a_record_that_is_being_written_and_goes_on_there(ring: Ring) -> None:
    at = ring.put(1, 1, flags=BUSY)
    ring.put(2, 2)
    assert ring.reader.peek(RECORD) == []
    ring.commit(at)
    assert ring.reader.peek(RECORD) == [(1, 1), (2, 2)]
