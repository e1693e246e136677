# SPDX-License-Identifier: Apache-2.0
"""Targets in the freezer of cgroup v1: a kill waits for the thaw, so what stands still is explained, and by whom."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup.freezer_v1 import FreezerV1
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.names import Names
from fairsched.cgroup.path import CgroupRef, Mount, find_v1_mount
from fairsched.cgroup.release import ReleaseKind
from fairsched.reclaim.end import Ended, Ending, Fate
from fairsched.reclaim.facts import read_facts
from fairsched.reclaim.pauses import Pause, pauses_of, release_dead
from fairsched.reclaim.pin import Pin
from fairsched.reclaim.plan import Target
from tests.node.cgroup.test_freezer_v1 import V1
from tests.support import wait_until

SECOND_NS = 1_000_000_000


@pytest.fixture
def v1() -> Iterator[V1]:
    mount = find_v1_mount("freezer")
    if mount is None:
        pytest.skip("host: the freezer of cgroup v1 is not mounted")
    v1 = V1(mount)
    try:
        yield v1
    finally:
        v1.end()
        v1.kernel.tidy()


@pytest.fixture
def target(program: Path, cgroup: Path) -> Iterator[subprocess.Popen[bytes]]:
    def enter() -> None:
        (cgroup / "cgroup.procs").write_text("0")

    with subprocess.Popen([program, "plain"], stdout=subprocess.PIPE, preexec_fn=enter) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        yield process
        process.kill()


def pause_of(pid: int, mount: Mount, run_dir: Path) -> Pause | None:
    facts = read_facts(pid, mount)
    assert facts is not None
    return pauses_of([facts], mount, run_dir, Names(str(run_dir))).get(pid)


def end(pid: int, mount: Mount, run_dir: Path, *, grace_s: float, kill_s: float) -> Ended:
    facts = read_facts(pid, mount)
    assert facts is not None
    pin = Pin.open(pid, facts.start_ticks)
    assert pin is not None
    ending = Ending(
        [Target(facts, "")],
        {pid: pin},
        is_forced=True,
        mount=mount,
        pauses=lambda some: pauses_of(some, mount, run_dir, Names(str(run_dir))),
        protected={},
    )
    with contextlib.closing(ending):
        (ended,) = ending.run(grace_s, kill_s)
    return ended


def test_a_pause_of_somebody_else_keeps_even_a_kill_and_is_left(
    target: subprocess.Popen[bytes], v1: V1, mount: Mount, tmp_path: Path
) -> None:
    group = v1.make(f"{v1.top}/job; x")
    v1.put(group, target.pid)
    v1.write(group, "FROZEN")
    wait_until(lambda: v1.is_frozen(target.pid), 10, "it is frozen")
    pause = pause_of(target.pid, mount, tmp_path)
    assert pause is not None and pause.keeps_kill and not pause.is_ours
    assert pause.text.endswith(f"echo THAWED > '{v1.mount.absolute(group)}/freezer.state'")
    ended = end(target.pid, mount, tmp_path, grace_s=0.3, kill_s=0.5)
    assert (ended.fate, ended.why) == (Fate.ALIVE, pause.text), "and --force would not help"
    assert v1.is_frozen(target.pid), "it is not ours to thaw"
    v1.write(group, "THAWED")
    assert target.wait(10) in (-signal.SIGTERM, -signal.SIGKILL), "both signals had waited"


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_hold_of_ours_ends_with_its_daemon_or_is_thawed(
    target: subprocess.Popen[bytes], cgroup: Path, v1: V1, mount: Mount, tmp_path: Path, is_dead: bool
) -> None:
    (tmp_path / "holds").mkdir(mode=0o700)
    path = f"/{cgroup.name}"
    with (
        CgroupRef.open(mount, path) as ref,
        contextlib.closing(Journal(str(tmp_path / "holds"))) as journal,
        FreezerV1(journal, mount, v1.kernel) as brake,
    ):
        brake.hold(ref, "chat", time.monotonic_ns() + 60 * SECOND_NS, "over_entitlement")
        wait_until(lambda: v1.is_frozen(target.pid), 10, "it is held")
        if is_dead:
            (entry,) = journal.entries()
            assert isinstance(entry, Entry)
            gone = subprocess.Popen(["sleep", "300"])
            daemon = ProcessId.of(gone.pid)
            assert daemon is not None
            gone.kill()
            gone.wait()
            journal.write(replace(entry, daemon=daemon))
        pause = pause_of(target.pid, mount, tmp_path)
        assert pause is not None and pause.is_ours
        assert ("daemon that has died" in pause.text) is is_dead
        (released,) = release_dead(tmp_path, mount, [path])
        assert released.kind is (ReleaseKind.THAWED if is_dead else ReleaseKind.KEPT)
        if not is_dead:
            brake.thaw(ref.id)
        assert end(target.pid, mount, tmp_path, grace_s=10.0, kill_s=5.0).fate is Fate.ENDED
        assert target.wait(10) == -signal.SIGTERM
