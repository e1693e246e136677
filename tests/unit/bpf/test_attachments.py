# SPDX-License-Identifier: Apache-2.0
"""Which libcuda is asked for, and when again: every file once, what failed with patience, what is gone no more."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fairsched.bpf.attachments import Attachments
from fairsched.bpf.gpu_time import Library
from fairsched.bpf.libcuda import LibraryFile

S = 1_000_000_000
ONE = LibraryFile("/lib/libcuda.so.1", 8, 1, pid=7)
FAILED = Library(ONE.path, error="out of memory")
DONE = Library(ONE.path, 8, 1, probes=3)


@pytest.fixture
def book() -> Attachments:
    found = Attachments()
    assert found.wants(ONE, 0)
    return found


def test_a_file_is_asked_for_once_under_any_name(book: Attachments) -> None:
    assert book.is_attaching
    link = LibraryFile("/proc/9/root/lib/libcuda.so.1", 8, 1, pid=9)
    assert not book.wants(link, 1)
    assert book.note(DONE, 2)
    assert not book.wants(link, 3 * S)
    assert (book.since_ns(ONE), book.is_attaching, book.unprobed) == (2, False, 0)


def test_what_failed_is_asked_for_ever_more_rarely_but_for_ever(book: Attachments) -> None:
    asked_s = []
    for now_s in range(0, 600):
        if now_s == 0 or book.wants(ONE, now_s * S):
            asked_s.append(now_s)
            assert book.note(FAILED, now_s * S) == (now_s == 0), "said once"
        assert book.is_unprobed(ONE)
        assert book.unprobed == 1
        assert book.is_partial
        assert not book.is_attaching, "nobody waits for what has failed"
    gaps = [later - earlier for earlier, later in pairwise(asked_s)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 32]
    assert set(gaps[6:]) == {60}


def test_what_succeeds_at_last_has_probes_from_then_on(book: Attachments) -> None:
    book.note(FAILED, 0)
    assert book.wants(ONE, 2 * S)
    assert book.note(DONE, 3 * S)
    assert (book.since_ns(ONE), book.is_unprobed(ONE), book.unprobed) == (3 * S, False, 0)
    assert not book.wants(ONE, 90 * S)


def test_a_file_that_went_with_its_process_is_held_against_nobody(book: Attachments) -> None:
    book.note(Library(ONE.path, error="no such file", is_gone=True), 0)
    assert (book.unprobed, book.is_unprobed(ONE), book.is_attaching) == (0, False, False)
    assert book.wants(ONE, 1), "another process has it"


def test_a_failure_that_nobody_maps_any_more_is_forgotten(book: Attachments) -> None:
    book.note(FAILED, 0)
    other = LibraryFile("/other/libcuda.so.1", 8, 2)
    assert book.wants(other, 299 * S)
    assert book.unprobed == 1
    book.wants(other, 301 * S)
    assert book.unprobed == 0


def test_a_name_that_led_to_another_file_by_then_says_nothing_of_the_first(book: Attachments) -> None:
    book.note(Library(ONE.path, 8, 99, probes=3), 5)
    assert book.since_ns(ONE) is None
    assert book.since_ns(LibraryFile(ONE.path, 8, 99)) == 5
    assert book.wants(ONE, 6)


def test_the_same_file_on_a_device_that_stat_calls_otherwise_has_its_probes(book: Attachments) -> None:
    book.note(Library(ONE.path, 55, 1, probes=3), 5)
    assert book.since_ns(ONE) == 5


def test_what_is_only_called_libcuda_excuses_nobody(book: Attachments) -> None:
    book.note(Library(ONE.path, error="not an ELF file", is_libcuda=False), 0)
    assert book.unprobed == 1
    assert not book.is_unprobed(ONE)
    assert not book.is_partial, "or one junk file would save everybody from being ended"
    assert book.since_ns(ONE) is None


def test_two_files_under_one_name_are_told_apart(book: Attachments) -> None:
    second = LibraryFile(ONE.path, 8, 2)
    assert not book.wants(second, 1), "the answer would not say whose it is"
    book.note(DONE, 2)
    assert book.wants(second, 3)
