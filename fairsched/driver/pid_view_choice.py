# SPDX-License-Identifier: Apache-2.0
"""Whether the driver's process lists are translated on a host: facts, and what follows from them (pure).

pid_view.py gathers the facts and does it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PidViewFacts:
    """Facts only; the rules are in :func:`choose`."""

    is_initial_namespace: bool
    """Of this process: pids are the kernel's own."""
    has_sys_admin: bool
    has_kprobes: bool
    has_btf: bool
    lockdown: str | None
    """none, integrity or confidentiality; None: not known."""
    write_refusal: str | None
    """Why the kernel does not allow writing to user memory; None: it does, or that was not tried."""
    entry: str | None
    """The driver's ioctl function; None: there is none, or no driver."""
    has_driver: bool
    has_translator: bool


@dataclass(frozen=True)
class PidViewChoice:
    """Whether process lists are translated on this host, and why."""

    is_on: bool
    reason: str
    remedy: str = ""
    is_waiting: bool = False
    """It would be on with a driver."""


def choose(facts: PidViewFacts, wish: str) -> PidViewChoice:
    """Pure. ``wish`` is mechanisms.pid_view."""
    if wish == "off":
        return PidViewChoice(False, "mechanisms.pid_view is off")
    if not facts.is_initial_namespace:
        remedy = "run it with the host's PID namespace (hostPID: true, --pid=host)"
        return PidViewChoice(False, "fairsched itself is not in the host's PID namespace", remedy)
    if not facts.has_sys_admin:
        remedy = "add CAP_SYS_ADMIN to CapabilityBoundingSet"
        return PidViewChoice(False, "CAP_SYS_ADMIN missing: the kernel asks for it to write answers", remedy)
    if not facts.has_kprobes:
        return PidViewChoice(False, "this kernel has no kprobes", "use a kernel with CONFIG_KPROBE_EVENTS")
    if not facts.has_btf:
        remedy = "use a kernel with CONFIG_DEBUG_INFO_BTF"
        return PidViewChoice(False, "this kernel does not describe its types (BTF)", remedy)
    if facts.lockdown in ("integrity", "confidentiality"):
        remedy = "boot without Secure Boot or lockdown, or use NVIDIA's open driver, 570 or later"
        reason = f"kernel lockdown ({facts.lockdown}) forbids BPF to write to user memory"
        return PidViewChoice(False, reason, remedy)
    if facts.write_refusal is not None:
        remedy = "see whether the kernel is locked down: dmesg | grep -i lockdown"
        return PidViewChoice(False, f"writing to user memory from BPF: {facts.write_refusal}", remedy)
    if facts.entry is None and not facts.has_driver:
        return PidViewChoice(False, "no NVIDIA driver is loaded", is_waiting=True)
    if facts.entry is None:
        remedy = "report it, with the driver's version"
        return PidViewChoice(False, "the driver has no ioctl function of a known name", remedy)
    if not facts.has_translator:
        return PidViewChoice(True, "this driver speaks in pids of the host")
    return PidViewChoice(True, "on, where the driver does not translate by itself")
