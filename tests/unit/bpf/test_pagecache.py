# SPDX-License-Identifier: Apache-2.0
"""Two files are one to a uprobe when they share their pages, and only then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairsched.bpf.pagecache import FirstPage, find_same

needs_frames = pytest.mark.skipif(os.geteuid() != 0, reason="frames are for root: sudo make test-unit")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def page(path: Path, stack: ExitStack) -> FirstPage:
    fd = os.open(path, os.O_PATH)
    try:
        found = FirstPage(fd)
    finally:
        os.close(fd)
    stack.callback(found.close)
    return found


@pytest.fixture
def one(tmp_path: Path) -> Path:
    path = tmp_path / "one"
    path.write_bytes(b"x" * 5000)
    return path


@needs_frames
def test_a_file_is_the_same_under_each_of_its_names(one: Path, tmp_path: Path, stack: ExitStack) -> None:
    link, copy = tmp_path / "link", tmp_path / "copy"
    link.hardlink_to(one)
    copy.write_bytes(one.read_bytes())
    known = [page(copy, stack), page(one, stack)]
    assert find_same(page(link, stack), known) == 1
    assert find_same(page(link, stack), known[:1]) is None, "a copy has the same bytes, and pages of its own"


@needs_frames
def test_a_file_keeps_being_what_it_was_when_it_was_mapped(one: Path, stack: ExitStack) -> None:
    known = page(one, stack)
    one.unlink()
    one.write_bytes(b"y" * 5000)
    assert find_same(page(one, stack), [known]) is None


def test_a_file_that_was_cut_short_kills_nobody(one: Path, stack: ExitStack) -> None:
    known = page(one, stack)
    os.truncate(one, 0)
    assert known.frame() is None
    assert find_same(known, [known]) is None


def test_one_that_is_closed_is_like_nothing(one: Path, stack: ExitStack) -> None:
    known = page(one, stack)
    known.close()
    known.close()
    assert known.frame() is None


def test_where_frames_are_not_shown_no_file_is_like_another(
    one: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CAP_SYS_ADMIN the kernel shows frame 0 for each."""
    monkeypatch.setattr(os, "pread", lambda *_: (1 << 63 | 1 << 61).to_bytes(8, "little"))
    known = page(one, stack)
    assert known.frame() is None
    assert find_same(page(one, stack), [known]) is None
