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


def measure(host: Host, probe: GpuTimeProbe, seconds: float) -> list[Figure]:
    return [_of_kind(host, probe, kind, seconds) for kind in KINDS]


def _of_kind(host: Host, probe: GpuTimeProbe, kind: str, seconds: float) -> Figure:
    key = f"coverage_{kind}_error"
    with host.tenants([Load(kind, kind)]) as crew:
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
    start_ns, before = time.monotonic_ns(), counters(probe, member.worker.pid)[0]
    time.sleep(seconds)
    end_ns, after = time.monotonic_ns(), counters(probe, member.worker.pid)[0]
    wait_logged([member], end_ns)
    return after - before, begun_in(logs_of([member]), (start_ns, end_ns))
