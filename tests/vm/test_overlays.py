# SPDX-License-Identifier: Apache-2.0
"""Which files are one to the kernel's uprobes, under other kernels: overlays show the inode below in different ways."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairsched.bpf.pagecache import FirstPage, find_same
from tests.vm.conftest import Record

NAME = "libcuda.so.1"
ROW = "overlays of one directory"


class Overlays:
    """Two of one directory, and one of a copy of it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._stack = stack
        for lower in ("lower", "copy"):
            (directory / lower).mkdir()
            (directory / lower / NAME).write_bytes(b"x" * 10_000)
        self.lower = directory / "lower" / NAME
        self.first, self.second, self.other = (
            self._mount(directory / name, directory / lower) / NAME
            for name, lower in (("first", "lower"), ("second", "lower"), ("other", "copy"))
        )

    def _mount(self, root: Path, lower: Path) -> Path:
        for part in ("upper", "work", "root"):
            (root / part).mkdir(parents=True)
        options = f"lowerdir={lower},upperdir={root}/upper,workdir={root}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", str(root / "root")], check=True)
        self._stack.callback(subprocess.run, ["umount", str(root / "root")], check=True)
        return root / "root"

    def page(self, path: Path) -> FirstPage:
        fd = os.open(path, os.O_PATH)
        found = FirstPage(fd)
        os.close(fd)
        self._stack.callback(found.close)
        return found


@pytest.fixture
def overlays(tmp_path: Path) -> Iterator[Overlays]:
    with ExitStack() as stack:
        yield Overlays(tmp_path, stack)


def test_files_of_overlays_of_one_directory_are_one_and_no_longer_when_one_is_written_to(
    overlays: Overlays, record: Record
) -> None:
    first, second, other = (overlays.page(path) for path in (overlays.first, overlays.second, overlays.other))
    assert find_same(first, [other, second]) == 1
    assert find_same(overlays.page(overlays.lower), [other, first]) == 1
    assert find_same(other, [first, second]) is None
    overlays.second.chmod(0o700)
    copied = overlays.page(overlays.second)
    assert find_same(copied, [first, second]) is None, "it was copied up"
    assert find_same(first, [second]) == 0, "who had it mapped has what it was"
    record(ROW, "works", "known by their pages")
