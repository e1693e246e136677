# SPDX-License-Identifier: Apache-2.0
"""What this host can do: facts, and what is chosen from them (pure; host_probe.py gathers the facts).

Facts come from files and from trying, never from a version number. :func:`choose` decides which
account is used and whether tenants can be held; :func:`checks` puts both into rows for ``doctor``.
A fact that could not be determined is None, which is not the same as "no".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fairsched.host import gate as gate_check
from fairsched.host.pid_view import PidViewFacts
from fairsched.host.pid_view import choose as choose_pid_view
from fairsched.model import Source

if TYPE_CHECKING:
    from fairsched.config import Config
    from fairsched.driver.hooks import HookFacts, HookInForce

NEEDED_CAPABILITIES = {
    "CAP_BPF": "load BPF programs",
    "CAP_PERFMON": "attach uprobes",
    "CAP_SYS_PTRACE": "find libcuda in other users' processes",
    "CAP_DAC_OVERRIDE": "write cgroup.freeze of other users' cgroups",
}
"""Capability: what it is for. CAP_SYS_ADMIN stands for the first two."""

GOOD_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})
"""Read in user space or a few cycles; the others cost microseconds for every probe hit."""


NVML_LIMIT = "NVML samples are off by 19 points over 1 s: observed, nobody is held"


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


@dataclass(frozen=True)
class HostFacts:
    """Facts only; the rules are below."""

    kernel_release: str
    """For display."""
    is_root: bool
    capabilities: frozenset[str]
    """Effective ones."""
    has_btf: bool
    has_uprobes: bool
    lockdown: str | None
    """none, integrity or confidentiality; None: not known (no lockdown LSM)."""
    memlock_bytes: int | None
    """None: unlimited."""
    bcc_version: str | None
    """None: not importable."""
    bpf: tuple[BpfFact, ...] | None
    """None: not tried."""
    cgroup_mount: str | None
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
    pid_view: PidViewFacts | None = None
    """None: not looked at, as nobody wants it."""
    gates: int | None = None
    """Device gates of this run_dir in the kernel; None: not known."""


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

    @property
    def can_run(self) -> bool:
        return not self.obstacles


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


def missing_capabilities(facts: HostFacts) -> list[str]:
    held = set(facts.capabilities)
    if "CAP_SYS_ADMIN" in held:
        held |= {"CAP_BPF", "CAP_PERFMON"}
    return [name for name in NEEDED_CAPABILITIES if name not in held]


def switched_off(config: Config, mechanism: str) -> str | None:
    """Why a mechanism is not even tried; None when it is."""
    return f"mechanisms.{mechanism} is off" if getattr(config.mechanisms, mechanism) == "off" else None


def ebpf_obstacle(facts: HostFacts, config: Config) -> str | None:
    """Why the eBPF account cannot be used; None when it can."""
    if (off := switched_off(config, "ebpf")) is not None:
        return off
    if facts.bcc_version is None:
        return "bcc is not installed"
    missing = [name for name in missing_capabilities(facts) if name in ("CAP_BPF", "CAP_PERFMON")]
    if missing:
        return f"{' and '.join(missing)} missing"
    if not facts.has_uprobes:
        return "this kernel has no uprobes"
    if facts.lockdown == "confidentiality":
        return "kernel lockdown (confidentiality) forbids BPF to read"
    failed = [fact.name for fact in facts.bpf or () if fact.is_needed and not fact.is_ok]
    if failed:
        return f"BPF does not work here ({', '.join(failed)})"
    return None


def nvml_obstacle(facts: HostFacts, config: Config) -> str | None:
    """Why the NVML account cannot be used; None when it can."""
    if (off := switched_off(config, "nvml")) is not None:
        return off
    if facts.driver_version is None:
        return f"NVML does not work ({facts.nvml_error or 'no reason given'})"
    return None


def freezer_obstacle(facts: HostFacts, config: Config) -> str | None:
    """Why nobody can be held; None when tenants can."""
    if (off := switched_off(config, "freezer")) is not None:
        return off
    if facts.cgroup_mount is None:
        return "cgroup v2 is not mounted"
    if facts.has_freezer is False:
        return "cgroup.freeze does not work here"
    if "CAP_DAC_OVERRIDE" not in facts.capabilities:
        return "CAP_DAC_OVERRIDE missing"
    return None


def choose(facts: HostFacts, config: Config) -> Choices:
    """The account, whether tenants can be held, and what stands in the way."""
    ebpf, nvml = ebpf_obstacle(facts, config), nvml_obstacle(facts, config)
    gate = gate_check.obstacle(facts, config)
    source, source_reason = choose_source(config.gpu.source, ebpf, nvml)
    freezer = freezer_obstacle(facts, config)
    obstacles = [
        f"{mechanism} is required, but {obstacle}"
        for mechanism, obstacle in (
            ("ebpf", ebpf),
            ("nvml", nvml),
            ("freezer", freezer),
            ("device_gate", gate),
        )
        if obstacle is not None and getattr(config.mechanisms, mechanism) == "required"
    ]
    if config.mechanisms.pid_view == "required" and facts.pid_view is not None:
        view = choose_pid_view(facts.pid_view, "required")
        if not view.is_on and not view.is_waiting:
            obstacles.append(f"pid_view is required, but {view.reason}")
    if not facts.is_root:
        obstacles.append("not root")
    if facts.cgroup_mount is None:
        obstacles.append("cgroup v2 is not mounted")
    if source is None:
        obstacles.append(f"no account of GPU time: {source_reason}")
    mode: str = config.mode
    hold_reason = freezer or "cgroup.freeze works"
    can_hold = freezer is None
    if can_hold and source is Source.NVML:
        can_hold, hold_reason = False, NVML_LIMIT
    if mode != "observe" and not can_hold:
        mode = "observe"
    return Choices(source, source_reason, can_hold, hold_reason, mode, tuple(dict.fromkeys(obstacles)))


def choose_source(wanted: str, ebpf: str | None, nvml: str | None) -> tuple[Source | None, str]:
    """The account and why: ``wanted`` is gpu.source, the others say what stands in the way of each.

    The daemon asks this, too, with what it met when it tried.
    """
    if wanted == "ebpf":
        return (Source.EBPF, "gpu.source asks for it") if ebpf is None else (None, f"ebpf: {ebpf}")
    if wanted == "nvml":
        return (Source.NVML, "gpu.source asks for it") if nvml is None else (None, f"nvml: {nvml}")
    if ebpf is None:
        return Source.EBPF, "the most exact account"
    if nvml is None:
        return Source.NVML, f"ebpf cannot be used: {ebpf}"
    return None, f"ebpf: {ebpf}; nvml: {nvml}"


def checks(facts: HostFacts, config: Config) -> list[Check]:
    """The rows of ``doctor``, in the order in which a person would look."""
    return [
        *_privilege_checks(facts),
        *_cgroup_checks(facts, config),
        *_bpf_checks(facts, config),
        *_gpu_checks(facts, config),
        *_driver_checks(facts, config),
        *_pid_view_checks(facts, config),
        *gate_check.rows(facts, config),
        *_setting_checks(facts, config),
    ]


def _level(is_ok: bool, mechanism: str, otherwise: Level = "warn") -> Level:
    if is_ok or mechanism == "off":
        return "ok"
    return "fail" if mechanism == "required" else otherwise


def _privilege_checks(facts: HostFacts) -> Iterator[Check]:
    if facts.is_root:
        yield Check("root", "ok", "uid 0")
    else:
        yield Check("root", "fail", "not root", "cannot run", "run it with sudo, or through systemd")
    missing = missing_capabilities(facts)
    if missing:
        uses = ", ".join(f"{name} ({NEEDED_CAPABILITIES[name]})" for name in missing)
        yield Check("capabilities", "fail", f"missing: {uses}", "", "add them to CapabilityBoundingSet")
    else:
        yield Check("capabilities", "ok", "all that are needed")


def _cgroup_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    if facts.cgroup_mount is None:
        remedy = "boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none DIR"
        yield Check("cgroup2", "fail", "not mounted", "cannot run", remedy)
        return
    hybrid = ", beside cgroup v1" if facts.is_cgroup_hybrid else ""
    yield Check("cgroup2", "ok", f"at {facts.cgroup_mount}{hybrid}")
    obstacle = freezer_obstacle(facts, config)
    yield Check(
        "freezer",
        _level(obstacle is None, config.mechanisms.freezer),
        _freezer_fact(facts) if obstacle is None else obstacle,
        "tenants can be held" if obstacle is None else "observe only",
        "" if facts.has_freezer is not False else "use a kernel with cgroup.freeze (Linux 5.2)",
    )
    if facts.sees_foreign_pauses is False:
        choice = "a pause made while we hold the cgroup ends with our hold"
        yield Check("pauses", "warn", "writes to cgroup.freeze cannot be watched", choice)


def _freezer_fact(facts: HostFacts) -> str:
    if facts.freeze_latency_ns is None:
        return "cgroup.freeze works"
    return f"cgroup.freeze works, an empty cgroup in {facts.freeze_latency_ns // 1000} us"


def _bpf_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    wish = config.mechanisms.ebpf
    yield Check("kernel", "ok", facts.kernel_release)
    if facts.bcc_version is None:
        remedy = "apt install python3-bpfcc (never pip install bcc: that is something else)"
        yield Check("bcc", _level(False, wish), "not importable", "no eBPF account", remedy)
    else:
        yield Check("bcc", "ok", facts.bcc_version)
    yield Check(
        "btf",
        "ok" if facts.has_btf else "warn",
        "/sys/kernel/btf/vmlinux" if facts.has_btf else "no /sys/kernel/btf/vmlinux",
        "" if facts.has_btf else "probes that read kernel structures stay off",
        "" if facts.has_btf else "use a kernel with CONFIG_DEBUG_INFO_BTF",
    )
    if not facts.has_uprobes:
        remedy = "use a kernel with CONFIG_UPROBE_EVENTS"
        yield Check("uprobes", _level(False, wish), "not in this kernel", "no eBPF account", remedy)
    if facts.lockdown == "confidentiality":
        remedy = "boot with lockdown=integrity or without"
        yield Check("lockdown", _level(False, wish), "confidentiality", "no eBPF account", remedy)
    for fact in facts.bpf or ():
        yield Check(
            f"bpf {fact.name}",
            _level(fact.is_ok, wish if fact.is_needed else "auto"),
            fact.detail or ("works" if fact.is_ok else "does not work"),
            "" if fact.is_ok or not fact.is_needed else "no eBPF account",
            fact.remedy,
        )


def _gpu_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    if facts.driver_version is None:
        yield Check(
            "nvml",
            _level(False, config.mechanisms.nvml),
            facts.nvml_error or "not available",
            "no GPU names, memory or fallback account",
            "install the NVIDIA driver; without a GPU, fairsched demo simulates one",
        )
    else:
        yield Check("nvml", "ok", f"driver {facts.driver_version}, {len(facts.gpus)} GPUs")
    for gpu in facts.gpus:
        mig = ", MIG on" if gpu.has_mig else ""
        yield Check("gpu", "ok", f"{gpu.name} {gpu.uuid}{mig}")
    if facts.libcuda:
        shown = ", ".join(facts.libcuda[:2]) + (", ..." if len(facts.libcuda) > 2 else "")
        yield Check("libcuda", "ok", shown)
    else:
        yield Check(
            "libcuda",
            "warn",
            "no libcuda.so.1 in the loader's cache or a running process",
            "watched as soon as a process maps one",
            "install the driver, or name the file in gpu.libcuda",
        )


def _driver_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    from fairsched.driver import hooks  # which needs Check

    off = switched_off(config, "driver")
    if off is not None:
        yield Check("driver calls", "ok", off, "no contexts and no VRAM per tenant")
    elif facts.hooks is not None:
        yield hooks.check(hooks.choose(facts.hooks), facts.hook_in_force)


def _pid_view_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    wish = config.mechanisms.pid_view
    if facts.pid_view is None:
        return
    choice = choose_pid_view(facts.pid_view, wish)
    follows = (
        "containers see their own GPU processes" if choice.is_on else "containers see what the driver says"
    )
    is_well = choice.is_on or choice.is_waiting
    yield Check("pid view", _level(is_well, wish), choice.reason, follows, choice.remedy)


def _setting_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    if facts.clock_source is not None and facts.clock_source not in GOOD_CLOCKS:
        remedy = "see why the kernel gave up the TSC: dmesg | grep -i clocksource"
        yield Check("clock", "warn", f"clock source {facts.clock_source}", "probes cost more", remedy)
    if facts.preemption:
        yield Check("preemption", "ok", facts.preemption)
    # Linux 5.11 and later charge BPF memory to the cgroup instead; older ones need the room
    if facts.memlock_bytes is not None and facts.memlock_bytes < 64 * 2**20 and not facts.is_root:
        yield Check("memlock", "warn", f"{facts.memlock_bytes} bytes", "", "LimitMEMLOCK=infinity")
    if not facts.has_systemd:
        remedy = "have something restart it, and call fairsched release when it stops"
        yield Check("systemd", "warn", "not running", "no watchdog", remedy)
    if not facts.has_group:
        group = config.control.group
        remedy = f"groupadd --system {group}"
        yield Check("group", "ok", f"no group '{group}'", "only root may use the socket", remedy)
    if facts.daemon_pid is not None:
        yield Check("daemon", "ok", f"running, pid {facts.daemon_pid}")
    elif facts.leftover_holds:
        fact = f"{facts.leftover_holds} holds left by a daemon that is gone"
        yield Check("journal", "warn", fact, "undone at the next start", "fairsched release")
