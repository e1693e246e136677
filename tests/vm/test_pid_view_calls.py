# SPDX-License-Identifier: Apache-2.0
"""pid_view byte by byte: on a driver in user space (fake_driver.c), asked from real PID namespaces.

What the driver was shown and what it left are known exactly here, so every byte the caller finds is accounted for.
The real functions of a module are in test_pid_view.py.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.bpf import abi, elf, perf
from fairsched.bpf.pid_view import PidViewPrograms
from tests.support import wait_until
from tests.vm import view_actor as model
from tests.vm.conftest import Record
from tests.vm.reach import garbage_calls

HERE = Path(__file__).resolve().parent
DRIVER, US, UNDECIDED = abi.ViewBy.DRIVER, abi.ViewBy.US, abi.ViewBy.UNDECIDED
GARBAGE = garbage_calls(5000, 1000)
TRANSLATES = {"none": [0, 0, 0], "list": [1, 0, 0], "info": [1, 1, 0], "all": [1, 1, 1]}
"""What a driver translates: up to 535.104 and the closed ones, from 535.113, from 565, from 570."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("driver") / "driver.so"
    source = HERE / "fake_driver.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    return str(path)


class OnLibrary(PidViewPrograms):
    """The programs on a library's functions instead of the kernel's."""

    library = ""

    def _put(self, program: str, symbol: str, *, is_return: bool) -> None:
        where = next(one.offset for one in elf.read_exports(self.library) if one.name == symbol)
        fd = perf.attach_uprobe(self._programs[program], self.library, where, is_return=is_return)
        self._links.append(fd)

    def start(self) -> None:
        self.watch_exits()
        self.attach("nvidia_unlocked_ioctl", "os_find_ns_pid")


@pytest.fixture
def programs(library: str) -> Iterator[OnLibrary]:
    OnLibrary.library = library
    programs = OnLibrary()
    yield programs
    programs.close()


class Actor:
    """A process of view_actor.py. Unknown attributes are its commands."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._lines = channel, channel.makefile("rw")
        self.pid, self.nspid = json.loads(self._lines.readline())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def command(*args: Any, **kwargs: Any) -> Any:
            print(json.dumps([name, args, kwargs]), file=self._lines, flush=True)
            return json.loads(self._lines.readline())

        return command

    def close(self) -> None:
        self._lines.close()
        self._channel.close()


class Actors:
    """Starts them and ends them."""

    count = 0

    def __init__(self, library: str) -> None:
        Actors.count += 1
        self._server = socket.socket(socket.AF_UNIX)
        address = f"fairsched-view-{os.getpid()}-{Actors.count}"
        self._server.bind(f"\0{address}")
        self._server.listen()
        self._server.settimeout(60)
        command = [sys.executable, "-m", "tests.vm.view_actor", library, address]
        self._process = subprocess.Popen(command)
        self._all = [self._accept()]

    def _accept(self) -> Actor:
        self._all = [*getattr(self, "_all", []), Actor(self._server.accept()[0])]
        return self._all[-1]

    def start(self, parent: Actor | None = None, *, in_namespace: bool = False) -> Actor:
        """A child of ``parent``, or of a process in the initial namespace; it has used the driver."""
        (parent or self._all[0]).fork(in_namespace=in_namespace)
        actor = self._accept()
        assert actor.alloc() == 0
        return actor

    def close(self) -> None:
        for actor in reversed(self._all):
            actor.close()
        self._process.wait(60)
        self._server.close()


@pytest.fixture
def actors(library: str) -> Iterator[Actors]:
    actors = Actors(library)
    yield actors
    actors.close()


MIB = 1 << 20


class Scene:
    """Three processes in a namespace, five elsewhere: two in the initial one, three in another."""

    def __init__(self, actors: Actors) -> None:
        self.actors = actors
        self.first = actors.start(in_namespace=True)
        self.own = [self.first, actors.start(self.first), actors.start(self.first)]
        other = actors.start(in_namespace=True)
        self.host = actors.start()
        self.foreign = [self.host, actors.start(), other, actors.start(other), actors.start(other)]
        self.all = [x for pair in zip(self.foreign, self.own, strict=False) for x in pair] + self.foreign[3:]
        self.memory = {actor.pid: (i + 1) * MIB for i, actor in enumerate(self.all)}

    def set(self, actor: Actor, translates: str, visible: dict[int, int] | None = None) -> None:
        """What the driver is and knows when ``actor`` asks; ``visible``: its numbers by initial pid."""
        sees = {one.pid: one.nspid for one in self.own} if visible is None else visible
        pids = [one.pid for one in self.all]
        actor.set(
            translates=TRANSLATES[translates],
            procs=len(pids),
            pid=pids,
            nspid=[sees.get(pid, 0) for pid in pids],
            memory=[self.memory[pid] for pid in pids],
        )

    def is_whole(self) -> bool:
        """Nobody has ended and nobody has come."""
        return len(self.all) == 8 and not any(is_dead(actor.pid) for actor in self.all)

    def begin(self) -> None:
        """Another test: everybody uses the driver once, so that the programs know him."""
        for actor in self.all:
            actor.set(status=0, error=0, count=0, meddle=0)
            assert actor.alloc() == 0


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


class Stage:
    """One scene for all tests that leave it as it was: its nine processes take longer than most tests."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._scene: Scene | None = None

    def scene(self) -> Scene:
        if self._scene is None:
            self._scene = Scene(Actors(self._library))
        self._scene.begin()
        return self._scene

    def clear(self) -> None:
        if self._scene is not None:
            self._scene.actors.close()
            self._scene = None


@pytest.fixture(scope="module")
def stage(library: str) -> Iterator[Stage]:
    stage = Stage(library)
    yield stage
    stage.clear()


@pytest.fixture
def scene(programs: OnLibrary, stage: Stage) -> Iterator[Scene]:
    programs.start()
    scene = stage.scene()
    yield scene
    if not scene.is_whole():
        stage.clear()


def ask_list(actor: Actor, **kwargs: Any) -> list[int]:
    asked = bytes(4) + struct.pack("<I", 0x2080) + bytes(model.LIST_SIZE - 8)
    status, _, _, now = actor.call(model.LIST, asked.hex(), **kwargs)
    assert status == 0
    answer = bytes.fromhex(now)
    return [model.u32(answer, 12 + 4 * i) for i in range(model.u32(answer, 8))]


def ask_info(actor: Actor, pids: list[int], **kwargs: Any) -> dict[int, int]:
    """Memory by pid as it stands in the answer."""
    asked = bytearray(model.INFO_SIZE)
    model.put_u32(asked, 0, len(pids))
    for i, pid in enumerate(pids):
        model.put_u32(asked, 8 + 72 * i, pid)
    status, _, _, now = actor.call(model.INFO, asked.hex(), **kwargs)
    assert status == 0
    answer = bytes.fromhex(now)
    return {
        model.u32(answer, 8 + 72 * i): struct.unpack_from("<Q", answer, 8 + 72 * i + 16)[0]
        for i in range(len(pids))
    }


def ask_samples(actor: Actor, size: int = 55888) -> tuple[set[int], bytes, bytes]:
    """Pids in the answer, what the driver left, what is there."""
    asked = bytearray(size)
    model.put_u32(asked, 4, size - 16)
    status, _, left, now = actor.call(model.SAMPLES, asked.hex())
    assert status == 0
    answer = bytes.fromhex(now)
    return {model.u32(answer, at) for at in model.samples_at(size)}, bytes.fromhex(left), answer


@pytest.mark.parametrize("xfer", [False, True])
def test_a_namespace_sees_exactly_its_own_processes_and_their_memory(
    scene: Scene, programs: OnLibrary, xfer: bool
) -> None:
    scene.set(scene.first, "none")
    pids = ask_list(scene.first, xfer=xfer)
    assert sorted(pids) == sorted(one.nspid for one in scene.own)
    assert ask_info(scene.first, pids, xfer=xfer) == {one.nspid: scene.memory[one.pid] for one in scene.own}
    assert programs.translators() == {
        abi.ViewKind.LIST: US,
        abi.ViewKind.INFO: US,
        abi.ViewKind.SAMPLES: UNDECIDED,
    }
    assert programs.counts()["hidden"] == 5


def test_a_process_that_cannot_be_seen_cannot_be_asked_about(scene: Scene) -> None:
    scene.set(scene.first, "none")
    ask_list(scene.first)
    assert ask_info(scene.first, [scene.host.pid, 1]) == {scene.host.pid: 0, 1: scene.memory[scene.first.pid]}


def test_what_somebody_else_changed_meanwhile_is_not_put_back(scene: Scene, programs: OnLibrary) -> None:
    scene.set(scene.first, "none")
    ask_list(scene.first)
    scene.first.set(meddle=4711)
    assert set(ask_info(scene.first, [1, 2])) == {4711, 2}
    assert programs.counts()["changed"] == 1


def test_the_host_sees_what_the_driver_says(scene: Scene, programs: OnLibrary) -> None:
    for translates in ("none", "all"):
        scene.set(scene.host, translates, {one.pid: one.pid for one in scene.all})
        assert ask_list(scene.host) == [one.pid for one in scene.all]
        assert ask_info(scene.host, [one.pid for one in scene.all]) == scene.memory
        pids, left, now = ask_samples(scene.host)
        assert now == left and pids > set(scene.memory)
    assert set(programs.translators().values()) == {UNDECIDED}
    assert not any(programs.counts().values())


@pytest.mark.parametrize("size", [55888, 50704, 34000])
def test_samples_name_no_process_that_cannot_be_seen(scene: Scene, size: int) -> None:
    scene.set(scene.first, "none")
    pids, left, now = ask_samples(scene.first, size)
    assert pids == {one.nspid for one in scene.own} | {0, model.NO_PID}
    book = model.Book({one.pid: one.nspid for one in scene.own})
    assert now == model.found(model.SAMPLES, size, b"", left, book, is_ok=True) != left


def test_a_namespace_above_sees_the_processes_below_by_its_own_numbers(scene: Scene) -> None:
    below = scene.actors.start(scene.own[1], in_namespace=True)
    scene.all.append(below)
    scene.memory[below.pid] = 99 * MIB
    status = Path(f"/proc/{below.pid}/status").read_text()
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    assert [int(numbers[0]), int(numbers[2])] == [below.pid, below.nspid] == [below.pid, 1]
    scene.set(scene.first, "none")
    assert int(numbers[1]) in (pids := ask_list(scene.first)) and len(pids) == 4
    assert ask_info(scene.first, [int(numbers[1])]) == {int(numbers[1]): 99 * MIB}
    scene.set(below, "none")
    assert ask_list(below) == [1]
    assert ask_info(below, [1, 2]) == {1: 99 * MIB, 2: 0}


@pytest.mark.parametrize("translates", ["list", "info", "all"])
def test_what_the_driver_translates_is_left_alone(scene: Scene, programs: OnLibrary, translates: str) -> None:
    scene.set(scene.first, translates)
    mine = {one.nspid: scene.memory[one.pid] for one in scene.own}
    by = dict(zip(abi.ViewKind, [DRIVER if on else US for on in TRANSLATES[translates]], strict=True))
    for attempt in range(3):
        assert sorted(ask_list(scene.first)) == sorted(mine)
        answer = ask_info(scene.first, list(mine))
        if attempt or by[abi.ViewKind.INFO] is DRIVER:  # ours from the second: the first shows that it is
            assert answer == mine
        assert set(answer) == set(mine)
        pids, left, now = ask_samples(scene.first)
        assert (now == left) == (by[abi.ViewKind.SAMPLES] is DRIVER)
        assert pids >= set(mine)
    assert programs.translators() == by
    assert programs.counts()["conflict"] == 0


def test_a_driver_that_turns_out_to_translate_is_believed_for_ever(scene: Scene, programs: OnLibrary) -> None:
    programs.set_translator(US)
    scene.set(scene.first, "all")
    mine = {one.nspid: scene.memory[one.pid] for one in scene.own}
    ask_list(scene.first)
    assert set(ask_info(scene.first, list(mine))) == set(mine)  # a wrong guess makes no wrong pid
    ask_samples(scene.first)
    assert set(programs.translators().values()) == {DRIVER}
    assert programs.counts()["conflict"] == 3
    scene.set(scene.first, "none")
    assert sorted(ask_list(scene.first)) == sorted(one.pid for one in scene.all)


def test_a_list_that_could_be_either_decides_nothing(scene: Scene, programs: OnLibrary) -> None:
    """Only numbers that are also pids in the caller's namespace: the driver may have translated unheard."""
    scene.set(scene.first, "none")
    scene.first.set(procs=3, pid=[one.nspid for one in scene.own])
    assert ask_list(scene.first) == [one.nspid for one in scene.own]
    assert set(programs.translators().values()) == {UNDECIDED}


def test_a_process_is_forgotten_when_it_ends_and_not_when_a_thread_does(scene: Scene) -> None:
    scene.set(scene.first, "none")
    gone = scene.own[2]
    gone.thread()
    assert len(ask_list(scene.first)) == 3
    os.kill(gone.pid, 9)
    wait_until(lambda: len(ask_list(scene.first)) == 2, 30, "the dead process is not listed")
    assert gone.nspid not in ask_list(scene.first)


def test_processes_older_than_the_programs_are_taken_from_proc(programs: OnLibrary, actors: Actors) -> None:
    from fairsched.driver.namespaces import Places

    scene = Scene(actors)
    programs.start()
    places = Places()
    for actor in scene.all:
        programs.enter(actor.pid, places.of(actor.pid))
    assert places.of(scene.host.pid) == []
    scene.set(scene.first, "none")
    assert sorted(ask_list(scene.first)) == sorted(one.nspid for one in scene.own)


@pytest.mark.timeout(600 + GARBAGE / 20)
@pytest.mark.parametrize("by", [US, DRIVER])
def test_garbage_changes_no_byte_but_pids(
    scene: Scene, programs: OnLibrary, by: abi.ViewBy, record: Record
) -> None:
    programs.set_translator(by)
    scene.set(scene.first, "none")
    nr_of = [[one.pid, one.nspid] for one in scene.own]
    assert scene.first.garbage(1, GARBAGE, nr_of, by is US) == []
    counts = programs.counts()
    assert (counts["lists"] > 0) == (counts["bad_number"] > 0) == (by is US)
    assert counts["bad_read"] > 0
    assert counts["return_lost"] == counts["conflict"] == counts["call_full"] == counts["bad_write"] == 0
    record("pid view: garbage", "works", f"{GARBAGE:,} random calls, no byte changed that is not a pid")


def test_a_return_that_was_not_seen_is_counted_and_harms_no_later_call(
    programs: OnLibrary, actors: Actors
) -> None:
    programs.set_translator(US)
    programs.watch_exits()
    programs._put("on_rm_enter", "nvidia_unlocked_ioctl", is_return=False)
    scene = Scene(actors)
    scene.set(scene.first, "none")
    assert set(ask_info(scene.first, [1])) == {scene.first.pid}  # the host's: as without us, and counted
    programs._put("on_rm_return", "nvidia_unlocked_ioctl", is_return=True)
    asked = bytearray(model.INFO_SIZE)
    model.put_u32(asked, 0, 201)  # too many: nothing of it is ours, and nothing of the one before is put back
    model.put_u32(asked, 8, scene.first.pid)
    assert scene.first.call(model.INFO, asked.hex())[3] == asked.hex()
    assert programs.counts()["return_lost"] == 1
    mine = {one.nspid: scene.memory[one.pid] for one in scene.own}
    assert sorted(ask_list(scene.first)) == sorted(mine)
    assert ask_info(scene.first, list(mine)) == mine
    assert programs.counts()["return_lost"] == 1


def test_closing_puts_back_nothing_and_leaves_nothing(scene: Scene, programs: OnLibrary) -> None:
    programs.set_translator(US)
    scene.set(scene.first, "none")
    assert len(ask_list(scene.first)) == 3
    programs.close()
    assert len(ask_list(scene.first)) == 8
    programs.close()
