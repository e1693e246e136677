# SPDX-License-Identifier: Apache-2.0
"""The contract of all brakes: each of these promises is asked of each of them."""

from __future__ import annotations

import dataclasses
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.brake import Brake
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.outcome import HoldKind, HoldResult
from fairsched.cgroup.path import CgroupRef
from fairsched.cgroup.release import ReleaseKind, release_all
from fairsched.errors import KernelRefused
from fairsched.guardian.loop import Keeper
from tests.support import FakeTree, wait_until
from tests.unit.cgroup.brake_stages import STAGES, Stage

SECOND_NS = 1_000_000_000
PATIENCE_S = 30.0


@pytest.fixture(params=STAGES.values(), ids=STAGES.keys())
def stage(request: pytest.FixtureRequest, fake: FakeTree, journal: Journal) -> Iterator[Stage]:
    stage = request.param(fake, journal)
    yield stage
    stage.end()


@pytest.fixture
def dead() -> ProcessId:
    """A daemon that was killed."""
    process = subprocess.Popen(["sleep", "600"])
    owner = ProcessId.of(process.pid)
    assert owner is not None
    process.kill()
    process.wait()
    return owner


@pytest.fixture
def guard(stage: Stage) -> Iterator[Callable[[ProcessId], Keeper]]:
    """Makes a guardian of the daemon that is named; it takes SIGTERM of this process meanwhile."""
    term = signal.getsignal(signal.SIGTERM)
    yield lambda daemon: Keeper(daemon, stage.journal, stage.mount, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, term)


def later_ns(seconds: float = 600) -> int:
    return time.monotonic_ns() + int(seconds * SECOND_NS)


def hold(brake: Brake, ref: CgroupRef, deadline_ns: int | None = None) -> HoldResult:
    return brake.hold(ref, "chat", deadline_ns or later_ns(), "over_entitlement")


def kinds(results: list[HoldResult]) -> list[HoldKind]:
    return [result.kind for result in results]


def settled(brake: Brake) -> list[HoldResult]:
    """What a daemon does: wait for the brake, then settle."""
    poll = select.poll()
    poll.register(brake.fileno(), select.POLLIN)
    changes: list[HoldResult] = []

    def has_changes() -> bool:
        poll.poll(10)
        changes.extend(brake.settle())
        return bool(changes)

    wait_until(has_changes, PATIENCE_S, "the brake has news")
    return changes


def leave_to(owner: ProcessId, stage: Stage) -> None:
    """The holds on record are another daemon's."""
    for entry in stage.journal.entries():
        assert isinstance(entry, Entry)
        stage.journal.write(dataclasses.replace(entry, daemon=owner))


def test_hold_and_thaw_leave_nothing_behind(stage: Stage) -> None:
    ref = stage.make("a")
    descriptors = len(os.listdir("/proc/self/fd"))
    assert hold(stage.brake, ref).kind is HoldKind.HELD
    assert stage.is_held("a")
    (entry,) = stage.journal.entries()
    assert entry == stage.brake.holds[ref.id]
    assert stage.brake.held_for("chat") == [ref.id] == list(stage.brake.held)
    assert hold(stage.brake, ref).kind is HoldKind.ALREADY_HELD
    assert stage.brake.thaw(ref.id).kind is HoldKind.THAWED
    assert not stage.is_held("a")
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})
    assert stage.brake.thaw(ref.id).kind is HoldKind.NOT_HELD
    assert stage.brake.settle() == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_hold_is_on_record_before_it_is_made(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, write, seen = stage.make("a"), stage.journal.write, list[bool]()

    def watching_write(entry: Entry) -> None:
        seen.append(stage.is_held("a"))
        write(entry)

    monkeypatch.setattr(stage.journal, "write", watching_write)
    hold(stage.brake, ref)
    assert seen
    assert not any(seen)
    assert stage.is_held("a")


def test_no_journal_no_hold(stage: Stage) -> None:
    ref = stage.make("a")
    shutil.rmtree(stage.journal.directory)
    Path(stage.journal.directory).write_text("a file in the way")
    with pytest.raises(KernelRefused):
        hold(stage.brake, ref)
    assert not stage.is_held("a")
    assert stage.brake.holds == {}


def test_a_deadline_that_has_passed_is_no_hold(stage: Stage) -> None:
    ref = stage.make("a")
    assert hold(stage.brake, ref, time.monotonic_ns()).kind is HoldKind.EXPIRED
    assert not stage.is_held("a")
    assert stage.journal.entries() == []


def test_holds_past_their_deadline_and_no_others_are_thawed(stage: Stage) -> None:
    refs = {name: stage.make(name) for name in "ab"}
    hold(stage.brake, refs["a"], later_ns(100))
    hold(stage.brake, refs["b"], later_ns(300))
    assert kinds(stage.brake.thaw_expired(later_ns(200))) == [HoldKind.THAWED]
    assert (stage.is_held("a"), stage.is_held("b")) == (False, True)


def test_leaving_the_brake_thaws_everything(stage: Stage) -> None:
    for name in "abc":
        hold(stage.brake, stage.make(name))
    assert kinds(stage.brake.close()) == [HoldKind.THAWED] * 3
    assert not any(stage.is_held(name) for name in "abc")
    assert stage.journal.entries() == []
    assert stage.brake.close() == []


def test_a_pause_by_somebody_else_stays_through_all_we_do(stage: Stage) -> None:
    ref = stage.make("a")
    stage.pause("a")
    stage.come_to_rest("a")
    assert hold(stage.brake, ref).kind is HoldKind.FOREIGN
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})
    assert release_all(stage.journal, stage.mount) == []
    assert stage.brake.close() == []
    assert stage.is_held("a")


def test_a_thaw_by_somebody_else_ends_the_hold_without_a_fight(stage: Stage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    stage.come_to_rest("a")
    assert HoldKind.SETTLED in kinds(settled(stage.brake))
    stage.unpause("a")
    assert kinds(settled(stage.brake)) == [HoldKind.RELEASED]
    assert not stage.is_held("a")
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})
    assert hold(stage.brake, ref).kind is HoldKind.HELD


def test_what_has_come_to_rest_is_told_once_and_its_latency_is_known(stage: Stage) -> None:
    ref = stage.make("a")
    assert stage.brake.latency_ns(ref.id) is None
    hold(stage.brake, ref)
    stage.come_to_rest("a")
    (change,) = settled(stage.brake)
    assert (change.kind, change.cgroup_id, change.tenant) == (HoldKind.SETTLED, ref.id, "chat")
    assert stage.brake.latency_ns(ref.id) == change.latency_ns
    assert stage.brake.settle() == []
    stage.brake.thaw(ref.id)
    stage.brake.forget_others([])
    assert stage.brake.latency_ns(ref.id) is None


def test_a_cgroup_that_is_gone_is_data(stage: Stage) -> None:
    ref = stage.make("a")
    stage.remove("a")
    assert hold(stage.brake, ref).kind is HoldKind.GONE
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})


def test_a_gang_is_held_whole_or_not_at_all(stage: Stage) -> None:
    refs = [stage.make(name) for name in "abc"]
    stage.pause("c")
    stage.come_to_rest("c")
    gang = stage.brake.hold_gang(refs, "train", later_ns(), "x")
    assert gang.kind is HoldKind.FOREIGN
    assert [stage.is_held(name) for name in "abc"] == [False, False, True]
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})
    assert stage.brake.hold_gang(refs[:2], "train", later_ns(), "x").kind is HoldKind.HELD
    assert [stage.is_held(name) for name in "ab"] == [True, True]


@pytest.mark.parametrize("is_at_rest", [True, False])
def test_release_undoes_what_a_dead_daemon_left(stage: Stage, dead: ProcessId, is_at_rest: bool) -> None:
    for name in "ab":
        hold(stage.brake, stage.make(name))
    if is_at_rest:
        wait_until(lambda: [stage.is_held(name) for name in "ab"] == [True] * 2, PATIENCE_S, "both are held")
    leave_to(dead, stage)
    done = release_all(stage.journal, stage.mount, only=lambda entry: not entry.daemon.is_alive())
    assert [one.kind for one in done] == [ReleaseKind.THAWED] * 2
    assert [stage.is_held(name) for name in "ab"] == [False, False]
    assert release_all(stage.journal, stage.mount) == []
    stage.brake.close()
    assert [stage.is_held(name) for name in "ab"] == [False, False]


def test_the_guardian_thaws_what_a_dead_daemon_left(
    stage: Stage, dead: ProcessId, guard: Callable[[ProcessId], Keeper]
) -> None:
    hold(stage.brake, stage.make("a"))
    leave_to(dead, stage)
    assert guard(dead).run() == 0
    assert not stage.is_held("a")
    assert stage.journal.entries() == []


def test_the_guardian_ends_a_hold_past_its_deadline(
    stage: Stage, guard: Callable[[ProcessId], Keeper]
) -> None:
    refs = {name: stage.make(name) for name in "ab"}
    hold(stage.brake, refs["b"])
    deadline_ns = later_ns(0.05)
    hold(stage.brake, refs["a"], deadline_ns)
    keeper = guard(ProcessId.me())
    wait_until(lambda: time.monotonic_ns() > deadline_ns, PATIENCE_S, "the deadline has passed")
    keeper._refresh()
    keeper._enforce_deadlines()
    assert (stage.is_held("a"), stage.is_held("b")) == (False, True)
    assert [entry.name for entry in stage.journal.entries()] == [stage.brake.holds[refs["b"].id].name]


def test_a_pulse_lets_it_run_until_it_has_used_its_part_and_holds_it_again(stage: Stage) -> None:
    ref, seen, deadline_ns = stage.make("a"), list[bool](), later_ns(700)
    hold(stage.brake, ref)

    def used() -> float:
        seen.append(stage.is_held("a"))
        return len(seen) / 3

    kind = stage.brake.pulse([ref.id], deadline_ns, "deep_queue", used, 100 * SECOND_NS)
    assert kind is HoldKind.HELD
    assert seen == [False] * 3
    wait_until(lambda: stage.is_held("a"), PATIENCE_S, "it is held again")
    (entry,) = stage.journal.entries()
    assert entry == stage.brake.holds[ref.id]
    assert (entry.deadline_ns, entry.reason, entry.tenant) == (deadline_ns, "deep_queue", "chat")
    assert stage.brake.thaw(ref.id).kind is HoldKind.THAWED


def test_a_pulse_that_takes_too_long_lets_go(stage: Stage) -> None:
    ref = stage.make("a")
    hold(stage.brake, ref)
    kind = stage.brake.pulse([ref.id], later_ns(), "deep_queue", lambda: 0.5, 1_000_000)
    assert kind is HoldKind.THAWED
    assert not stage.is_held("a")
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})


def test_an_interrupted_pulse_lets_go(stage: Stage) -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    ref = stage.make("a")
    hold(stage.brake, ref)
    with pytest.raises(KeyboardInterrupt):
        stage.brake.pulse([ref.id], later_ns(), "deep_queue", interrupt, 1_000_000)
    assert not stage.is_held("a")
    assert (stage.journal.entries(), stage.brake.holds) == ([], {})
