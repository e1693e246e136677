# SPDX-License-Identifier: Apache-2.0
"""A daemon that records schedules as any other does, and its account is replayed bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.replay import Playback, charged_ns
from benchmarks.rig import TAPES, Rig, TenantLoad, read_truth
from fairsched.simgpu import Workload
from tests.support import wait_until

LIGHT_NS = 200_000_000
"""Some 6 s of it."""
LEAST_READS = 30
LOADS = (
    TenantLoad("decode", Workload(kind="decode", kernels=20, kernel_us=250)),
    TenantLoad("train", Workload(kind="trainer"), tenant_class="batch"),
    TenantLoad("light", Workload(kind="decode", kernels=10, gap_us=60_000)),
)


@pytest.fixture
def rig(build_dir: Path) -> Iterator[Rig]:
    with Rig(build_dir=build_dir) as opened:
        yield opened


def test_what_was_recorded_is_replayed(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TAPES, str(tmp_path))
    with rig.daemon("enforce", LOADS) as daemon, rig.tenants(LOADS) as workers:
        wait_until(
            lambda: read_truth(rig, workers).truth_ns["light"] >= LIGHT_NS, 60, "all have worked for a while"
        )
        truth = read_truth(rig, workers)
        daemon.kill()  # what a killed daemon has written can be read
    pids = {workers[load.name][0].pid: load.name for load in LOADS}
    (tape,) = tmp_path.glob("*.tape")

    playback = Playback(tape)
    looks = list(playback.looks())

    assert len(looks) >= LEAST_READS
    assert [look.replayed for look in looks] == [look.recorded for look in looks]
    assert not playback.differences
    assert set(playback.tenants.values()) >= set(pids.values())
    assert playback.calls["hold"], "a trainer is held for its neighbours"
    assert playback.calls["thaw"]
    recorded, replayed = charged_ns(tape, is_recorded=True), charged_ns(tape)
    assert recorded == replayed
    for pid, name in pids.items():
        charged = replayed[pid][-1][1]
        assert charged == pytest.approx(truth.truth_ns[name], rel=0.1, abs=50e6), name
