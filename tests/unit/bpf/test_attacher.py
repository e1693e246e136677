# SPDX-License-Identifier: Apache-2.0
"""The process that holds the probes: each request is answered, and what gets probes is what was judged."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairsched.bpf import attacher as attacher_module
from fairsched.bpf import served
from fairsched.bpf.attacher import Attacher, Request, serve
from fairsched.bpf.channel import Channel
from fairsched.bpf.elf import Export
from fairsched.bpf.examine import Examined
from fairsched.bpf.handover import attacher_command, take_setup
from fairsched.bpf.pagecache import FirstPage
from tests.support import open_descriptors, wait_until

PATIENCE_S = 10.0


def test_what_is_asked_in_one_breath_is_all_answered() -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    requests = [{"path": f"/{name}", "name": f"its {name}", "pid": 7} for name in "abcdef"]
    for request in requests:
        ours.send(request)
    ends: list[type[Exception]] = []

    def answer() -> None:
        try:
            serve(theirs, lambda request: request)
        except ConnectionError as error:
            ends.append(type(error))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    answered: list[dict[str, Any]] = []
    wait_until(lambda: answered.extend(ours.take()) or len(answered) == len(requests), PATIENCE_S, "all are")
    ours.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it ends with the other end"
    assert ends
    assert answered == requests


class Kernel:
    """Libraries that are examined and probes that are put, without either."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.examined: list[tuple[str, int | None]] = []
        self.before: Callable[[], object] = lambda: None
        self.same_as: Callable[[int], int | None] = lambda _known: None
        self.is_lasting = True
        self.errno: int | None = None
        self._held: dict[int, int] = {}
        monkeypatch.setattr(attacher_module.syscall, "link_uprobes", self._link)
        monkeypatch.setattr(attacher_module, "find_same", lambda _page, others: 0 if others else None)

    def look(self, _fd: int, name: str, pid: int | None, known: Sequence[FirstPage]) -> Examined:
        self.examined.append((name, pid))
        self.before()
        return Examined((Export("cuCtxSynchronize", 64, 0),), self.same_as(len(known)), self.is_lasting)

    def _link(self, _program: int, path: str, _offsets: list[int], *, is_return: bool) -> int:
        if self.errno is not None:
            raise OSError(self.errno, os.strerror(self.errno))
        fd = os.open("/dev/null", os.O_RDONLY)
        self._held[fd] = os.stat(path).st_ino
        return fd

    @property
    def held(self) -> set[int]:
        """Inodes with a link that is open."""
        null = os.stat("/dev/null")
        found = set()
        for fd, inode in self._held.items():
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), null):
                    found.add(inode)
        return found


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


class _AnyProgram(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 0


@pytest.fixture
def attacher(kernel: Kernel) -> Iterator[Attacher]:
    found = Attacher(_AnyProgram(), is_multi=True, look=kernel.look)
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
    assert kernel.held == {library.stat().st_ino}
    assert kernel.examined == [(str(library), None)]
    assert (first["path"], first["name"]) == (str(library), "")
    assert (second["path"], second["name"]) == (str(link), "/its/name")
    assert first["inode"] == second["inode"] == library.stat().st_ino


def test_the_file_that_was_judged_gets_them_not_one_put_in_its_place(
    attacher: Attacher, kernel: Kernel, library: Path, tmp_path: Path
) -> None:
    inode, other = library.stat().st_ino, tmp_path / "other"
    other.write_bytes(b"two")
    kernel.before = lambda: os.replace(other, library)
    answer = attacher.attach(Request(str(library), pid=7))
    assert library.stat().st_ino != inode
    assert answer["inode"] == inode
    assert kernel.held == {inode}


def test_what_is_no_file_is_not_opened(attacher: Attacher, kernel: Kernel, tmp_path: Path) -> None:
    """A device does something when it is opened, and a pipe waits for its other end."""
    pipe = tmp_path / "libcuda.so.1"
    os.mkfifo(pipe)
    answer = attacher.attach(Request(str(pipe), pid=7))
    assert answer["error"] == f"{pipe}: not a regular file"
    assert not answer["is_libcuda"]
    assert kernel.examined == []


def test_what_its_owner_may_serve_gets_none_and_excuses_nobody(
    attacher: Attacher, kernel: Kernel, library: Path
) -> None:
    def refuse() -> None:
        raise served.Served("/its/name: is on a FUSE", remedy="trust it")

    kernel.before = refuse
    answer = attacher.attach(Request(str(library), "/its/name", 7))
    assert (answer["error"], answer["remedy"]) == ("/its/name: is on a FUSE", "trust it")
    assert (answer["is_libcuda"], answer["is_gone"]) == (False, False)
    assert not kernel.held
    kernel.before = lambda: None
    assert attacher.attach(Request(str(library)))["probes"] > 0, "by the operator's word"


@pytest.mark.parametrize(
    ("code", "pid", "is_libcuda"),
    [(errno.ENOMEM, 7, True), (errno.EINVAL, 7, False), (errno.EINVAL, None, True)],
    ids=["no memory", "made so that none can be put", "the operator's"],
)
def test_who_makes_a_file_on_which_no_probe_can_be_put_is_not_excused_for_it(
    attacher: Attacher, kernel: Kernel, library: Path, code: int, pid: int | None, is_libcuda: bool
) -> None:
    """Else one such file would save everybody on the node from being ended."""
    kernel.errno = code
    answer = attacher.attach(Request(str(library), pid=pid))
    assert os.strerror(code) in answer["error"]
    assert answer["is_libcuda"] == is_libcuda


@pytest.mark.parametrize("pid", [7, None])
def test_a_file_on_which_probes_take_long_gets_none_unless_the_operator_wants_them(
    attacher: Attacher, kernel: Kernel, library: Path, pid: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process maps it 65,530 times, and the kernel writes each probe into each mapping."""
    seconds = itertools.count()
    monkeypatch.setattr(attacher_module.time, "process_time", lambda: float(next(seconds)))
    answer = attacher.attach(Request(str(library), pid=pid))
    if pid is None:
        assert answer["probes"] == 2
    else:
        assert "mapped too often" in answer["error"]
        assert not answer["is_libcuda"]
        assert not kernel.held, "those that were put are let go"


def _containers(kernel: Kernel, tmp_path: Path, count: int) -> list[Path]:
    """Files that are one to the kernel."""
    found = [tmp_path / f"container{number}" for number in range(count)]
    for path in found:
        path.write_bytes(b"one")
    kernel.same_as = lambda known: 0 if known else None
    return found


def _key(path: Path) -> tuple[int, int]:
    return path.stat().st_dev, path.stat().st_ino


def test_files_that_are_one_to_the_kernel_get_their_probes_once(
    attacher: Attacher, kernel: Kernel, tmp_path: Path
) -> None:
    first, second = _containers(kernel, tmp_path, 2)
    answers = [attacher.attach(Request(str(path), pid=7)) for path in (first, second)]
    assert kernel.held == {first.stat().st_ino}
    assert [(one["device"], one["inode"]) for one in answers] == [_key(first), _key(second)]
    assert answers[0]["probes"] == answers[1]["probes"] == 2


def test_the_probes_go_with_the_last_name_and_never_keep_one_that_is_let_go(
    attacher: Attacher, kernel: Kernel, tmp_path: Path
) -> None:
    first, second, third = _containers(kernel, tmp_path, 3)
    for path in (first, second, third):
        attacher.attach(Request(str(path), pid=7))
    attacher.drop(_key(second))
    assert kernel.held == {first.stat().st_ino}
    assert attacher.handle({"drop": list(_key(first))}) == {"drop": list(_key(first))}
    assert kernel.held == {third.stat().st_ino}, "whose mount they keep busy is one that is used"
    attacher.drop(_key(third))
    assert not kernel.held
    attacher.drop(_key(third))
    assert attacher.attach(Request(str(second), pid=7))["probes"] == 2
    assert kernel.held == {second.stat().st_ino}


def test_probes_stay_where_they_are_rather_than_go_to_a_file_that_became_another(
    attacher: Attacher, kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner has written to it, and the overlay has copied it up. Others map what it was."""
    first, second = _containers(kernel, tmp_path, 2)
    for path in (first, second):
        attacher.attach(Request(str(path), pid=7))
    monkeypatch.setattr(attacher_module, "find_same", lambda *_: None)
    attacher.drop(_key(first))
    assert kernel.held == {first.stat().st_ino}


def test_nothing_is_held_after_the_end(attacher: Attacher, kernel: Kernel, tmp_path: Path) -> None:
    before = open_descriptors()
    for path in _containers(kernel, tmp_path, 3):
        attacher.attach(Request(str(path), pid=7))
    attacher.close()
    assert not kernel.held
    assert open_descriptors().keys() <= before.keys()


def test_a_file_that_is_gone_is_called_so(attacher: Attacher, kernel: Kernel, tmp_path: Path) -> None:
    assert attacher.attach(Request(str(tmp_path / "none")))["is_gone"]


def test_its_command_line_is_short_and_it_is_told_all_the_same() -> None:
    """It is an exec of the loader: what is inherited is there, and nothing else."""
    setup = {"programs": {f"a_program_{number}": number for number in range(50)}, "is_multi": False}
    command = attacher_command(7, setup)
    assert len(" ".join(command[1:])) < 50, "it fits a line of ps"
    assert os.get_inheritable(int(command[-1]))
    assert take_setup(int(command[-1])) == setup
    with pytest.raises(OSError):
        os.fstat(int(command[-1]))
