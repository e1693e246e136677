# SPDX-License-Identifier: Apache-2.0
"""Which libcudas are asked for and let go as processes and containers come and go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fairsched.bpf import libcuda
from fairsched.bpf.attachments import BUDGET
from fairsched.bpf.gpu_time import Dropped, Library
from fairsched.bpf.libcuda import LibraryFile, Mapped, Part
from fairsched.observe import libraries as module
from fairsched.observe.libraries import Libraries, ProbesLost
from tests.support import FakeTree

S = 1_000_000_000
HOME = "/gpu/chat/container"


class Attacher:
    """Answers each request at the next look."""

    def __init__(self) -> None:
        self.probed: set[int] = set()
        """Inodes."""
        self.is_lasting = False
        self.is_silent = False
        self._answers: list[Library | Dropped] = []

    def request_library(self, path: str, _name: str, _pid: int | None) -> None:
        inode = int(path)
        self.probed.add(inode)
        self._answers.append(Library(path, 8, inode, probes=3, is_lasting=self.is_lasting))

    def request_drop(self, device: int, inode: int) -> None:
        self.probed.remove(inode)
        self._answers.append(Dropped(device, inode))

    def take_attached(self) -> list[Library | Dropped]:
        answers, self._answers = self._answers, []
        return [] if self.is_silent else answers


class World:
    """Processes, what each has mapped, and the daemon's look at them."""

    def __init__(self, files: FakeTree) -> None:
        self.attacher, self.files = Attacher(), files
        self.libraries = Libraries((), cast(Any, self.attacher), files.mount)
        self.mapped: dict[int, list[int]] = {}
        self.populate(HOME, True)

    def populate(self, home: str, is_populated: bool) -> None:
        self.files.make(home).close()
        (self.files.root / home.strip("/") / "cgroup.events").write_text(f"populated {int(is_populated)}\n")

    def read_map(self, pid: int) -> Iterator[Part]:
        yield Part([Mapped(str(inode), "0-1", 8, inode) for inode in self.mapped[pid]], True)

    def look(self, now_ns: int) -> None:
        self.libraries.watch(dict.fromkeys(self.mapped, "chat"), now_ns)
        for _ in range(100):
            list(self.libraries.poll(now_ns))
            self.libraries.take_attached(now_ns)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    found = World(FakeTree(tmp_path / "cgroup"))
    monkeypatch.setattr(libcuda, "linker_cache", list)
    monkeypatch.setattr(libcuda, "read_map", found.read_map)
    monkeypatch.setattr(libcuda, "see_mapped", lambda item, pid: LibraryFile(item.path, 8, item.inode, pid))
    monkeypatch.setattr(module, "cgroup_path_of", lambda _pid, _mount: HOME)
    return found


def test_the_libcuda_of_a_container_that_has_ended_is_let_go(world: World) -> None:
    world.mapped = {7: [1], 9: [1]}
    world.look(S)
    assert world.attacher.probed == {1}
    del world.mapped[7]
    world.populate(HOME, False)
    world.look(2 * S)
    assert world.attacher.probed == {1}, "another process has it"
    del world.mapped[9]
    world.look(3 * S)
    assert world.attacher.probed == set()
    world.mapped = {11: [1]}
    world.look(4 * S)
    assert world.attacher.probed == {1}, "it is started again"


def test_who_starts_another_process_in_a_container_that_lives_on_finds_its_probes(world: World) -> None:
    world.mapped = {7: [1]}
    world.look(S)
    world.mapped = {}
    world.look(100 * S)
    assert world.attacher.probed == {1}
    world.populate(HOME, False)
    world.look(101 * S)
    assert world.attacher.probed == set()


def test_a_file_of_the_hosts_keeps_its_probes_for_a_minute(world: World) -> None:
    world.attacher.is_lasting = True
    world.mapped = {7: [1]}
    world.look(S)
    world.mapped = {}
    world.populate(HOME, False)
    world.look(2 * S)
    world.look(61 * S)
    assert world.attacher.probed == {1}
    world.look(63 * S)
    assert world.attacher.probed == set()


def test_who_has_too_many_is_named_once_and_again_when_that_is_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.mapped = {7: list(range(1, BUDGET + 10))}
    for now_s in range(1, 10):
        world.look(now_s * S)
    assert len(world.attacher.probed) == BUDGET
    assert world.libraries.over_budget == {"chat"}
    world.mapped = {}
    for now_s in range(10, 40):
        world.look(now_s * S)
    said = [line for line in caplog.messages if line.startswith("libraries=")]
    assert said == [f"libraries=refused tenant=chat beyond={BUDGET}", "libraries=refused_no_more tenant=chat"]


def test_an_attacher_that_does_not_answer_is_lost(world: World) -> None:
    world.attacher.is_silent = True
    world.mapped = {7: [1]}
    world.look(S)
    with pytest.raises(ProbesLost, match="has not answered for 30 s"):
        world.look(32 * S)
