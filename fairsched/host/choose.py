# SPDX-License-Identifier: Apache-2.0
"""Chooses from the facts which account is used, and whether tenants can be held (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairsched.driver.pid_view_choice import choose as choose_pid_view
from fairsched.gpu.nvml import ONLY_MIG
from fairsched.host import gate as gate_check
from fairsched.host.brake import brake_lack, brake_refusal, choose_brake
from fairsched.host.facts import NEEDED_CAPABILITIES, ONLY_ROOT_SEES, Choices, HostFacts
from fairsched.host.mode import asked, in_effect, obstacle_of
from fairsched.host.trace import obstacle_alone
from fairsched.model import Source

if TYPE_CHECKING:
    from fairsched.config import Config


OWN_PID_NAMESPACE = (
    "the driver names processes by their numbers in the initial PID namespace, and this is another"
)
ONLY_V1 = "cgroup v2 is not in use, and BPF tells of no other cgroups"


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
    if facts.is_cgroup_v1:
        return ONLY_V1
    if facts.bcc_version is None:
        return "bcc is not installed"
    missing = [name for name in missing_capabilities(facts) if name in ("CAP_BPF", "CAP_PERFMON")]
    if missing:
        return f"{' and '.join(missing)} missing"
    if not facts.has_uprobes:
        return "this kernel has no uprobes"
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
    return ONLY_MIG if facts.gpus and all(gpu.has_mig for gpu in facts.gpus) else None


def but_mig(nvml: str | None) -> str | None:
    """An obstacle to samples that is one to DCGM, too: it tells the load of MIG instances, which have none."""
    return None if nvml == ONLY_MIG else nvml


def trace_obstacle(facts: HostFacts, config: Config) -> str | None:
    """Why the trace cannot be the account, as far as that is known before it is asked for; None when it may."""
    if (nvml := nvml_obstacle(facts, config)) is not None:
        return f"which GPUs there are is not known: {nvml}"
    if (found := obstacle_alone(config, facts.driver_version)) is not None:
        return found
    if "CAP_SYS_ADMIN" not in facts.capabilities:
        return "CAP_SYS_ADMIN missing"
    return OWN_PID_NAMESPACE if facts.has_own_pid_namespace else None


def dcgm_obstacle(facts: HostFacts, config: Config) -> str | None:
    """Why NVML's samples cannot be scaled to the load that DCGM tells; None when they can."""
    if config.gpu.dcgm == "off":
        return "gpu.dcgm is off"
    if (nvml := but_mig(nvml_obstacle(facts, config))) is not None:
        return f"there are no samples to scale: {nvml}"
    if facts.dcgm is None:
        return "not asked"
    return None if facts.dcgm.is_ok else facts.dcgm.detail


def choose(facts: HostFacts, config: Config) -> Choices:
    """The account, whether tenants can be held, and what stands in the way."""
    ebpf, nvml = ebpf_obstacle(facts, config), nvml_obstacle(facts, config)
    dcgm, trace = dcgm_obstacle(facts, config), trace_obstacle(facts, config)
    gate = gate_check.obstacle(facts, config)
    source, source_reason = choose_source(config.gpu.source, ebpf, nvml, dcgm, trace)
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
    if dcgm is not None and config.gpu.dcgm == "required":
        obstacles.append(f"gpu.dcgm is required, but {dcgm}")
    if (refusal := brake_refusal(facts, config)) is not None:
        obstacles.append(refusal)
    if config.mechanisms.pid_view == "required" and facts.pid_view is not None:
        view = choose_pid_view(facts.pid_view, "required")
        if not view.is_on and not view.is_waiting:
            obstacles.append(f"pid_view is required, but {view.reason}")
    if facts.cgroup_mount is None:
        obstacles.append("cgroup v2 is not mounted")
    if source is None:
        obstacles.append(f"no account of GPU time: {source_reason}")
    lack, unwanted = brake_lack(facts, config), obstacle_of(source, config)
    if lack is None and unwanted is not None:
        hold_reason = unwanted
    mode = in_effect(
        asked(config, is_dry_run=False, no_brake=lack), config, source=source, lack=None
    )  # whether the guardian starts is known when it does
    return Choices(
        source,
        source_reason,
        lack is None and unwanted is None,
        hold_reason,
        mode.name,
        tuple(dict.fromkeys(obstacles)),
        "none" if brake is None else brake.value,
        mode.reason,
        () if facts.is_root else ONLY_ROOT_SEES,
    )


def choose_source(
    wanted: str,
    ebpf: str | None,
    nvml: str | None,
    dcgm: str | None = "not asked",
    trace: str | None = "not asked",
) -> tuple[Source | None, str]:
    """The account and why: ``wanted`` is gpu.source, the others say what stands in the way of each.

    The daemon asks this, too, with what it met when it tried.
    """
    if wanted == "ebpf":
        return (Source.EBPF, "gpu.source asks for it") if ebpf is None else (None, f"ebpf: {ebpf}")
    if wanted == "trace":
        return (Source.TRACE, "gpu.source asks for it") if trace is None else (None, f"trace: {trace}")
    if wanted == "dcgm":
        return (Source.DCGM, "gpu.source asks for it") if dcgm is None else (None, f"dcgm: {dcgm}")
    if wanted == "nvml":
        return (Source.NVML, "gpu.source asks for it") if nvml is None else (None, f"nvml: {nvml}")
    if ebpf is None:
        return Source.EBPF, "the most exact account"
    if trace is None:
        return Source.TRACE, f"ebpf cannot be used: {ebpf}"
    if dcgm is None:
        return Source.DCGM, f"ebpf cannot be used: {ebpf}"
    if nvml is None:
        return Source.NVML, f"ebpf cannot be used: {ebpf}"
    return None, f"ebpf: {ebpf}; nvml: {nvml}"
