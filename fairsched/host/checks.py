# SPDX-License-Identifier: Apache-2.0
"""Makes the rows of ``fairsched doctor`` from the facts and the choice (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairsched.base.text import counted
from fairsched.cgroup.journal import BrakeName
from fairsched.driver import hooks
from fairsched.driver.pid_view_choice import choose as choose_pid_view
from fairsched.host import driver_calls, trace
from fairsched.host import gate as gate_check
from fairsched.host.brake import choose_brake, freezer_obstacle
from fairsched.host.choose import choose, ebpf_obstacle, missing_capabilities, switched_off
from fairsched.host.facts import NEEDED_CAPABILITIES, ONLY_ROOT_SEES, Check, DcgmFact, HostFacts, Level

if TYPE_CHECKING:
    from fairsched.config import Config


GOOD_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})
"""Read in user space or a few cycles; the others cost microseconds for every probe hit."""


def checks(facts: HostFacts, config: Config) -> list[Check]:
    """The rows of ``doctor``, in the order in which a person would look."""
    return [
        *_privilege_checks(facts),
        *_namespace_check(facts),
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
        yield Check(
            "root", "warn", "not root", f"not looked at: {'; '.join(ONLY_ROOT_SEES)}", "run it with sudo"
        )
    missing = missing_capabilities(facts)
    if missing:
        uses = ", ".join(f"{name} ({NEEDED_CAPABILITIES[name]})" for name in missing)
        yield Check("capabilities", "fail", f"missing: {uses}", "", "add them to CapabilityBoundingSet")
    else:
        yield Check(
            "capabilities", "ok", "all that are needed" if facts.is_root else "root has all that are needed"
        )


def _namespace_check(facts: HostFacts) -> Iterator[Check]:
    if facts.has_own_pid_namespace:
        yield Check(
            "pid namespace",
            "warn",
            "not the host's: processes have other numbers here than BPF and the driver tell",
            "GPU time is charged to the wrong ones",
            "run it with the host's PID namespace (hostPID: true, --pid=host)",
        )


def _cgroup_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    if facts.cgroup_mount is None:
        remedy = "boot with systemd.unified_cgroup_hierarchy=1; a mount alone has no tenants in it"
        yield Check("cgroup2", "fail", "not mounted", "cannot run", remedy)
        return
    if facts.is_cgroup_v1:
        choice = "tenants are told by systemd's hierarchy of cgroup v1: no eBPF account, no device gate"
        remedy = "boot with systemd.unified_cgroup_hierarchy=1"
        yield Check("cgroup2", "warn", f"not in use; cgroup v1 at {facts.cgroup_mount}", choice, remedy)
    else:
        hybrid = ", beside cgroup v1" if facts.is_cgroup_hybrid else ""
        yield Check("cgroup2", "ok", f"at {facts.cgroup_mount}{hybrid}")
    obstacle = freezer_obstacle(facts, config)
    yield Check(
        "freezer",
        _level(obstacle is None, config.mechanisms.freezer),
        _freezer_fact(facts) if obstacle is None else obstacle,
        "tenants can be held" if obstacle is None else "not used",
        "" if facts.has_freezer is not False else "use a kernel with cgroup.freeze (Linux 5.2)",
    )
    yield _brake_check(facts, config)
    if facts.sees_foreign_pauses is False:
        choice = "a pause made while we hold the cgroup ends with our hold"
        yield Check("pauses", "warn", "writes to cgroup.freeze cannot be watched", choice)


_BETTER_BRAKE = "use a kernel with cgroup.freeze (Linux 5.2), and mechanisms.brake: auto"


def _brake_check(facts: HostFacts, config: Config) -> Check:
    brake, reason = choose_brake(facts, config)
    if brake is None:
        is_wished = config.mechanisms.brake == "none" or config.mechanisms.freezer == "off"
        remedy = (
            "use a kernel with cgroup.freeze (Linux 5.2), mount the freezer of cgroup v1, "
            "or grant CAP_KILL to hold by signals"
        )
        return Check("brake", "ok" if is_wished else "warn", f"none: {reason}", "observe only", remedy)
    if brake is BrakeName.FREEZER:
        return Check("brake", "ok", f"freezer: {reason}", "tenants are held whole")
    if brake is BrakeName.CGPU:
        return Check(
            "brake", "ok", f"cgpu: {reason}", "a vendor's module shares the GPU; mode observe for the rest"
        )
    if brake is BrakeName.FREEZER_V1:
        what = "tenants are held whole, in groups of ours below the v1 freezer; SIGKILL waits for the thaw"
        return Check("brake", "warn", f"freezer_v1: {reason}", what, _BETTER_BRAKE)
    what = "processes are stopped one by one; a tenant may continue its own"
    return Check("brake", "warn", f"sigstop: {reason}", what, _BETTER_BRAKE)


def _freezer_fact(facts: HostFacts) -> str:
    if facts.freeze_latency_ns is None:
        return "cgroup.freeze is there, and was not tried"
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
        level = "confidentiality: BPF may not read the kernel's memory"
        yield Check("lockdown", "warn", level, "calls to the driver may go unseen", remedy)
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
        yield Check("nvml", "ok", f"driver {facts.driver_version}, {counted(len(facts.gpus), 'GPU')}")
        yield trace.check(config, facts.driver_version)
        if facts.gpus:
            yield _xid_check(facts.xid_obstacle, config)
    if facts.dcgm is not None:
        is_wanted = ebpf_obstacle(facts, config) is not None
        yield _dcgm_check(
            facts.dcgm, config, is_wanted=is_wanted, has_mig=any(one.has_mig for one in facts.gpus)
        )
    for gpu in facts.gpus:
        mig = ", MIG on" if gpu.has_mig else ""
        yield Check("gpu", "ok", f"{gpu.name} {gpu.uuid}{mig}")
        if gpu.mps_clients:
            yield Check(
                "mps",
                "warn",
                f"{counted(gpu.mps_clients, 'client')} of MPS on {gpu.uuid}",
                "tenants that are clients of the node's own MPS server share one context: they are not held, and what "
                "each used is an estimate",
                "share by time instead: leave CUDA_MPS_PIPE_DIRECTORY unset in tenants, or set tenants' threads with "
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            )
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


def _xid_check(obstacle: str | None, config: Config) -> Check:
    if obstacle is None:
        return Check("xid", "ok", "NVML hands on the driver's errors")
    is_missed = config.metrics.listen is not None
    return Check(
        "xid",
        "warn" if is_missed else "ok",
        f"NVML hands on no errors of the driver: {obstacle}",
        "no fairsched_gpu_xid_errors_total, and no alert from it" if is_missed else "",
        "have dcgm-exporter scraped, or watch dmesg for Xid" if is_missed else "",
    )


def _dcgm_check(dcgm: DcgmFact, config: Config, *, is_wanted: bool, has_mig: bool) -> Check:
    """``is_wanted``: samples are the account, so that it matters."""
    level = _level(dcgm.is_ok, config.gpu.dcgm, "ok")
    if dcgm.is_ok:
        wanted = "scales NVML's samples" + (", and is the account of MIG instances" if has_mig else "")
        return Check("dcgm", level, dcgm.detail, wanted if is_wanted else "not needed beside eBPF")
    is_missed = is_wanted or level != "ok"
    return Check(
        "dcgm",
        level,
        dcgm.detail,
        "NVML's samples are not scaled" if is_missed else "",
        "start nvidia-dcgm, or name a page in gpu.dcgm_exporter" if is_missed else "",
    )


def _driver_checks(facts: HostFacts, config: Config) -> Iterator[Check]:
    off = switched_off(config, "driver")
    if off is not None:
        yield Check("driver calls", "ok", off, "no contexts and no VRAM per tenant")
    elif facts.hooks is not None:
        yield driver_calls.check(hooks.choose(facts.hooks), facts.hook_in_force)


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
    if not facts.has_systemd:
        remedy = "have something restart it, and call fairsched release when it stops"
        yield Check("systemd", "warn", "not running", "no watchdog", remedy)
    if not facts.has_group:
        group = config.control.group
        remedy = f"groupadd --system {group}"
        yield Check("group", "ok", f"no group '{group}'", "only root may use the socket", remedy)
    if facts.daemon_pid is not None:
        yield _daemon_check(facts, config)
    elif facts.leftover_holds:
        fact = f"{counted(facts.leftover_holds, 'hold')} left by a daemon that is gone"
        yield Check("journal", "warn", fact, "undone at the next start", "fairsched release")


def _daemon_check(facts: HostFacts, config: Config) -> Check:
    """The mode that it is in is the one in force, whatever would be chosen now."""
    fact = f"running, pid {facts.daemon_pid}"
    if facts.daemon_mode is None:
        return Check("daemon", "ok", fact)
    fact += f", mode {facts.daemon_mode}"
    would = choose(facts, config).mode
    if (
        facts.daemon_mode == would or not facts.is_root
    ):  # who is not root finds less here than the daemon does
        return Check("daemon", "ok", fact)
    why = f"{facts.daemon_mode_reason}; " if facts.daemon_mode_reason else ""
    remedy = "fairsched config reload; if that changes nothing: systemctl restart fairsched"
    return Check("daemon", "warn", fact, f"{why}this file on this host comes to {would}", remedy)
