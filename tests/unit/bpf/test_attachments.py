# SPDX-License-Identifier: Apache-2.0
"""Which libcuda is asked for, and when again: every file once, each tenant in turn and up to its budget."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fairsched.bpf.attachments import BUDGET, Attachments, Request, Unused
from fairsched.bpf.gpu_time import Dropped, Library
from fairsched.bpf.libcuda import LibraryFile

S = 1_000_000_000
ONE = LibraryFile("/proc/7/map_files/1-2", 8, 1, pid=7)
KEY = (8, 1)
FAILED = Library(ONE.path, error="out of memory")
DONE = Library(ONE.path, 8, 1, probes=3)


def file(inode: int, pid: int = 7) -> LibraryFile:
    return LibraryFile(f"/proc/{pid}/map_files/{inode}-2", 8, inode, pid=pid)


def done(item: LibraryFile) -> Library:
    return Library(item.path, item.device, item.inode, probes=3)


@pytest.fixture
def book() -> Attachments:
    """One was found and asked for."""
    found = Attachments()
    found.found(ONE, "chat", 0)
    assert found.request(0) == Request(ONE)
    return found


def test_a_file_is_asked_for_once_whoever_maps_it(book: Attachments) -> None:
    assert book.is_attaching
    book.found(LibraryFile("/proc/9/map_files/3-4", 8, 1, pid=9), "late", 1)
    assert book.request(1) is None
    assert book.note(DONE, 2)
    assert book.request(3 * S) is None
    assert (book.since_ns(ONE), book.is_attaching, book.unprobed) == (2, False, 0)


def test_one_request_is_under_way_at_a_time(book: Attachments) -> None:
    other = file(2)
    book.found(other, "chat", 1)
    assert book.request(1) is None
    assert book.waited_ns(5 * S) == 5 * S
    book.note(DONE, 5 * S)
    assert book.waited_ns(6 * S) == 0
    assert book.request(6 * S) == Request(other)


def test_tenants_have_their_turns(book: Attachments) -> None:
    """One has many files, and the others do not wait for more than one of them."""
    for inode in range(10, 20):
        book.found(file(inode), "flood", 1)
    book.note(DONE, 1)
    first = book.request(1)
    assert first is not None
    assert first.file is not None
    late, third = file(3, pid=9), file(4, pid=11)
    book.found(late, "late", 2)
    book.found(third, "third", 2)
    asked = []
    for _ in range(6):
        assert first is not None
        assert first.file is not None
        asked.append(first.file.inode)
        book.note(done(first.file), 3)
        first = book.request(3)
    assert asked == [10, 3, 4, 11, 12, 13]


def test_a_tenant_has_a_budget_and_is_named_beyond_it(book: Attachments) -> None:
    book.note(DONE, 1)
    for inode in range(100, 100 + 3 * BUDGET):
        book.found(file(inode), "flood", 2)
    book.found(file(2, pid=9), "late", 2)
    assert book.over_budget == {"flood"}
    asked = []
    while (request := book.request(3)) is not None:
        assert request.file is not None
        asked.append(request.file.inode)
        book.note(done(request.file), 3)
    assert sorted(asked) == [2, *range(100, 100 + BUDGET)]
    assert book.since_ns(file(100 + BUDGET)) is None
    assert not book.is_unprobed(file(100 + BUDGET)), "that is no excuse for what is called through it"
    assert not book.is_attaching, "nobody waits for it"
    book.forget([], 30 * S)
    assert book.over_budget == frozenset(), "it has no more now"


def test_the_operators_files_are_charged_to_nobody(book: Attachments) -> None:
    for inode in range(100, 100 + BUDGET):
        book.found(file(inode), "chat", 1)
    on_disk = LibraryFile("/usr/lib/libcuda.so.1", 8, 1)
    assert book.over_budget == {"chat"}
    book.found(on_disk, None, 2)
    book.found(file(500), "chat", 2)
    assert book.is_known((8, 500)), "one of its own became the operator's"


def test_who_needs_room_loses_what_nobody_uses_first(book: Attachments) -> None:
    book.note(DONE, 1)
    for inode in range(2, BUDGET + 1):
        book.found(file(inode, pid=8), "chat", 2)
    book.forget([7], 3)
    new = file(500, pid=8)
    book.found(new, "chat", 4)
    assert book.request(5) == Request(None, KEY)
    book.note(Dropped(*KEY), 6)
    assert book.is_known((8, 500))
    assert book.over_budget == frozenset()


def test_what_failed_is_asked_for_ever_more_rarely_but_for_ever(book: Attachments) -> None:
    asked_s = []
    for now_s in range(0, 600):
        book.found(ONE, "chat", now_s * S)
        if now_s == 0 or book.request(now_s * S) is not None:
            asked_s.append(now_s)
            assert book.note(FAILED, now_s * S) == (now_s == 0), "said once"
        assert book.is_unprobed(ONE)
        assert book.unprobed == 1
        assert not book.is_attaching, "nobody waits for what has failed"
    gaps = [later - earlier for earlier, later in pairwise(asked_s)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 32]
    assert set(gaps[6:]) == {60}


def test_what_took_long_and_failed_is_not_tried_again_soon(book: Attachments) -> None:
    book.note(FAILED, 2 * S)
    for now_s in range(2, 62):
        book.found(ONE, "chat", now_s * S)
        assert book.request(now_s * S) is None
    book.found(ONE, "chat", 62 * S)
    assert book.request(62 * S) == Request(ONE)


def test_what_succeeds_at_last_has_probes_from_then_on(book: Attachments) -> None:
    book.note(FAILED, 0)
    book.found(ONE, "chat", 2 * S)
    assert book.request(2 * S) == Request(ONE)
    book.note(DONE, 3 * S)
    assert (book.since_ns(ONE), book.is_unprobed(ONE), book.unprobed) == (3 * S, False, 0)
    book.found(ONE, "chat", 90 * S)
    assert book.request(90 * S) is None


def test_a_file_that_went_with_its_process_is_held_against_nobody(book: Attachments) -> None:
    book.note(Library(ONE.path, error="no such file", is_gone=True), 0)
    assert (book.unprobed, book.is_unprobed(ONE), book.is_attaching) == (0, False, False)
    book.found(ONE, "chat", 1)
    assert book.request(1) == Request(ONE), "another process has it"


def test_a_file_whose_first_user_is_gone_is_reached_through_another(book: Attachments) -> None:
    other = file(1, pid=9)
    book.found(other, "chat", 1)
    book.note(Library(ONE.path, error="no such process", is_gone=True), 2)
    assert book.request(3) == Request(other)


def test_a_failure_that_nobody_maps_any_more_is_forgotten(book: Attachments) -> None:
    book.note(FAILED, 0)
    book.forget([7], 299 * S)
    assert book.unprobed == 1
    book.forget([], 301 * S)
    assert book.unprobed == 0


def test_a_name_that_led_to_another_file_by_then_says_nothing_of_the_first(book: Attachments) -> None:
    book.note(Library(ONE.path, 8, 99, probes=3), 5)
    assert book.since_ns(ONE) is None
    assert book.since_ns(file(99)) == 5
    book.found(ONE, "chat", 6)
    assert book.request(6) == Request(ONE)
    assert list(book.unused()) == [Unused((8, 99), 5, True)], "nobody is known to map the other"


def test_the_same_file_on_a_device_that_stat_calls_otherwise_has_its_probes(book: Attachments) -> None:
    book.note(Library(ONE.path, 55, 1, probes=3), 5)
    assert book.since_ns(ONE) == 5
    book.forget([7], 6)
    book.drop(KEY)
    assert book.request(7) == Request(None, (55, 1)), "let go under the name that the attacher knows"


def test_what_is_only_called_libcuda_excuses_nobody(book: Attachments) -> None:
    book.note(Library(ONE.path, error="not an ELF file", is_libcuda=False), 0)
    assert book.unprobed == 1
    assert not book.is_unprobed(ONE)
    assert book.since_ns(ONE) is None


# ---- what nobody uses any more ----


def test_a_file_is_unused_when_its_last_user_is_gone(book: Attachments) -> None:
    book.note(Library(ONE.path, 8, 1, probes=3, is_lasting=False), 1)
    book.found(file(1, pid=9), "late", 2)
    book.forget([7], 3)
    assert list(book.unused()) == []
    book.forget([9], 4)
    book.forget([], 5)
    assert list(book.unused()) == [Unused(KEY, 4, False)]
    book.found(file(1, pid=10), "late", 6)
    assert list(book.unused()) == [], "somebody has come"


def test_what_is_let_go_is_asked_for_again_when_it_is_found(book: Attachments) -> None:
    book.note(DONE, 1)
    book.forget([7], 2)
    book.drop(KEY)
    assert book.since_ns(ONE) is None
    book.found(ONE, "chat", 3)
    assert book.request(3) == Request(None, KEY), "in this order"
    assert book.note(Dropped(*KEY), 4) is False
    assert book.request(5) == Request(ONE)


def test_a_file_of_the_operators_is_unused_when_it_is_not_on_disk_any_more() -> None:
    book, one = Attachments(), LibraryFile("/usr/lib/libcuda.so.1", 8, 1)
    book.found(one, None, 0)
    assert book.request(0) == Request(one)
    book.note(Library(one.path, 8, 1, probes=3), 1)
    book.forget([], 9 * S)
    assert list(book.unused()) == []
    book.forget([], 12 * S)
    assert list(book.unused()) == [Unused(KEY, 12 * S, True)]
