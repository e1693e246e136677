# SPDX-License-Identifier: Apache-2.0
"""Who reads a file of a tenant's is a child that has a second, and takes nothing along."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.bpf import elf, examine, served
from fairsched.bpf.elf import Export, NotLibcuda
from fairsched.bpf.examine import HungUp
from tests.support import open_descriptors
from tests.unit.bpf.compile import gcc

PATIENCE_S = 10.0
TEXT = "int cuInit(int x) { return x; }\nint cuOther(int x) { return x; }\nint cuLaunchKernel(int x) { return x; }\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gcc(tmp_path_factory.mktemp("examine"), TEXT, "-shared", "-fPIC")


@pytest.fixture
def fd(library: Path) -> Iterator[int]:
    found = os.open(library, os.O_PATH)
    yield found
    os.close(found)


def _never_answers(*_: Any) -> Any:
    signal.pause()


def _dies(*_: Any) -> Any:
    os.kill(os.getpid(), 9)


def test_a_libcuda_is_examined_and_nothing_is_left(fd: int, library: Path) -> None:
    before = open_descriptors()
    seen = examine.examine(fd, str(library), None, [])
    every = {export.name: export for export in elf.read_exports(str(library))}
    assert set(seen.exports) == {every["cuInit"], every["cuLaunchKernel"]}
    assert seen.same_as is None
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "refusal", [NotLibcuda("its: bad", remedy="r"), served.Served("its: bad", remedy="r")]
)
def test_why_it_is_refused_is_what_the_child_says(
    fd: int, refusal: elf.FairschedError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise refusal

    monkeypatch.setattr(served, "refuse", refuse)
    with pytest.raises(type(refusal), match="its: bad"):
        examine.examine(fd, "its", 7, [])


def test_a_file_that_cannot_be_read_is_an_error_of_the_host(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(elf, "read_exports", refuse)
    with pytest.raises(OSError, match=r"broken disk: 'its'") as caught:
        examine.examine(fd, "its", None, [])
    assert caught.value.errno == errno.EIO


def test_what_exports_nothing_of_cuda_or_too_much_is_none(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (["other"], [f"cuInit_v{number}" for number in range(examine.MOST_PROBES + 1)]):
        found = [Export(name, 64, 0) for name in names]
        monkeypatch.setattr(elf, "read_exports", lambda *_, found=found: found)
        with pytest.raises(NotLibcuda, match=r"no CUDA driver entry|513 places"):
            examine.examine(fd, "its", None, [])


@pytest.mark.parametrize(("look", "code"), [(_never_answers, errno.ETIMEDOUT), (_dies, errno.EIO)])
def test_who_hangs_or_dies_over_it_is_a_child(
    fd: int, look: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf, "read_exports", look)
    begun_s = time.monotonic()
    with pytest.raises(OSError, match="its") as caught:
        examine.examine(fd, "its", None, [])
    assert caught.value.errno == code
    assert time.monotonic() - begun_s < PATIENCE_S
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_daemons_end_ends_it_at_once(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "read_exports", _never_answers)
    monkeypatch.setattr(examine, "DEADLINE_S", 600.0)
    ours, theirs = socket.socketpair()
    ours.send(b"another request")
    ours.close()
    with theirs, pytest.raises(HungUp):
        examine.examine(fd, "its", None, [], theirs.fileno())


def test_a_request_that_waits_ends_nothing(fd: int, library: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"another request")
        assert examine.examine(fd, str(library), None, [], theirs.fileno()).exports


def test_the_child_holds_nothing_but_the_file(
    fd: int, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that it held would stay for as long as it hangs."""
    held = os.open("/dev/null", os.O_RDONLY)

    def look(*_: Any) -> list[Export]:
        return [Export(f"cuInit_v{number}", number, 0) for number in open_descriptors() if number > 2]

    monkeypatch.setattr(elf, "read_exports", look)
    seen = {export.offset for export in examine.examine(fd, "its", None, []).exports}
    os.close(held)
    assert fd in seen
    assert held not in seen
    assert len(seen) <= 3, "the file, the pipe, and the list of descriptors"


def test_a_lease_of_its_owner_makes_nobody_wait(tmp_path: Path) -> None:
    """Who opens a file against a lease waits for 45 s, unless he says that he would not."""
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_PATH)
    with open(path, "r+b") as owner:
        fcntl.fcntl(owner, fcntl.F_SETSIG, 23)  # SIGURG is ignored
        fcntl.fcntl(owner, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(NotLibcuda, match="F_SETLEASE"):
            examine.examine(fd, "its", None, [])
    os.close(fd)
