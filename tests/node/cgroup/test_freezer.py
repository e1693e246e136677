# SPDX-License-Identifier: Apache-2.0
"""The freezer on the real kernel, with real processes."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from fairsched.cgroup import tree
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.cgroup.probe import probe_host
from fairsched.cgroup.release import ReleaseKind, release_all
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.node.cgroup.conftest import Node

pytestmark = pytest.mark.node

SECOND_NS = 1_000_000_000


def hold(freezer: Freezer, ref: CgroupRef) -> HoldResult:
    return freezer.hold(ref, "chat", time.monotonic_ns() + 60 * SECOND_NS, "over_entitlement")


def settle(freezer: Freezer) -> list[HoldResult]:
    """What a daemon does: sleep until the freezer has news."""
    poll = select.poll()
    poll.register(freezer.fileno(), select.POLLIN)
    end = time.monotonic() + 30
    while not (changes := freezer.settle()):
        assert time.monotonic() < end, "the freezer has no news"
        poll.poll(1000)
    return changes


def test_host_can_freeze_and_sees_foreign_writes(node: Node) -> None:
    facts = probe_host()
    assert (facts.has_freeze, facts.can_freeze, facts.sees_foreign_writes) == (True, True, True), facts.why
    assert facts.freeze_latency_ns is not None
    assert f"fairsched.probe.{os.getpid()}" not in os.listdir(node.mount.path)


def test_held_process_stands_still_and_goes_on_after_the_thaw(node: Node, freezer: Freezer) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    before_ns = time.monotonic_ns()
    assert hold(freezer, ref).kind is HoldKind.HELD
    (change,) = settle(freezer)
    assert change.kind is HoldKind.SETTLED
    assert change.latency_ns is not None
    assert 0 < change.latency_ns <= time.monotonic_ns() - before_ns
    count = worker.count()
    assert node.is_frozen(ref)
    second = node.worker_in(node.make("b"))  # 50 ms of somebody else's progress
    second.expect_progress()
    assert worker.count() == count
    assert freezer.thaw(ref.id).kind is HoldKind.THAWED
    worker.expect_progress()
    assert freezer.latency_ns(ref.id) == change.latency_ns


def test_process_that_enters_a_held_cgroup_is_held_too(node: Node, freezer: Freezer) -> None:
    ref = node.make("a")
    hold(freezer, ref)
    assert settle(freezer)[0].kind is HoldKind.SETTLED  # an empty cgroup rests at once
    worker = node.worker_in(ref)
    wait_until(lambda: node.is_frozen(ref), 30, "the newcomer is frozen")
    freezer.thaw(ref.id)
    worker.expect_progress()


def test_held_process_can_be_killed(node: Node, freezer: Freezer) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    hold(freezer, ref)
    settle(freezer)
    worker.process.kill()
    assert worker.process.wait(30) == -9
    assert freezer.settle() == []
    assert freezer.thaw(ref.id).kind is HoldKind.THAWED


def test_foreign_pause_stays_through_hold_release_and_close(
    node: Node, freezer: Freezer, journal: Journal
) -> None:
    ref = node.make("a")
    node.worker_in(ref)
    node.pause(ref)
    assert hold(freezer, ref).kind is HoldKind.FOREIGN
    assert release_all(journal, node.mount) == []
    freezer.close()
    assert node.is_asked(ref)


def test_pause_of_a_parent_is_foreign(node: Node, freezer: Freezer) -> None:
    child = node.make("parent/child")
    node.worker_in(child)
    with CgroupRef.open(node.mount, os.path.dirname(child.path)) as parent:
        node.pause(parent)
        wait_until(lambda: node.is_frozen(child), 30, "the child is frozen by its parent")
        assert not node.is_asked(child)
        assert hold(freezer, child).kind is HoldKind.FOREIGN
        assert not node.is_asked(child)


@pytest.mark.parametrize("is_settled", [True, False])
def test_pause_during_our_hold_is_handed_over(
    node: Node, freezer: Freezer, journal: Journal, is_settled: bool
) -> None:
    ref = node.make("a")
    node.worker_in(ref)
    hold(freezer, ref)
    if is_settled:
        assert settle(freezer)[0].kind is HoldKind.SETTLED
    node.pause(ref)  # nothing changes: the file is 1 already
    assert HoldKind.FOREIGN in [change.kind for change in settle(freezer)]
    assert freezer.thaw(ref.id).kind is HoldKind.NOT_HELD
    assert release_all(journal, node.mount) == []
    assert node.is_asked(ref)


def test_unpause_during_our_hold_ends_it(node: Node, freezer: Freezer, journal: Journal) -> None:
    ref = node.make("a")
    worker = node.worker_in(ref)
    hold(freezer, ref)
    settle(freezer)
    node.pause(ref, "0")
    assert [change.kind for change in settle(freezer)] == [HoldKind.RELEASED]
    assert journal.entries() == []
    worker.expect_progress()


@pytest.mark.parametrize("noticed_by", ["settle", "thaw"])
def test_cgroup_removed_in_mid_hold_is_data(
    node: Node, freezer: Freezer, journal: Journal, noticed_by: str
) -> None:
    ref = node.make("a")
    hold(freezer, ref)
    settle(freezer)
    tree.remove(node.mount, ref)
    if noticed_by == "settle":
        assert [change.kind for change in settle(freezer)] == [HoldKind.GONE]
    else:
        assert freezer.thaw(ref.id).kind is HoldKind.GONE
    assert hold(freezer, ref).kind is HoldKind.GONE
    assert (freezer.holds, journal.entries()) == ({}, [])


def test_cgroup_recreated_in_mid_hold_is_another_and_not_thawed(
    node: Node, freezer: Freezer, journal: Journal
) -> None:
    ref = node.make("a")
    hold(freezer, ref)
    settle(freezer)
    tree.remove(node.mount, ref)
    namesake = node.make("a")
    assert namesake.id != ref.id
    node.pause(namesake)
    assert [result.kind for result in release_all(journal, node.mount)] == [ReleaseKind.GONE]
    assert freezer.thaw(ref.id).kind is HoldKind.GONE
    assert node.is_asked(namesake)


def test_kernel_does_not_rename_cgroups(node: Node) -> None:
    ref = node.make("a")
    path, other = node.mount.absolute(ref.path), node.mount.absolute(node.make("b").path)
    for elsewhere in (f"{path}2", f"{other}/a"):
        with pytest.raises(OSError, match="not permitted") as caught:
            os.rename(path, elsewhere)
        assert caught.value.errno == errno.EPERM
        assert not os.path.exists(elsewhere)


def test_gang_with_a_foreign_member_runs_on(node: Node, freezer: Freezer, journal: Journal) -> None:
    refs = [node.make(name) for name in ("a", "b", "c")]
    workers = [node.worker_in(ref) for ref in refs]
    node.pause(refs[2])
    gang = freezer.hold_gang(refs, "train", time.monotonic_ns() + 60 * SECOND_NS, "x")
    assert gang.kind is HoldKind.FOREIGN
    assert [node.is_asked(ref) for ref in refs] == [False, False, True]
    assert journal.entries() == []
    workers[0].expect_progress()
    workers[1].expect_progress()
    node.pause(refs[2], "0")
    assert freezer.hold_gang(refs, "train", time.monotonic_ns() + 60 * SECOND_NS, "x").kind is HoldKind.HELD
    wait_until(lambda: freezer.settle() == [] and all(map(node.is_frozen, refs)), 30, "the gang rests")


def test_holds_of_a_dead_process_are_found_and_released_once(
    node: Node, freezer: Freezer, journal: Journal
) -> None:
    refs = [node.make(name) for name in ("a", "b")]
    workers = [node.worker_in(ref) for ref in refs]
    for ref in refs:
        hold(freezer, ref)
    settle(freezer)
    results = release_all(journal, node.mount)
    assert [result.kind for result in results] == [ReleaseKind.THAWED] * 2
    for worker in workers:
        worker.expect_progress()
    assert release_all(journal, node.mount) == []
    assert {change.kind for change in settle(freezer)} == {HoldKind.RELEASED}


def test_the_cgroup_of_a_process_is_known_and_those_above_list_it(node: Node, mount: Mount) -> None:
    ref = node.make("a/b")
    worker = node.worker_in(ref)
    assert tree.cgroup_path_of(worker.pid, mount) == ref.path
    with CgroupRef.open(mount, os.path.dirname(ref.path)) as parent:
        assert tree.read_pids(parent) == []
    assert tree.read_pids_recursive(mount, node.top) == [worker.pid]


def test_place_puts_a_new_program_into_its_cgroup_before_it_runs(node: Node, mount: Mount) -> None:
    ref = node.make("a")
    out = subprocess.run(
        ["cat", "/proc/self/cgroup"], preexec_fn=lambda: tree.place(ref), capture_output=True, text=True
    )
    assert f"0::{ref.path}\n" in out.stdout


def test_look_at_a_thousand_cgroups_is_cheap(node: Node, mount: Mount) -> None:
    for slice_number in range(20):
        for number in range(50):
            tree.create(mount, f"{node.top}/s{slice_number}/c{number}").close()
    costs_s = []  # of the processor: other programs can only add to it (cold caches), so the least is the cost
    for _ in range(5):
        start_s = time.thread_time()
        nodes = list(tree.walk(mount, node.top))
        costs_s.append(time.thread_time() - start_s)
        assert len(nodes) == 1000 + 20 + 1  # and the probe's own
    assert min(costs_s) < 0.2, "6 to 8 ms where nothing else runs; once a second this would be 20 % of a core"
