# SPDX-License-Identifier: Apache-2.0
"""VRAM by cgroup, as the limit reads it: of a cgroup's processes and of all below, however they come and go."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.driver.vram_gate import CgroupLimit, VramGate
from tests.node.driver.conftest import Actor, Site
from tests.support import wait_until

MIB = 1 << 20
MakeCgroup = Callable[[str], Path]
StartActor = Callable[..., Actor]


@pytest.fixture
def gate(site: Site) -> Iterator[VramGate]:
    one = site.probe.vram_gate()
    yield one
    one.close()


def wanted(site: Site, groups: list[Path]) -> dict[Path, list[int]]:
    """What the engine gave to the processes of each cgroup and of those below, by GPU."""
    tops = {}
    for group in groups:
        pids = {int(pid) for procs in group.rglob("cgroup.procs") for pid in procs.read_text().split()}
        pids |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        has = [0, 0]
        for (pid, gpu), (_, vram_bytes) in site.truth().items():
            if pid in pids:
                has[gpu] += vram_bytes
        tops[group] = has
    return tops


def said(gate: VramGate, groups: list[Path]) -> dict[Path, list[int]]:
    sums = gate.sums()
    return {group: sums.get(group.stat().st_ino, [0, 0])[:2] for group in groups}


def test_sums_of_a_tree_equal_the_engines(
    site: Site, gate: VramGate, cgroup: MakeCgroup, start_actor: StartActor
) -> None:
    draw = random.Random(3)
    groups = [cgroup("t"), cgroup("t/a"), cgroup("t/a/b"), cgroup("t/c")]
    actors = [start_actor(group) for group in groups for _ in range(2)]
    for number, actor in enumerate(actors):
        actor.do(f"cuda.open({number % 2})")
    addresses: dict[Actor, list[str]] = {actor: [] for actor in actors}
    for step in range(200):
        actor = draw.choice(actors)
        if addresses[actor] and draw.random() < 0.4:
            actor.do(f"cuda.free({addresses[actor].pop()})")
        else:
            addresses[actor].append(actor.do(f"cuda.alloc({draw.randrange(1, 4 * MIB)})"))
        if step % 20 == 0:
            assert said(gate, groups) == wanted(site, groups)
    for actor in actors[::3]:
        actor.do("cuda.close()")
    assert said(gate, groups) == wanted(site, groups)
    for actor in actors[:5]:
        actor.end()
    wait_until(lambda: site.seen() == site.truth(), 20, "the dead are out of the books")
    wait_until(lambda: said(gate, groups) == wanted(site, groups), 20, "and out of the sums")
    assert any(any(has) for has in said(gate, groups).values())
    for actor in actors[5:]:
        actor.end()
    wait_until(lambda: site.seen() == {}, 20, "everybody is out of the books")
    wait_until(lambda: not any(map(any, said(gate, groups).values())), 20, "and out of the sums")


def test_a_process_that_moves_takes_nothing_along(
    site: Site, gate: VramGate, cgroup: MakeCgroup, start_actor: StartActor
) -> None:
    here, there = cgroup("here"), cgroup("there")
    actor = start_actor(here)
    actor.do("cuda.open()")
    actor.do(f"cuda.alloc({MIB})")
    (there / "cgroup.procs").write_text(str(actor.pid))
    actor.do(f"cuda.alloc({2 * MIB})")
    assert said(gate, [here, there]) == {here: [3 * MIB, 0], there: [0, 0]}


def test_sums_of_cgroups_that_are_gone_are_dropped(
    site: Site, gate: VramGate, cgroup: MakeCgroup, start_actor: StartActor
) -> None:
    group = cgroup("short")
    number = group.stat().st_ino
    actor = start_actor(group)
    actor.do("cuda.open()")
    actor.do(f"cuda.alloc({MIB})")
    gate.forget([number])
    assert gate.sums()[number][0] == MIB, "what has memory is kept"
    actor.end()
    wait_until(lambda: (actor.pid, 0) not in site.seen(), 20, "it is out of the books")
    gate.forget([number])
    assert number not in gate.sums()


def test_a_kernel_that_takes_no_such_program_says_so(site: Site, gate: VramGate, cgroup: MakeCgroup) -> None:
    if gate.refuses:
        pytest.skip("this kernel takes it: see tests/vm")
    gate.set_limits([CgroupLimit("a", MIB, (os.stat(cgroup("a")).st_ino,))])
    assert not gate.refuses
    assert list(gate.unlimited) == ["a"] and gate.unlimited["a"]
