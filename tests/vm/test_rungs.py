# SPDX-License-Identifier: Apache-2.0
"""What the daemon has to see and to hold with under this kernel, booted this way, and what comes of it.

Shares are judged against the weights by the GPU's own books. The bar is what the source in use promises over the time
that is measured, and half the error that there is without a daemon. The daemon chooses by itself; then it is told to
hold with another brake.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import let_run, wait_until
from tests.vm.conftest import Facts, RecordRung
from tests.vm.rungs import BOOT, PATIENCE_S, Node, Stretch, frozen_cgroups, stopped_processes

SETTLE_S = {"ebpf": 10.0, "dcgm": 40.0, "nvml": 40.0}
"""By source. On samples the law looks at ten seconds, and repays what was used before little by little."""
MEASURED_S, STRETCHES = 10.0, 3


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as made:
        yield made


OTHER_BRAKES = {"v2": ["sigstop"], "hybrid": ["freezer_v1"]}.get(BOOT, [])
HANDS = "freezer_v1" if BOOT == "v1" else "freezer"
"""That this boot has by its own."""


def eyes_of(facts: Facts) -> str:
    """What there is to see with: programs need the atomics of 5.12, and are told of cgroup v2 only."""
    return "nvml" if facts.series == "5.10" or BOOT == "v1" else "ebpf"


def measure(node: Node, source: str, begun_s: float) -> tuple[Stretch, list[Stretch]]:
    """When it has settled since it has begun: the whole, and its parts of ten seconds each."""
    let_run(max(0.0, begun_s + SETTLE_S[source] - time.monotonic()))
    before = node.used_ns()
    parts = [node.run_for(MEASURED_S) for _ in range(STRETCHES)]
    return node.since(before), parts


def check(without: Stretch, whole: Stretch, parts: list[Stretch], status: dict[str, Any]) -> float:
    """The shares are those that this rung promises. Returns the promise, in points."""
    promised = float(status["source_error_points"]["10"])
    print(f"without {without.parts} {without.error_points:.1f}; with {whole.parts} {whole.error_points:.1f}")
    print(f"promised {promised:.1f}; by ten seconds {[one.parts for one in parts]}")
    assert whole.error_points <= promised
    assert whole.error_points <= without.error_points / 2
    assert not any(one.has_lock_out() for one in parts)
    return promised


def check_let_go(node: Node) -> None:
    def is_over() -> bool:
        return not frozen_cgroups() and not stopped_processes()

    wait_until(is_over, PATIENCE_S, f"nobody is frozen or stopped: {frozen_cgroups()} {stopped_processes()}")
    after = node.run_for(2.0)
    assert all(after.used_ns.values()), "everybody works"
    assert not frozen_cgroups()
    assert not stopped_processes()


def test_the_best_rung_of_this_boot_is_taken_and_holds_what_it_promises(
    node: Node, facts: Facts, record_rung: RecordRung
) -> None:
    before = node.used_ns()
    status = node.start()
    without = node.since(before)
    assert (status["source"], status["mode"]) == (eyes_of(facts), "enforce")
    begun_s = time.monotonic()
    doctor = node.doctor()["choices"]
    assert (doctor["source"], doctor["brake"]) == (status["source"], HANDS)
    whole, parts = measure(node, status["source"], begun_s)
    promised = check(without, whole, parts, node.daemon.status())
    assert node.daemon.stop(PATIENCE_S) == 0
    check_let_go(node)
    record_rung(status, doctor["brake"], without, whole, promised, "stopped")


@pytest.mark.parametrize("brake", OTHER_BRAKES)
def test_another_brake_holds_them_too_and_a_killed_daemon_leaves_nobody_stopped(
    brake: str, node: Node, facts: Facts, record_rung: RecordRung
) -> None:
    if facts.series != "5.10":
        pytest.skip("signals are played under the oldest kernel")
    before = node.used_ns()
    status = node.start(ebpf="off", brake=brake)
    without = node.since(before)
    whole, parts = measure(node, status["source"], time.monotonic())
    promised = check(without, whole, parts, node.daemon.status())
    node.kill_while_holding()
    check_let_go(node)
    record_rung(status, brake, without, whole, promised, "killed")
