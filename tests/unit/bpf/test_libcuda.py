# SPDX-License-Identifier: Apache-2.0
"""The hunt for libcuda files: bounded work, patience with processes that have none yet."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairsched.bpf import libcuda
from fairsched.bpf.libcuda import (
    MOST,
    LibraryFile,
    LibraryWatch,
    Mapped,
    Part,
    mapped_libraries,
    read_map,
    see,
    see_mapped,
)

MS = 1_000_000
S = 1000 * MS


class FakeProc:
    """What each process has mapped; counts how often each was looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.maps: dict[int, set[str]] = {}
        self.parts: dict[int, int] = {}
        self.looks: dict[int, int] = {}

    def read_map(self, pid: int) -> Iterator[Part]:
        self.looks[pid] = self.looks.get(pid, 0) + 1
        if pid not in self.maps:
            raise ProcessLookupError
        for _ in range(1, self.parts.get(pid, 1)):
            yield Part([], False)
        yield Part([Mapped(path, "0-1000", 0, 0) for path in self.maps[pid]], True)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    fake = FakeProc(tmp_path)
    monkeypatch.setattr(libcuda, "read_map", fake.read_map)
    monkeypatch.setattr(libcuda, "linker_cache", list)
    # the file a process means, without its mount namespace and its mappings
    monkeypatch.setattr(libcuda, "see_mapped", lambda item, _pid: see(item.path))
    return fake


@pytest.fixture
def library(tmp_path: Path) -> str:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"")
    return str(path)


def test_a_library_of_a_process_is_seen_at_once(proc: FakeProc, library: str) -> None:
    watch = LibraryWatch()
    proc.maps[7] = {library}
    watch.watch({7: "chat"}, 0)
    assert [item.path for item in watch.poll(0)] == [library]


def test_a_process_without_one_is_looked_at_ever_more_rarely(proc: FakeProc) -> None:
    watch = LibraryWatch()
    proc.maps[7] = set()
    watch.watch({7: "chat"}, 0)
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
    watch.watch({7: "chat"}, 0)
    for now in range(0, 20 * S, 100 * MS):
        assert watch.poll(now) == []
    proc.maps[7] = {library}
    found = [item for now in range(20 * S, 26 * S, 100 * MS) for item in watch.poll(now)]
    assert [item.path for item in found][:1] == [library]


def test_a_call_looks_at_a_few_processes_and_comes_to_all(proc: FakeProc) -> None:
    watch = LibraryWatch(per_call=8)
    proc.maps = {pid: set() for pid in range(100)}
    watch.watch(dict.fromkeys(range(100), "chat"), 0)
    for _ in range(13):
        before = sum(proc.looks.values())
        watch.poll(0)
        assert sum(proc.looks.values()) - before <= 8
    assert set(proc.looks) == set(range(100))


def test_who_has_many_processes_keeps_nobody_waiting(proc: FakeProc, library: str) -> None:
    watch = LibraryWatch(per_call=8)
    proc.maps = {pid: set() for pid in range(1000)} | {2000: {library}}
    watch.watch({**dict.fromkeys(range(1000), "flood"), 2000: "late"}, 0)
    assert [item.path for item in watch.poll(0)] == [library]


def test_a_large_map_is_read_in_parts_and_keeps_nobody_waiting(proc: FakeProc, library: str) -> None:
    watch = LibraryWatch(per_call=8)
    proc.maps, proc.parts = {5: {library}, 2: set(), 9: {library}}, {5: 100}
    watch.watch({5: "large"}, S)
    assert watch.poll(S) == []
    watch.watch({5: "large", 2: "large", 9: "late"}, S)
    assert len(watch.poll(S)) == 1
    assert proc.looks == {5: 1, 9: 1}, "a process of the same tenant is begun when this one is done"
    found = [item for _ in range(20) for item in watch.poll(S)]
    assert len(found) == 1
    assert proc.looks == {5: 1, 2: 1, 9: 1}


def test_processes_that_are_gone_are_not_looked_at(proc: FakeProc, library: str) -> None:
    watch = LibraryWatch()
    proc.maps = {7: {library}, 8: {library}}
    watch.watch({7: "chat", 8: "chat"}, 0)
    watch.watch({8: "chat"}, 0)
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


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
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
        "7f05-7f06 rw-p 0 00:00 0    [anon:/libcuda.so.1]\n"
        "7f06-7f07 rw-p 0 00:00 0\n"
    )
    disk = os.makedev(0xFE, 0)
    assert mapped_libraries(7, str(tmp_path)) == (
        Mapped("/usr/lib/libcuda.so.550.54", "7f00-7f01", disk, 1),
        Mapped("/opt/a b/libcuda.so.1", "7f02-7f03", disk, 2),
    )
    assert mapped_libraries(8, str(tmp_path)) is None


def test_a_map_is_read_in_parts_and_of_one_process_so_many_files(tmp_path: Path) -> None:
    """A process may have 65,530 mappings, under names of 4,096 bytes."""
    (tmp_path / "7").mkdir()
    name = "/" + "x" * 1000
    rows = [f"7f{n:06x}-7f{n + 1:06x} r--p 0 fe:00 {n} {name}/libcuda.so.{n}\n" for n in range(1, 3000)]
    (tmp_path / "7" / "maps").write_text("".join(["00-01 r--p 0 fe:00 1 /bin/x\n" * 10_000, *rows]))
    parts = list(read_map(7, str(tmp_path)))
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(len(part.found) for part in parts) == MOST
    assert parts[0].found == []
    assert len(parts) < 10


class Mapping:
    """A file that this process has mapped, and its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"old")
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            status = os.fstat(file.fileno())
        self.key = (status.st_dev, status.st_ino)

    def library_file(self) -> LibraryFile | None:
        mapped = mapped_libraries(os.getpid())
        assert mapped is not None
        (item,) = (item for item in mapped if item.path == str(self.path))
        return see_mapped(item, os.getpid())

    def close(self) -> None:
        self._memory.close()


@pytest.fixture
def mapping(tmp_path: Path) -> Iterator[Mapping]:
    found = Mapping(tmp_path / "libcuda.so.1")
    yield found
    found.close()


needs_map_files = pytest.mark.skipif(os.geteuid() != 0, reason="map_files is for root: sudo make test-unit")


@needs_map_files
def test_a_mapped_file_is_the_one_behind_the_mapping_and_has_its_name_for_people(mapping: Mapping) -> None:
    library_file = mapping.library_file()
    assert library_file is not None
    assert re.fullmatch(rf"/proc/{os.getpid()}/map_files/[0-9a-f]+-[0-9a-f]+", library_file.path)
    assert library_file.name == f"/proc/{os.getpid()}/root{mapping.path}"
    assert (library_file.device, library_file.inode, library_file.pid) == (*mapping.key, os.getpid())


@needs_map_files
@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_a_process_has_mapped_is_found_after_its_name_is_gone(
    mapping: Mapping, is_replaced: bool
) -> None:
    mapping.path.unlink()
    if is_replaced:
        mapping.path.write_bytes(b"new")
    library_file = mapping.library_file()
    assert library_file is not None
    assert (library_file.device, library_file.inode) == mapping.key
    assert Path(library_file.path).read_bytes() == b"old"


def test_without_the_right_to_open_mappings_what_the_map_says_has_to_do(
    mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, *options: Any) -> int:
        if "/map_files/" in str(path):
            raise PermissionError(1, "Operation not permitted", path)
        return real(path, *options)

    monkeypatch.setattr(libcuda.os, "open", refuse)
    mapping.path.unlink()
    mapping.path.write_bytes(b"new")
    left = mapping.library_file()
    assert left is not None
    assert left.inode == mapping.key[1]
    assert "/map_files/" in left.path, "which nobody can open: it will be known as unprobed"


@needs_map_files
def test_no_file_system_is_asked_for_a_mapped_file(mapping: Mapping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may serve it, and need not answer: neither its name is followed, nor is it opened to be read."""
    opened: list[tuple[str, int]] = []
    real = os.open

    def note(path: str, flags: int, *options: Any) -> int:
        opened.append((path, flags & os.O_PATH))
        return real(path, flags, *options)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("asks the file system")

    with monkeypatch.context() as patch:
        patch.setattr(libcuda.os, "open", note)
        for name in ("stat", "lstat", "fstat", "readlink"):
            patch.setattr(libcuda.os, name, never)
        library_file = mapping.library_file()
    assert library_file is not None
    assert opened == [(library_file.path, os.O_PATH)]


def test_a_mapping_that_has_gone_is_not_found(mapping: Mapping) -> None:
    assert see_mapped(Mapped(str(mapping.path), "0-1000", *mapping.key), os.getpid()) is None


def test_the_name_of_a_mapped_file_may_be_any_bytes(tmp_path: Path) -> None:
    """The kernel escapes a newline in it, and nothing else; a line that was torn there ended the daemon."""
    paths = [tmp_path / os.fsdecode(b"a\rb"), tmp_path / os.fsdecode(b"\xff\r\n0::\x85 /libcuda.so.1")]
    paths[1].parent.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        for path in paths:
            path.write_bytes(b"x")
            file = stack.enter_context(open(path, "rb"))
            stack.enter_context(mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ))
        found = mapped_libraries(os.getpid())
    assert found is not None
    assert str(paths[1]).replace("\n", "\\012") in [item.path for item in found]
