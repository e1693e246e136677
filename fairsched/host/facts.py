# SPDX-License-Identifier: Apache-2.0
"""Defines the facts about a host, known before anything is tried on a tenant: plain data.

Facts come from files and from trying (:mod:`fairsched.host.gather`), never from a version number. One that could not
be determined is None, which is not the same as "no".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fairsched.driver.pid_view_choice import PidViewFacts
from fairsched.model import Source

if TYPE_CHECKING:
    from fairsched.driver.hooks import HookFacts, HookInForce


NEEDED_CAPABILITIES = {
    "CAP_BPF": "load BPF programs",
    "CAP_PERFMON": "attach uprobes",
    "CAP_SYS_PTRACE": "find libcuda in other users' processes",
    "CAP_DAC_OVERRIDE": "write cgroup.freeze of other users' cgroups",
}
"""Capability: what it is for. CAP_SYS_ADMIN stands for the first two."""


ONLY_ROOT_SEES = (
    "whether BPF programs load",
    "whether a cgroup freezes",
    "libcuda in the processes of others",
    "how calls to the driver are seen",
    "what a daemon holds or has left",
)


@dataclass(frozen=True)
class BpfFact:
    """One thing BPF was asked to do (fairsched.bpf.probe)."""

    name: str
    is_ok: bool
    detail: str = ""
    remedy: str = ""
    is_needed: bool = True
    """Without it there is no eBPF account."""


@dataclass(frozen=True)
class GpuFact:
    """One GPU, as NVML says."""

    uuid: str
    name: str
    has_mig: bool | None = None
    """None: it has no MIG mode."""
    mps_clients: int = 0
    """Processes that NVML lists as clients of an MPS server."""
    instances: tuple[int, ...] = ()
    """NVML's numbers of its GPU instances, while it is in MIG mode."""


@dataclass(frozen=True)
class DcgmFact:
    """What asking DCGM for the load of the GPUs came to."""

    is_ok: bool
    detail: str
    """Who answers and what; or why nobody does."""


@dataclass(frozen=True)
class HostFacts:
    """The facts about one host. choose.py has the rules."""

    kernel_release: str
    """For display."""
    is_root: bool
    """False: ONLY_ROOT_SEES was not looked at."""
    capabilities: frozenset[str]
    """Effective ones; of who is not root those that root would have here."""
    has_btf: bool
    has_uprobes: bool
    lockdown: str | None
    """none, integrity or confidentiality; None: not known (no lockdown LSM)."""
    bcc_version: str | None
    """None: not importable."""
    bpf: tuple[BpfFact, ...] | None
    """None: not tried."""
    cgroup_mount: str | None
    """Of cgroup v2; where that is not in use, of systemd's hierarchy of cgroup v1."""
    is_cgroup_hybrid: bool | None
    has_freezer: bool | None
    """A scratch cgroup was frozen and thawed; where that could not be tried, cgroup.freeze exists."""
    freeze_latency_ns: int | None
    """Of that empty cgroup."""
    sees_foreign_pauses: bool | None
    """A pause by somebody else during a hold of ours can be told from it."""
    libcuda: tuple[str, ...]
    driver_version: str | None
    """None: NVML does not work; see nvml_error."""
    nvml_error: str | None
    gpus: tuple[GpuFact, ...]
    clock_source: str | None
    preemption: str | None
    has_systemd: bool
    has_group: bool
    """The group of the control socket exists."""
    daemon_pid: int | None
    """Of a fairsched that answers on the control socket."""
    leftover_holds: int
    """Entries in the journal of holds."""
    hooks: HookFacts | None = None
    """How calls to the driver could be seen; None: not asked."""
    hook_in_force: HookInForce | None = None
    """As a daemon says that answers on the control socket."""
    daemon_mode: str | None = None
    """In force, as `status` and the metric have it; None: no daemon says."""
    daemon_mode_reason: str | None = None
    """Why it is not what the daemon's file asks for; None: it is."""
    pid_view: PidViewFacts | None = None
    """None: not looked at, as nobody wants it."""
    dcgm: DcgmFact | None = None
    """None: not asked."""
    xid_obstacle: str | None = None
    """Why NVML hands on no errors that the driver reports of GPUs (Xid); None: it does, or there is no GPU."""
    gates: int | None = None
    """Device gates of this run_dir in the kernel; None: not known."""
    is_cgroup_v1: bool = False
    """Tenants are told by cgroup v1, as cgroup v2 is not in use."""
    v1_obstacle: str | None = "not asked"
    """Why the freezer of cgroup v1 cannot be used; None: it can."""
    cgpu_obstacle: str | None = None
    """Why there is no module to write shares to; None: there is, or nobody asks."""
    has_pidfd: bool | None = None
    """A process can be signalled by descriptor."""
    has_own_pid_namespace: bool | None = None
    """Processes have other numbers here than BPF and the driver tell."""


@dataclass(frozen=True)
class Choices:
    """What fairsched does on this host under this configuration."""

    source: Source | None
    source_reason: str
    can_hold: bool
    hold_reason: str
    mode: str
    """In effect."""
    obstacles: tuple[str, ...]
    """Why it cannot run at all; empty = it can."""
    brake: str = "none"
    """What holds tenants: freezer, freezer_v1, sigstop, cgpu (nobody is held) or none."""
    mode_reason: str | None = None
    """Why `mode` is not what the configuration asks for; None: it is."""
    not_looked_at: tuple[str, ...] = ()
    """What could be an obstacle as well, and is for root to find out."""

    @property
    def can_run(self) -> bool | None:
        """None: no obstacle was seen, but not everything was looked at."""
        if self.obstacles:
            return False
        return None if self.not_looked_at else True


Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One row of ``fairsched doctor``."""

    name: str
    level: Level
    fact: str
    choice: str = ""
    """What follows from it."""
    remedy: str = ""
