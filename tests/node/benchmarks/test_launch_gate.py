# SPDX-License-Identifier: Apache-2.0
"""The experiment of decision 0007 works on this kernel, and leaves nobody stopped or held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import launch_gate
from benchmarks.launch_gate import GRANT_MS, Gate, bench, cost_ns, figures, is_stopped
from benchmarks.rig import Rig
from tests.support import wait_until

pytestmark = pytest.mark.alone


def test_the_gate_stops_what_exceeds_the_budget_and_the_stopped_go_on(build_dir: Path) -> None:
    with Rig(build_dir=build_dir) as rig, Gate() as gate, bench(rig, gate) as tenant:
        found = {name: [tenant.thaw(name) for _ in range(2)] for name in launch_gate.CANDIDATES}
        signalled = figures(found["signal"])
        assert signalled["stops"] >= 2
        assert signalled["told"] >= 2, "their parent learns of it"
        assert signalled["leaked"] == 0
        assert found["pulse"][0].stops == found["ordinary"][0].stops == 0
        assert all(thaw.queued_ms > GRANT_MS / 2 for thaws in found.values() for thaw in thaws)
        # Three processes, one launch each that passes beside the others, and one under way.
        assert signalled["overshoot_max_ms"] <= 10
        pids = tenant.pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_launch_is_timed_without_a_probe_with_an_empty_one_and_with_the_gate(build_dir: Path) -> None:
    with Rig(build_dir=build_dir) as rig, Gate() as gate:
        costs = cost_ns(rig, gate, 1)
        assert gate.read().launches > 0, "the last variant counts"
    assert set(costs) == {"none", "empty", "gate_other", "gate_counted"}
    assert min(costs["gate_counted"]) > max(0.0, min(costs["none"]))


def test_who_is_stopped_by_a_signal_is_told_from_who_runs() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]) as child:
        try:
            assert not is_stopped(child.pid)
            os.kill(child.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(child.pid), 10, "it is stopped")
        finally:
            child.kill()
