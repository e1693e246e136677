# SPDX-License-Identifier: Apache-2.0
"""What a hold does to a process with a queue: how fast it stops, what it still runs, what it cannot do, how fast it
goes on.

A trainer with 200 ms queued and 300 idle threads is held again and again by the daemon's own freezer. While it is
frozen nothing of it may be launched and no sync call of it may return: the daemon closes its interval by the queue's
length *because* no return will ever tell (docs/accounting.md). When the GPU finished is told by the tenant's own
events, read after the thaw (the simulated GPU is asked).
"""

from __future__ import annotations

import select
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.figures import Figure, measured, not_possible
from benchmarks.gpu.hosts import Host, Load, Member, counters, know
from benchmarks.gpu.windows import SETTLE_S, wait_logged
from benchmarks.rig import BenchError, wait_until
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.cgroup.freezer import Freezer
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.outcome import HoldKind
from fairsched.cgroup.path import CgroupRef

QUEUE_MS = 200.0
LOAD = Load("queue", "trainer", tenant_class="batch", queue_ms=QUEUE_MS, threads=300)
HELD_S = 0.6
"""Three queues: long enough to see that a drain ends."""
_REST_S = 0.5
"""Between two holds: the queue fills again."""
_SETTLE_S = 30.0
_THAW_S = 30.0
_ROUNDS = 10


@dataclass(frozen=True)
class Hold:
    """One of them."""

    latency_ns: int
    launches: int
    returns: int
    drain_ns: int | None
    """From standing still to the last work of its queue; None = nobody can say."""
    thaw_ns: int


def measure(host: Host, probe: GpuTimeProbe, seconds: float) -> list[Figure]:
    rounds = max(3, min(_ROUNDS, round(seconds)))
    with host.tenants([LOAD]) as crew, open_freezer(host.directory) as freezer, host.cgroup(LOAD.name) as ref:
        know(probe, crew)
        (member,) = crew[LOAD.name]
        time.sleep(SETTLE_S)
        holds = [_hold(host, probe, freezer, ref, member) for _ in range(rounds)]
    return judge(holds)


def judge(holds: Sequence[Hold]) -> list[Figure]:
    """The figures of all holds together (pure)."""
    latencies = [hold.latency_ns / 1e6 for hold in holds]
    thaws = [hold.thaw_ns / 1e6 for hold in holds]
    found = [
        measured("freeze_latency_ms", statistics.median(latencies), f"up to {max(latencies):.2f} ms"),
        measured("frozen_launches", sum(hold.launches for hold in holds), f"{len(holds)} holds"),
        measured("frozen_returns", sum(hold.returns for hold in holds), f"{len(holds)} holds"),
        measured("thaw_latency_ms", statistics.median(thaws), f"up to {max(thaws):.2f} ms"),
    ]
    drains = [hold.drain_ns / 1e6 for hold in holds if hold.drain_ns is not None]
    if len(drains) < len(holds):
        why = f"the GPU's clock was told in {len(drains)} of {len(holds)} holds: no event was reached in the others"
        return [*found, not_possible("drain_ratio", why), not_possible("drain_least_ratio", why)]
    said = f"{min(drains):.0f} to {max(drains):.0f} ms"
    return [
        *found,
        measured("drain_ratio", max(drains) / QUEUE_MS, said),
        measured("drain_least_ratio", min(drains) / QUEUE_MS, said),
    ]


@contextmanager
def open_freezer(directory: Path) -> Iterator[Freezer]:
    """The daemon's, with a journal in that directory; leaving it thaws."""
    journal = Journal(str(directory / "holds"))
    try:
        with Freezer(journal) as freezer:
            yield freezer
    finally:
        journal.close()


def _hold(host: Host, probe: GpuTimeProbe, freezer: Freezer, ref: CgroupRef, member: Member) -> Hold:
    time.sleep(_REST_S)
    pid, frozen_ns = member.worker.pid, time.monotonic_ns()
    made = freezer.hold(ref, LOAD.name, frozen_ns + 60_000_000_000, "benchmark")
    if made.kind is not HoldKind.HELD:
        raise BenchError(f"{ref.path} could not be held: {made.kind.value}")
    latency_ns = settle(freezer)
    launches, returns = counters(probe, pid)
    time.sleep(HELD_S)
    launches_after, returns_after = counters(probe, pid)
    thaw_ns = time.monotonic_ns()
    freezer.thaw(ref.id)
    while counters(probe, pid)[0] == launches_after:
        if time.monotonic_ns() - thaw_ns > _THAW_S * 1e9:
            raise BenchError(f"{member.worker.name} launches nothing within {_THAW_S:g} s of its thaw")
    progress_ns = time.monotonic_ns()
    wait_until(lambda: member.worker.step_count() > 0, _THAW_S, "it makes steps")
    wait_logged([member], progress_ns)
    drain_end_ns = host.drain_end_ns(member, frozen_ns, thaw_ns)
    return Hold(
        latency_ns,
        launches_after - launches,
        returns_after - returns,
        None if drain_end_ns is None else max(0, drain_end_ns - frozen_ns - latency_ns),
        progress_ns - thaw_ns,
    )


def settle(freezer: Freezer) -> int:
    """Waits as the daemon does; returns the latency of the freeze."""
    poll = select.poll()
    poll.register(freezer.fileno(), select.POLLIN)
    end_s = time.monotonic() + _SETTLE_S
    while time.monotonic() < end_s:
        for change in freezer.settle():
            if change.kind is HoldKind.SETTLED and change.latency_ns is not None:
                return change.latency_ns
            raise BenchError(
                f"{change.path}: the hold became {change.kind.value}: somebody else freezes here"
            )
        poll.poll(1000)
    raise BenchError(f"not frozen within {_SETTLE_S:g} s")
