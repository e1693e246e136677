# SPDX-License-Identifier: Apache-2.0
"""The process that holds the probes: each request is answered, and what gets probes is what was judged."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.bpf import attacher as attacher_module
from fairsched.bpf import elf, served
from fairsched.bpf.attacher import Attacher, Request, serve
from fairsched.bpf.elf import Export

PATIENCE_S = 10.0


def test_what_is_asked_in_one_breath_is_all_answered() -> None:
    """Several files are found in one look, as when the daemon starts."""
    ours, theirs = socket.socketpair()
    requests = [Request(f"/{name}", f"its {name}", 7) for name in "abcdef"]
    with ours, theirs:
        ours.settimeout(PATIENCE_S)
        ours.sendall(b"".join(json.dumps(request._asdict()).encode() + b"\n" for request in requests))
        answer = (theirs, lambda request: request._asdict())
        thread = threading.Thread(target=serve, args=answer, daemon=True)
        thread.start()
        with ours.makefile("r", encoding="utf-8") as lines:
            answered = [Request(**json.loads(lines.readline())) for _ in requests]
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it ends with the other end"
    assert answered == requests


class Kernel:
    """Libraries that are read and probes that are put, without either."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.judged: list[tuple[str, int]] = []
        self.probed: set[int] = set()
        """Inodes."""
        monkeypatch.setattr(elf, "read_exports", self._read)
        monkeypatch.setattr(attacher_module.syscall, "link_uprobes", self._link)
        monkeypatch.setattr(served, "refuse", lambda name, _fd, pid: self.judged.append((name, pid)))

    def _read(self, path: str, name: str) -> list[Export]:
        self.read.append(name)
        return [Export("cuCtxSynchronize", 64, 0)]

    def _link(self, _program: int, path: str, _offsets: list[int], *, is_return: bool) -> int:
        self.probed.add(os.stat(path).st_ino)
        return os.open("/dev/null", os.O_RDONLY)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


class _AnyProgram(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 0


@pytest.fixture
def attacher() -> Iterator[Attacher]:
    found = Attacher(_AnyProgram(), is_multi=True)
    yield found
    found.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"one")
    return path


def test_a_file_gets_its_probes_once_under_any_name(
    attacher: Attacher, kernel: Kernel, library: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.hardlink_to(library)
    first = attacher.attach(Request(str(library)))
    second = attacher.attach(Request(str(link), "/its/name", 7))
    assert kernel.probed == {library.stat().st_ino}
    assert kernel.read == [str(library)]
    assert (first["path"], first["name"]) == (str(library), "")
    assert (second["path"], second["name"]) == (str(link), "/its/name")
    assert first["inode"] == second["inode"] == library.stat().st_ino
    assert kernel.judged == [("/its/name", 7)], "what the operator has chosen is not"


def test_the_file_that_was_judged_gets_them_not_one_put_in_its_place(
    attacher: Attacher, kernel: Kernel, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inode, other = library.stat().st_ino, tmp_path / "other"
    other.write_bytes(b"two")
    monkeypatch.setattr(served, "refuse", lambda *_: os.replace(other, library))
    answer = attacher.attach(Request(str(library), pid=7))
    assert library.stat().st_ino != inode
    assert answer["inode"] == inode
    assert kernel.probed == {inode}


def test_what_is_no_file_is_not_opened(attacher: Attacher, kernel: Kernel, tmp_path: Path) -> None:
    """A device does something when it is opened, and a pipe waits for its other end."""
    pipe = tmp_path / "libcuda.so.1"
    os.mkfifo(pipe)
    answer = attacher.attach(Request(str(pipe), pid=7))
    assert answer["error"] == f"{pipe}: not a regular file"
    assert not answer["is_libcuda"]
    assert kernel.read == []


def test_what_its_owner_may_serve_gets_none_and_excuses_nobody(
    attacher: Attacher, kernel: Kernel, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, _fd: int, _pid: int) -> None:
        raise served.Served(f"{name}: is on a FUSE", remedy="trust it")

    monkeypatch.setattr(served, "refuse", refuse)
    answer = attacher.attach(Request(str(library), "/its/name", 7))
    assert (answer["error"], answer["remedy"]) == ("/its/name: is on a FUSE", "trust it")
    assert (answer["is_libcuda"], answer["is_gone"]) == (False, False)
    assert not kernel.probed
    assert kernel.read == []
    assert attacher.attach(Request(str(library)))["probes"] > 0, "by the operator's word"


def test_a_file_that_is_gone_is_called_so(attacher: Attacher, kernel: Kernel, tmp_path: Path) -> None:
    assert attacher.attach(Request(str(tmp_path / "none")))["is_gone"]
