# SPDX-License-Identifier: Apache-2.0
"""Puts the sources of GPU time and the brakes of this host in order, with what each promises (pure).

Problem. "account: nvml, brake: sigstop" does not say what that costs, nor what would change it.

Approach. A row for each source: whether it is in use, how far shares may be off on it over a second, ten and a minute,
and why it is not taken; a row for each brake alike. What would lift the host by a rung is the remedy for what keeps the
next one above the one in use away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairsched.accounting.error import probed_points, sampled_points, stays_points
from fairsched.cgroup.journal import BrakeName
from fairsched.host.brake import brake_obstacles, choose_brake
from fairsched.host.choose import choose, dcgm_obstacle, ebpf_obstacle, nvml_obstacle, trace_obstacle
from fairsched.host.mode import obstacle_of
from fairsched.model import Source

if TYPE_CHECKING:
    from fairsched.config import Config
    from fairsched.host.facts import HostFacts

WINDOWS_S = (1, 10, 60)
_DOES = {
    BrakeName.FREEZER: "stops a cgroup whole, at once",
    BrakeName.FREEZER_V1: "stops groups of ours, whole",
    BrakeName.SIGSTOP: "stops processes one by one",
    BrakeName.CGPU: "a vendor's module keeps the shares",
}
_UNIFIED = "boot with systemd.unified_cgroup_hierarchy=1"
_REMEDIES = {
    "bcc is not installed": "apt install python3-bpfcc",
    "this kernel has no uprobes": "use a kernel with CONFIG_UPROBE_EVENTS",
    "NVML does not work": "install the NVIDIA driver",
    "cgroup v2 is not in use": _UNIFIED,
    "no cgroups are mounted": _UNIFIED,
    "cgroup.freeze does not work": "use a kernel with cgroup.freeze (Linux 5.2)",
    "this kernel has no pidfd": "use a kernel >= 5.3",
    "the driver names processes": "run it with the host's PID namespace (hostPID: true, --pid=host)",
    "it is not asked for": "set gpu.source: trace, where work is always there",
    "gpu.enforce_on": "name it in gpu.enforce_on",
}
"""How an obstacle begins: what helps."""
_OTHERWISE = {
    Source.TRACE: "use a driver of branch 580, or set mechanisms.trace: required where 545 to 595 is known to work",
    Source.DCGM: "start nvidia-dcgm, or name a page in gpu.dcgm_exporter",
    BrakeName.FREEZER_V1: "mount the freezer of cgroup v1 by itself: mount -t cgroup -o freezer none DIR",
    BrakeName.CGPU: "load the vendor's module, or correct cgpu.share_file",
}
"""What has many reasons, and one remedy."""


@dataclass(frozen=True)
class Rung:
    """One source of GPU time."""

    source: Source
    is_in_use: bool
    error_points: tuple[float, ...]
    """Over each of WINDOWS_S, in 19 of 20 windows; of an absolute time, on a partly idle GPU, only DCGM's is scaled."""
    obstacle: str | None
    """Why it cannot be used, or nobody is held on it; None: nothing is in the way."""
    remedy: str | None
    """What would take that away."""


@dataclass(frozen=True)
class BrakeRung:
    """One brake."""

    brake: BrakeName
    does: str
    is_in_use: bool
    obstacle: str | None
    remedy: str | None
    """Both as of a :class:`Rung`."""


def ladder(facts: HostFacts, config: Config) -> tuple[Rung, ...]:
    """Best first."""
    used = choose(facts, config).source
    obstacles = {
        Source.EBPF: ebpf_obstacle(facts, config),
        Source.TRACE: trace_obstacle(facts, config),
        Source.DCGM: dcgm_obstacle(facts, config),
        Source.NVML: nvml_obstacle(facts, config),
    }
    rungs = []
    for source, found in obstacles.items():
        obstacle = found or obstacle_of(source, config)
        remedy = None if obstacle is None else _remedy(obstacle, facts, source)
        rungs.append(Rung(source, source is used, _points(source), obstacle, remedy))
    return tuple(rungs)


def brakes(facts: HostFacts, config: Config) -> tuple[BrakeRung, ...]:
    """Best first."""
    used, reason = choose_brake(facts, config)
    obstacles = brake_obstacles(facts, config)
    wish, found = config.mechanisms.brake, []
    if wish == "cgpu":  # nobody's next best: who has such a module says so
        obstacles = {BrakeName.CGPU: facts.cgpu_obstacle, **obstacles}
    for brake, obstacle in obstacles.items():
        remedy = None if obstacle is None else _remedy(obstacle, facts, brake)
        if obstacle is None and brake is not used and wish not in ("auto", brake.value):
            obstacle, remedy = f"mechanisms.brake is {wish}", "set mechanisms.brake: auto"
        elif obstacle is None and used is None:
            obstacle, remedy = reason, _remedy(reason, facts, brake)
        found.append(BrakeRung(brake, _DOES[brake], brake is used, obstacle, remedy))
    return tuple(found)


def lift(rungs: Sequence[Rung | BrakeRung]) -> Rung | BrakeRung | None:
    """The next one above the one in use, or the lowest where none is; None: it is the best already."""
    used = next((index for index, rung in enumerate(rungs) if rung.is_in_use), len(rungs))
    return rungs[used - 1] if used else None


def _remedy(obstacle: str, facts: HostFacts, rung: Source | BrakeName) -> str:
    for prefix in ("there are no samples to scale: ", "which GPUs there are is not known: "):
        obstacle = obstacle.removeprefix(prefix)
    if obstacle.endswith(" is off"):
        return f"set {obstacle.removesuffix(' is off')}: auto"
    if obstacle.endswith(" missing"):
        return f"grant {obstacle.removesuffix(' missing')}"
    if obstacle.startswith("BPF does not work"):
        failed = [fact.remedy for fact in facts.bpf or () if fact.is_needed and not fact.is_ok]
        return "; ".join(dict.fromkeys(filter(None, failed)))
    found = next((remedy for begin, remedy in _REMEDIES.items() if obstacle.startswith(begin)), None)
    return found or _OTHERWISE.get(rung, "")


def _points(source: Source) -> tuple[float, ...]:
    of = {Source.EBPF: probed_points, Source.TRACE: stays_points}.get(source, sampled_points)
    return tuple(of(window_s) for window_s in WINDOWS_S)
