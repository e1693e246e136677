# SPDX-License-Identifier: Apache-2.0
"""Do the uprobes on libcuda see every launch of PyTorch?

Approach: the daemon's own BPF programs count the launches of a process; the process's log says how many steps it
began meanwhile; what a step launches is known by construction (spin, graph) or counted once by PyTorch's profiler,
inside the tenant, before the measurement. A library that submits past the exports would show as a count too low.
"""

from __future__ import annotations

import time

from benchmarks.gpu.arithmetic import begun_in, coverage_error
from benchmarks.gpu.figures import Figure, measured, not_possible
from benchmarks.gpu.hosts import Host, Load, Member, counters, know, logs_of
from benchmarks.gpu.windows import SETTLE_S, wait_logged
from fairsched.bpf.gpu_time import GpuTimeProbe

KINDS = ("spin", "decode", "graph", "trainer")
_AT_ONCE_NS = 500_000
_LOOKS = 20


def measure(host: Host, probe: GpuTimeProbe, seconds: float) -> list[Figure]:
    return [_of_kind(host, probe, kind, seconds) for kind in KINDS]


def _of_kind(host: Host, probe: GpuTimeProbe, kind: str, seconds: float) -> Figure:
    key = f"coverage_{kind}_error"
    with host.tenants([Load(kind, kind, is_counted=True)]) as crew:
        know(probe, crew)
        (member,) = crew[kind]
        if member.launches is None:
            return not_possible(key, member.launches_from)
        time.sleep(SETTLE_S)
        counted, begun = _window(probe, member, seconds)
    error = coverage_error(counted, begun, member.launches)
    if error is None:
        return not_possible(key, "the tenant launched nothing")
    made = f"{counted} counted, {begun} steps of {member.launches:g} ({member.launches_from})"
    return measured(key, error, made)


def _window(probe: GpuTimeProbe, member: Member, seconds: float) -> tuple[int, int]:
    """(launches counted, steps begun)"""
    start_ns, before = _look(probe, member.worker.pid)
    time.sleep(seconds)
    end_ns, after = _look(probe, member.worker.pid)
    wait_logged([member], end_ns)
    return after - before, begun_in(logs_of([member]), (start_ns, end_ns))


def _look(probe: GpuTimeProbe, pid: int) -> tuple[int, int]:
    """A moment, and the launches up to it: where this process was interrupted between the two, another look."""
    looks = []
    for _ in range(_LOOKS):
        before_ns, count = time.monotonic_ns(), counters(probe, pid)[0]
        looks.append((time.monotonic_ns() - before_ns, before_ns, count))
        if looks[-1][0] < _AT_ONCE_NS:
            break
    _, at_ns, count = min(looks)
    return at_ns, count
