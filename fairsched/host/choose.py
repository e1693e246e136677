# SPDX-License-Identifier: Apache-2.0
"""Chooses from the facts which account is used, and whether tenants can be held (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairsched.driver.pid_view_choice import choose as choose_pid_view
from fairsched.host import gate as gate_check
from fairsched.host.brake import brake_refusal, choose_brake
from fairsched.host.facts import NEEDED_CAPABILITIES, NVML_LIMIT, Choices, HostFacts
from fairsched.model import Source

if TYPE_CHECKING:
    from fairsched.config import Config


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


def choose(facts: HostFacts, config: Config) -> Choices:
    """The account, whether tenants can be held, and what stands in the way."""
    ebpf, nvml = ebpf_obstacle(facts, config), nvml_obstacle(facts, config)
    gate = gate_check.obstacle(facts, config)
    source, source_reason = choose_source(config.gpu.source, ebpf, nvml)
    brake, hold_reason = choose_brake(facts, config)
    obstacles = [
        f"{mechanism} is required, but {obstacle}"
        for mechanism, obstacle in (
            ("ebpf", ebpf),
            ("nvml", nvml),
            ("device_gate", gate),
        )
        if obstacle is not None and getattr(config.mechanisms, mechanism) == "required"
    ]
    if (refusal := brake_refusal(facts, config)) is not None:
        obstacles.append(refusal)
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
    can_hold = brake is not None
    if can_hold and source is Source.NVML:
        can_hold, hold_reason = False, NVML_LIMIT
    if mode != "observe" and not can_hold:
        mode = "observe"
    name = "none" if brake is None else brake.value
    return Choices(source, source_reason, can_hold, hold_reason, mode, tuple(dict.fromkeys(obstacles)), name)


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
