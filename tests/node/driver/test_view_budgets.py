# SPDX-License-Identifier: Apache-2.0
"""One tenant fills the book of pids, or has as many calls in the driver as there is room for.

On a driver in user space, with programs that read where the real ones write: this kernel need not let them. tests/vm
has the real ones.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.bpf import abi, syscall
from fairsched.bpf.abi import Table, ViewBy
from tests.support import wait_until
from tests.vm import view_actor as model
from tests.vm.test_pid_view_calls import HERE, Actor, Actors, OnLibrary

HOG, GOOD = 1, 2
RESERVE, SHARED = 2, 2
CEILING = RESERVE + SHARED // 2
COUNT = 6
"""Processes of the hog: more than there is room for in all."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("driver") / "driver.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, HERE / "fake_driver.c"], check=True)
    return str(path)


@pytest.fixture
def programs(library: str) -> Iterator[OnLibrary]:
    OnLibrary.library = library
    found = OnLibrary({"FS_NO_WRITE": 1})
    found.set_translator(ViewBy.US)
    found.start()
    limits = found.rooms.limits
    for table in (Table.PIDS, Table.CALLS):
        limits.reserve[table], limits.ceiling[table], limits.shared[table] = RESERVE, CEILING, SHARED
    yield found
    found.close()


@pytest.fixture
def actors(library: str) -> Iterator[Actors]:
    found = Actors(library)
    yield found
    found.close()


@pytest.fixture
def tenants(
    programs: OnLibrary, actors: Actors, cgroup: Callable[[str], Path]
) -> dict[int, Callable[[], Actor]]:
    """How to start a process of each, in a PID namespace of its tenant's."""

    def begin(owner: int, name: str) -> Callable[[], Actor]:
        path, parent = cgroup(name), actors.start(in_namespace=True)
        (path / "cgroup.procs").write_text(str(parent.pid))
        programs.rooms.set_owner(path.stat().st_ino, owner)
        return lambda: actors.start(parent)

    return {HOG: begin(HOG, "view-hog"), GOOD: begin(GOOD, "view-good")}


def is_known(programs: OnLibrary, actor: Actor) -> bool:
    namespace = Path(f"/proc/{actor.pid}/ns/pid").stat().st_ino
    found = abi.PidNr()
    try:
        syscall.lookup(programs._fds["nr_by_tgid"], abi.PidKey(namespace, actor.pid), found)
    except FileNotFoundError:
        return False
    by_nr = ctypes.c_uint32()
    syscall.lookup(programs._fds["tgid_by_nr"], abi.PidKey(namespace, actor.nspid), by_nr)
    assert (found.nr, by_nr.value) == (actor.nspid, actor.pid)
    return True


def test_whose_processes_fill_the_book_has_its_part_of_it_and_the_others_theirs(
    programs: OnLibrary, actors: Actors, tenants: dict[int, Callable[[], Actor]]
) -> None:
    crowd = [tenants[HOG]() for _ in range(COUNT)]
    assert [is_known(programs, one) for one in crowd] == [True] * CEILING + [False] * (COUNT - CEILING)
    assert is_known(programs, tenants[GOOD]()), "who comes later is written down"
    hog, good = (programs.rooms.budget(owner) for owner in (HOG, GOOD))
    assert (hog.used[Table.PIDS], good.used[Table.PIDS]) == (CEILING, 1)
    assert hog.refused[Table.PIDS] >= COUNT - CEILING and good.refused[Table.PIDS] == 0
    assert programs.counts()["over_budget"] == hog.refused[Table.PIDS]
    actors.close()
    wait_until(
        lambda: hog.used[Table.PIDS] == good.used[Table.PIDS] == 0, 20, "nobody is charged for the dead"
    )
    assert programs.rooms.limits.shared_used[Table.PIDS] == 0


def ask(actor: Actor) -> None:
    """About itself."""
    asked = bytearray(model.INFO_SIZE)
    model.put_u32(asked, 0, 1)
    model.put_u32(asked, 8, actor.nspid)
    actor.call(model.INFO, bytes(asked).hex())


def test_who_has_too_many_calls_in_the_driver_keeps_nobody_elses_answers_as_they_were(
    programs: OnLibrary, tenants: dict[int, Callable[[], Actor]]
) -> None:
    hog, good = tenants[HOG](), tenants[GOOD]()
    budget = programs.rooms.budget(HOG)
    ask(hog)
    assert programs.counts()["infos"] == 1 and budget.used[Table.CALLS] == 0, "the call is over"
    budget.used[Table.CALLS] = CEILING  # as if so many of its threads were in the driver
    ask(hog)
    assert programs.counts()["infos"] == 1, "the driver was shown what it asked"
    assert budget.refused[Table.CALLS] == 1 and budget.used[Table.CALLS] == CEILING
    ask(good)
    assert programs.counts()["infos"] == 2
    assert programs.rooms.budget(GOOD).used[Table.CALLS] == 0


def test_older_processes_are_written_down_at_nobodys_charge_and_not_without_end(
    programs: OnLibrary, tenants: dict[int, Callable[[], Actor]]
) -> None:
    actor = tenants[GOOD]()
    before = programs.rooms.budget(GOOD).used[Table.PIDS]
    namespace = Path(f"/proc/{actor.pid}/ns/pid").stat().st_ino
    programs.enter(actor.pid, [(namespace, actor.nspid)])
    programs.strike(actor.pid, [(namespace, actor.nspid)])
    assert is_known(programs, actor), "what it is charged for itself stays"
    for number in range(abi.MAX_VIEW_OLDER):
        programs.enter(1 << 22 | number, [(7, number)])
    with pytest.raises(OSError, match="as many are written down"):
        programs.enter(1, [(7, 1)])
    programs.strike(1 << 22, [(7, 0)])
    programs.enter(1, [(7, 0)])
    assert programs.rooms.budget(GOOD).used[Table.PIDS] == before
    assert is_known(programs, tenants[GOOD]()), "the room of those that came since is not theirs"
