# SPDX-License-Identifier: Apache-2.0
"""The hunt for libcuda files: bounded work, patience with processes that have none yet."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from fairsched import libraries
from fairsched.libraries import LibraryWatch, mapped_libraries, see

MS = 1_000_000
S = 1000 * MS


class FakeProc:
    """What each process has mapped; counts how often each was looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.maps: dict[int, set[str]] = {}
        self.looks: dict[int, int] = {}

    def mapped(self, pid: int) -> set[str] | None:
        self.looks[pid] = self.looks.get(pid, 0) + 1
        return self.maps.get(pid)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    fake = FakeProc(tmp_path)
    monkeypatch.setattr(libraries, "mapped_libraries", fake.mapped)
    monkeypatch.setattr(libraries, "linker_cache", list)
    real = libraries.see
    # the file a process means, without its mount namespace
    monkeypatch.setattr(libraries, "see", lambda path, pid=None: real(path, None))
    return fake


@pytest.fixture
def library(tmp_path: Path) -> str:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"")
    return str(path)


def test_a_library_of_a_process_is_seen_at_once(proc: FakeProc, library: str) -> None:
    watch = LibraryWatch()
    proc.maps[7] = {library}
    watch.watch([7], 0)
    assert [item.path for item in watch.poll(0)] == [library]


def test_a_process_without_one_is_looked_at_ever_more_rarely(proc: FakeProc) -> None:
    watch = LibraryWatch()
    proc.maps[7] = set()
    watch.watch([7], 0)
    times = []
    for now in range(0, 60 * S, 50 * MS):
        before = proc.looks.get(7, 0)
        watch.poll(now)
        if proc.looks.get(7, 0) > before:
            times.append(now)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[:4] == [100 * MS, 200 * MS, 400 * MS, 800 * MS]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 5 * S


def test_one_loaded_late_is_still_found(proc: FakeProc, library: str) -> None:
    watch = LibraryWatch()
    proc.maps[7] = set()
    watch.watch([7], 0)
    for now in range(0, 20 * S, 100 * MS):
        assert watch.poll(now) == []
    proc.maps[7] = {library}
    found = [item for now in range(20 * S, 26 * S, 100 * MS) for item in watch.poll(now)]
    assert [item.path for item in found][:1] == [library]


def test_a_call_looks_at_a_few_processes_and_comes_to_all(proc: FakeProc) -> None:
    watch = LibraryWatch(per_call=8)
    proc.maps = {pid: set() for pid in range(100)}
    watch.watch(range(100), 0)
    for _ in range(13):
        before = sum(proc.looks.values())
        watch.poll(0)
        assert sum(proc.looks.values()) - before <= 8
    assert set(proc.looks) == set(range(100))


def test_processes_that_are_gone_are_not_looked_at(proc: FakeProc, library: str) -> None:
    watch = LibraryWatch()
    proc.maps = {7: {library}, 8: {library}}
    watch.watch([7, 8], 0)
    watch.watch([8], 0)
    del proc.maps[8]  # gone since
    assert watch.poll(0) == []
    assert proc.looks == {8: 1}
    assert watch.poll(60 * S) == []
    assert proc.looks == {8: 1}


def test_configured_files_are_looked_for_every_few_seconds(proc: FakeProc, tmp_path: Path) -> None:
    path = tmp_path / "later" / "libcuda.so.1"
    watch = LibraryWatch([str(path)])
    assert watch.poll(0) == []
    path.parent.mkdir()
    path.write_bytes(b"")
    assert watch.poll(S) == []
    assert [item.path for item in watch.poll(3 * S)] == [str(path)]


def test_a_missing_file_is_no_sighting(tmp_path: Path) -> None:
    assert see(str(tmp_path / "none")) is None


def test_one_file_under_two_names_has_one_inode(library: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(library)
    first, second = see(library), see(str(link))
    assert first is not None
    assert second is not None
    assert (first.device, first.inode) == (second.device, second.inode)


def test_mappings_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(
        "7f00-7f01 r-xp 0 fe:00 1    /usr/lib/libcuda.so.550.54\n"
        "7f01-7f02 r--p 0 fe:00 1    /usr/lib/libcuda.so.550.54\n"
        "7f02-7f03 r-xp 0 fe:00 2    /opt/a b/libcuda.so.1 (deleted)\n"
        "7f03-7f04 r-xp 0 fe:00 3    /usr/lib/libcudart.so.12\n"
        "7f04-7f05 rw-p 0 00:00 0    [heap]\n"
        "7f05-7f06 rw-p 0 00:00 0\n"
    )
    assert mapped_libraries(7, str(tmp_path)) == {"/usr/lib/libcuda.so.550.54", "/opt/a b/libcuda.so.1"}
    assert mapped_libraries(8, str(tmp_path)) is None
