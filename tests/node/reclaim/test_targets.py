# SPDX-License-Identifier: Apache-2.0
"""Two hundred processes that are hard to end: each is ended or explained, and no bystander is touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairsched.cgroup.names import Names
from fairsched.cgroup.path import Mount
from fairsched.cgroup.tree import cgroup_path_of
from fairsched.protocol.process import ProcessStatus
from fairsched.reclaim.end import Ended, Ending, Fate
from fairsched.reclaim.facts import read_table
from fairsched.reclaim.holder import Holder, Listing
from fairsched.reclaim.pauses import pauses_of
from fairsched.reclaim.pin import Pin
from fairsched.reclaim.plan import Plan, make_plan
from fairsched.reclaim.protect import protected
from tests.support import wait_until

KINDS = (
    "plain",
    "frozen",
    "zombie",
    "uninterruptible",
    "forking",
    "deaf",
    "traced",
    "namespace",
    "headless",
    "stopped",
)
EACH = 20
GPU = "GPU-test"


@dataclass
class Crowd:
    """Targets by kind, and bystanders that are in the same cgroups, groups and sessions."""

    targets: dict[int, str]
    bystanders: list[int]


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "gone"


@pytest.fixture
def crowd(program: Path, cgroup: Path, request: pytest.FixtureRequest) -> Iterator[Crowd]:
    (frozen := cgroup / "frozen").mkdir()
    started: list[subprocess.Popen[bytes]] = []
    found = Crowd({}, [])

    def start(kind: str, where: Path, *before: str) -> subprocess.Popen[bytes]:
        def enter() -> None:
            (where / "cgroup.procs").write_text("0")

        process = subprocess.Popen([*before, program, kind], stdout=subprocess.PIPE, preexec_fn=enter)
        started.append(process)
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        return process

    try:
        for _ in range(getattr(request, "param", EACH)):
            found.bystanders.append(start("plain", cgroup).pid)
            found.bystanders.append(start("plain", frozen).pid)
            for kind in KINDS:
                before = ("unshare", "--pid", "--fork") if kind == "namespace" else ()
                parent = start(kind, frozen if kind == "frozen" else cgroup, *before).pid
                if kind in ("zombie", "traced", "namespace"):
                    wait_until(lambda parent=parent: children_of(parent), 10, "it has its child")
                    found.targets[children_of(parent)[0]] = kind
                    if kind != "namespace":  # unshare ends with its child
                        found.bystanders.append(parent)
                else:
                    found.targets[parent] = kind
                if kind == "stopped":
                    os.kill(parent, signal.SIGSTOP)
        states = {"zombie": "Z", "traced": "t", "stopped": "T", "uninterruptible": "D", "headless": "Z"}
        for pid, kind in found.targets.items():
            if kind in states:
                wait_until(
                    lambda pid=pid, kind=kind: state_of(pid) in (states[kind], "T"), 10, f"{pid} is {kind}"
                )
        (frozen / "cgroup.freeze").write_text("1")
        wait_until(lambda: "frozen 1" in (frozen / "cgroup.events").read_text(), 10, "it is frozen")
        yield found
    finally:
        (frozen / "cgroup.freeze").write_text("0")
        for process in started:
            process.kill()
        (cgroup / "cgroup.kill").write_text("1")
        for process in started:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        wait_until(lambda: "populated 0" in (cgroup / "cgroup.events").read_text(), 30, "nobody is left")
        frozen.rmdir()


def reclaim(
    crowd: Crowd, mount: Mount, tmp_path: Path, *, is_forced: bool, grace_s: float, keep: bool = False
) -> tuple[Plan, list[Ended]]:
    """As a session does, with a GPU that all targets are said to hold."""
    table = read_table(mount)
    holders = tuple(Holder(ProcessStatus(pid, GPU), table[pid], is_listed=True) for pid in crowd.targets)
    names = Names(str(tmp_path))

    def pauses(processes):  # type: ignore[no-untyped-def]
        return pauses_of(processes, mount, tmp_path, names)

    never = protected(table, has_answer=True)
    listing = Listing(holders, (), table)
    plan = make_plan(holders, listing, never, pauses=pauses(table.values()), keep_parent=keep)
    pins = {one.pid: pin for one in plan.targets if (pin := Pin.open(one.pid, one.facts.start_ticks))}
    ending = Ending(plan.targets, pins, is_forced=is_forced, mount=mount, pauses=pauses, protected=never)
    with contextlib.closing(ending):
        return plan, ending.run(grace_s, 10.0)


@pytest.mark.rest
def test_two_hundred_targets_are_ended_or_explained_and_nobody_else(
    crowd: Crowd, mount: Mount, tmp_path: Path, cgroup: Path
) -> None:
    plan, results = reclaim(crowd, mount, tmp_path, is_forced=True, grace_s=1.0)
    fates = {one.target.pid: one for one in results}
    left = {one.pid: one for one in plan.left}
    assert len(crowd.targets) == 200
    for pid, kind in crowd.targets.items():
        if kind == "zombie":
            assert "defunct already: it goes when its parent" in left[pid].why
        else:
            assert fates[pid].fate.is_over, (kind, fates[pid])
            assert state_of(pid) in ("gone", "Z"), kind
    kinds = {
        kind: {fates[pid].fate for pid, one in crowd.targets.items() if one == kind and pid in fates}
        for kind in KINDS
    }
    assert kinds["plain"] == kinds["headless"] == {Fate.ENDED}
    assert kinds["frozen"] == kinds["deaf"] == kinds["stopped"] == kinds["forking"] == {Fate.KILLED}
    assert [pid for pid in crowd.bystanders if state_of(pid) == "gone"] == []
    assert [pid for pid in crowd.bystanders if state_of(pid) == "Z"] == []
    assert "frozen 1" in (cgroup / "frozen/cgroup.events").read_text(), "somebody else's pause stays"
    forked = {
        facts.pid for facts in read_table(mount).values() if facts.name == "targets" and not facts.is_zombie
    }
    assert forked <= {*crowd.bystanders, *map_children(crowd.bystanders)}, (
        "who was forked meanwhile has ended, too"
    )


def map_children(pids: list[int]) -> list[int]:
    return [child for pid in pids if state_of(pid) != "gone" for child in children_of(pid)]


@pytest.mark.parametrize("crowd", [1], indirect=True)
def test_without_force_whoever_stays_is_explained(
    crowd: Crowd, mount: Mount, tmp_path: Path, cgroup: Path
) -> None:
    plan, results = reclaim(crowd, mount, tmp_path, is_forced=False, grace_s=0.5)
    why = {
        crowd.targets[one.target.pid]: one.why
        for one in results
        if one.fate is Fate.ALIVE and one.target.pid in crowd.targets
    }
    assert set(why) == {*KINDS} - {"plain", "zombie", "headless"}
    frozen = f"{cgroup}/frozen"
    assert why["frozen"].endswith(f"and left so; to thaw it: echo 0 > {frozen}/cgroup.freeze; or --force")
    assert "kill -CONT" in why["stopped"]
    assert "its tracer" in why["traced"]
    assert why["deaf"] == why["namespace"] == "SIGTERM does nothing to it: --force"
    assert "(D" in why["uninterruptible"]
    notes = {crowd.targets[one.pid]: " ".join(one.notes) for one in plan.targets if one.pid in crowd.targets}
    assert "the first process of its container" in notes["namespace"]
    assert "frozen by somebody else" in notes["frozen"]


def test_a_sigterm_that_waits_in_a_frozen_cgroup_is_delivered_at_the_thaw(
    program: Path, mount: Mount, tmp_path: Path, cgroup: Path
) -> None:
    def enter() -> None:
        (cgroup / "cgroup.procs").write_text("0")

    with subprocess.Popen([program, "frozen"], stdout=subprocess.PIPE, preexec_fn=enter) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        (cgroup / "cgroup.freeze").write_text("1")
        wait_until(lambda: "frozen 1" in (cgroup / "cgroup.events").read_text(), 10, "it is frozen")
        _, (result,) = reclaim(
            Crowd({process.pid: "frozen"}, []), mount, tmp_path, is_forced=False, grace_s=0.3
        )
        assert result.fate is Fate.ALIVE
        assert process.poll() is None and "frozen 1" in (cgroup / "cgroup.events").read_text()
        (cgroup / "cgroup.freeze").write_text("0")
        assert process.wait(30) == 0, "its handler ran"


def test_who_is_forked_while_its_parent_is_being_killed_ends_too(
    program: Path, mount: Mount, tmp_path: Path, cgroup: Path
) -> None:
    def enter() -> None:
        (cgroup / "cgroup.procs").write_text("0")

    with subprocess.Popen([program, "storm"], stdout=subprocess.PIPE, preexec_fn=enter) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        _, results = reclaim(Crowd({process.pid: "storm"}, []), mount, tmp_path, is_forced=True, grace_s=0.1)
        process.wait(30)
    assert all(one.fate.is_over for one in results) and len(results) > 1
    wait_until(lambda: not (cgroup / "cgroup.procs").read_text(), 5, "all that it has forked has ended")


def test_keep_parent_ends_what_is_below(program: Path, mount: Mount, tmp_path: Path, cgroup: Path) -> None:
    def enter() -> None:
        (cgroup / "cgroup.procs").write_text("0")

    with subprocess.Popen([program, "family"], stdout=subprocess.PIPE, preexec_fn=enter) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        (child,) = children_of(process.pid)
        assert cgroup_path_of(child, mount) == f"/{cgroup.name}"
        plan, results = reclaim(
            Crowd({process.pid: ""}, []), mount, tmp_path, is_forced=True, grace_s=5, keep=True
        )
        assert [one.target.pid for one in results] == [child] and results[0].fate is Fate.ENDED
        assert plan.left[0].why == "kept: --keep-parent" and plan.is_whole
        assert process.poll() is None
        process.kill()
