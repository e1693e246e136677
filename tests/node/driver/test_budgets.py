# SPDX-License-Identifier: Apache-2.0
"""One tenant fills a table of the driver's books. It gets its part, all others theirs, and when it has ended nothing is
charged to anybody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.bpf import abi
from fairsched.bpf.abi import Table
from fairsched.driver.vram_gate import VramGate
from tests.node.driver.conftest import Actor, Site
from tests.node.driver.crowd import Crowd, build
from tests.support import wait_until

MIB = 1 << 20
HOG, GOOD = 1, 2
RESERVE, SHARED = 12, 20
CEILING = RESERVE + SHARED // 2
COUNT = 60
"""Of what the hog makes: more than there is in all."""
TABLES = (Table.CLIENTS, Table.OBJECTS, Table.CALLERS, Table.THREADS, Table.CGROUPS)
PLAYS = {
    "clients": Table.CLIENTS,
    "files": Table.CLIENTS,
    "objects": Table.OBJECTS,
    "threads": Table.THREADS,
    "cgroups": Table.CGROUPS,
}
"""And the table each of them fills."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("crowd"))


@pytest.fixture
def tenants(site: Site, cgroup: Callable[[str], Path]) -> Iterator[tuple[Path, Path]]:
    """Cgroups of a hog and of a good one; everybody's part of each table is small."""
    wait_until(lambda: site.look().uses == () and forget_all(site), 20, "nobody has anything")
    paths = cgroup("hog"), cgroup("good")
    limits, rooms = site.probe.rooms.limits, site.probe.rooms
    for table in TABLES:
        limits.reserve[table], limits.ceiling[table], limits.shared[table] = RESERVE, CEILING, SHARED
    for number, path in zip((HOG, GOOD), paths, strict=True):
        rooms.set_owner(path.stat().st_ino, number)
        clear(rooms.budget(number))
    yield paths
    for path in paths:
        rooms.forget_owner(path.stat().st_ino)
    rooms.share(1)


def clear(budget: abi.Budget) -> None:
    for table in Table:
        budget.refused[table] = budget.refused_ns[table] = 0


def has(site: Site, owner: int) -> dict[str, int]:
    used = site.probe.rooms.budget(owner).used
    return {table.name: used[table] for table in TABLES if used[table]}


def refused(site: Site, owner: int) -> set[Table]:
    budget = site.probe.rooms.budget(owner)
    return {table for table in Table if budget.refused[table]}


def forget_all(site: Site) -> bool:
    """What is gone is forgotten; whether nobody is charged for anything any more."""
    site.books._sweep._refusals = -1  # as if somebody had no room: else objects wait until there are many
    site.look()
    sums: VramGate = site.probe.vram_gate()
    sums.forget(sums.sums())
    return has(site, HOG) == has(site, GOOD) == {}


@pytest.mark.parametrize("play", PLAYS)
def test_who_fills_a_table_has_its_part_of_it_and_the_others_have_theirs(
    site: Site,
    tenants: tuple[Path, Path],
    program: Path,
    start_actor: Callable[..., Actor],
    play: str,
) -> None:
    hog, good = tenants
    node = site.host.state_dir / "dev/nvidiactl"
    before = [*site.probe.rooms.limits.shared_used]
    crowd = Crowd(program, node, play, COUNT, hog)
    try:
        crowd.play()
        table = PLAYS[play]
        assert table in refused(site, HOG)
        assert has(site, HOG)[table.name] == CEILING
        actor = start_actor(good)
        actor.do("cuda.open(1)")
        actor.do(f"cuda.alloc({MIB})")
        assert site.seen()[actor.pid, 1] == (1, MIB), "who comes later is in the books"
        assert refused(site, GOOD) == set()
        assert [one.ioctls for one in site.look().calls if one.tgid == actor.pid] != []
        assert (crowd.process.pid in site.books.partial) == (play != "cgroups")
    finally:
        crowd.end()
    actor.end()
    wait_until(lambda: site.seen() == {}, 20, "both are out of the books")
    wait_until(lambda: forget_all(site), 20, "nothing is charged to either")
    assert [*site.probe.rooms.limits.shared_used] == before


def test_who_walks_through_cgroups_is_one_of_many_callers_and_no_more(
    site: Site, tenants: tuple[Path, Path], program: Path
) -> None:
    """What it called in each is an entry of its own, as long as it lives."""
    hog, _ = tenants
    crowd = Crowd(program, site.host.state_dir / "dev/nvidiactl", "cgroups", COUNT, hog)
    try:
        crowd.play()
        assert {Table.CALLERS, Table.CGROUPS} <= refused(site, HOG)
        assert site.probe.rooms.budget(HOG).used[Table.CALLERS] == CEILING
        assert sum(calls.tgid == crowd.process.pid for calls in site.look().calls) == CEILING - 1
    finally:
        crowd.end()


def test_strangers_share_a_part_of_their_own(
    site: Site, tenants: tuple[Path, Path], start_actor: Callable[..., Actor]
) -> None:
    before = site.probe.rooms.budget(abi.STRANGERS).used[Table.CLIENTS]
    actor = start_actor()
    actor.do("cuda.open(0)")
    assert site.probe.rooms.budget(abi.STRANGERS).used[Table.CLIENTS] == before + 2, "a client and its file"
    assert has(site, HOG) == has(site, GOOD) == {}
    assert os.getpid() not in site.books.partial
