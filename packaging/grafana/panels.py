# SPDX-License-Identifier: Apache-2.0
"""What the dashboard shows: a table per row, an entry per panel. ``board.py`` turns it into Grafana's JSON.

Expressions name metrics of the exporter alone (docs/metrics.md). Every one is narrowed by the variable node, and by
gpu and tenant where it has such a label.
"""

from __future__ import annotations

from dataclasses import dataclass

N = 'instance=~"$node"'
T = f'{N}, tenant=~"$tenant"'
G = f'{N}, gpu_uuid=~"$gpu"'
TG = f'{T}, gpu_uuid=~"$gpu"'


@dataclass(frozen=True)
class Picture:
    """One panel."""

    title: str
    why: str
    """Shown when one points at its title."""
    unit: str
    targets: dict[str, str]
    """Expression by legend."""
    width: int = 12
    """Of 24 columns."""
    limit: float | None = None
    """Beyond it the panel turns red."""
    is_bad_below: bool = False
    """Below the limit, that is."""
    is_one_number: bool = False


def number(
    title: str, unit: str, expression: str, why: str, limit: float, is_bad_below: bool = False
) -> Picture:
    return Picture(title, why, unit, {"": expression}, 4, limit, is_bad_below, True)


def p99(by: str, labels: str, metric: str = "fairsched_queue_delay_seconds", q: float = 0.99) -> str:
    inside = "le" if not by else f"le, {by}"
    return f"histogram_quantile({q}, sum by ({inside}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))"


SERVICE_LEVELS = [
    number(
        "Fair",
        "short",
        f"min(fairsched_is_fair{{{N}}})",
        "1 while token rates vary by less than 5 % on every node, else 0. No data: no tenant's tokens can be counted.",
        1,
        True,
    ),
    number(
        "Token rate CV",
        "percentunit",
        f"max(fairsched_sli_token_rate_cv_ratio{{{N}}})",
        "Golden SLI: coefficient of variation of token/s across tenants, each by its entitlement; the worst node.",
        0.05,
    ),
    number(
        "Queue delay p99",
        "s",
        p99("", TG),
        "Golden SLI: time that one turn in a hundred is waited for, at least. n fair tenants wait n - 1 turns.",
        0.02,
    ),
    number(
        "SM utilisation stdev",
        "percentunit",
        f"max(fairsched_sli_sm_utilization_stdev_ratio{{{N}}})",
        "Golden SLI: standard deviation of the utilisation of the GPU where it is largest.",
        0.2,
    ),
    number(
        "Largest share error",
        "percentunit",
        f"max(fairsched_fairness_error_ratio{{{N}}})",
        "Largest distance of a tenant's share from its entitlement, among tenants that want the GPU.",
        0.05,
    ),
    number(
        "Nodes that answer",
        "short",
        f"sum(fairsched_up{{{N}}})",
        "Nodes whose daemon has told its status within the last seconds.",
        1,
        True,
    ),
    Picture(
        "Queue delay p99 by tenant",
        "Whose work waits for its turn. Right within a bucket: 1.25 times from 8 to 134 ms, elsewhere twice.",
        "s",
        {
            "{{tenant}}": p99("tenant", TG),
            "fair turns take": f"max(fairsched_sli_queue_delay_floor_seconds{{{N}}})",
        },
        limit=0.02,
    ),
    Picture(
        "Service levels in time",
        "Token rate CV and stdev of SM utilisation of each node. Below 5 % the first is fair.",
        "percentunit",
        {
            "{{instance}} token rate CV": f"fairsched_sli_token_rate_cv_ratio{{{N}}}",
            "{{instance}} SM stdev": f"fairsched_sli_sm_utilization_stdev_ratio{{{N}}}",
        },
    ),
]

TENANTS = [
    Picture(
        "Share",
        "Part of what the GPU delivered in the window. Compare with the entitlement beside it.",
        "percentunit",
        {"{{tenant}}": f"fairsched_share_ratio{{{TG}}}"},
    ),
    Picture(
        "Entitlement",
        "Part that is due to the tenant, by its weight among those that want the GPU now. Gaps: it wants nothing.",
        "percentunit",
        {"{{tenant}}": f"fairsched_entitlement_ratio{{{TG}}}"},
    ),
    Picture(
        "Lag",
        "GPU time that is owed to a tenant (above 0), or that it is ahead (below). It is bounded by 400 ms either way.",
        "s",
        {"{{tenant}}": f"fairsched_lag_seconds{{{TG}}}"},
    ),
    Picture(
        "GPU time",
        "GPU seconds received per second, over all GPUs: how many GPUs the tenant has in effect.",
        "short",
        {"{{tenant}}": f"sum by (tenant) (rate(fairsched_gpu_time_seconds_total{{{TG}}}[$__rate_interval]))"},
    ),
    Picture(
        "Tokens per second",
        "By the metrics of the tenants' own servers, where they have them (tokens_url).",
        "short",
        {"{{tenant}}": f"fairsched_tokens_per_second{{{T}}}"},
    ),
    Picture(
        "Token rate CV of each tenant",
        "How evenly each server's own rate runs in time, in windows of a second.",
        "percentunit",
        {"{{tenant}}": f"fairsched_token_rate_cv_ratio{{{T}}}"},
        limit=0.05,
    ),
    Picture(
        "Tenants by state",
        "How many run, are held, idle, exempt, away (no process opened a GPU), or paused by somebody else (foreign).",
        "short",
        {"{{state}}": f"sum by (state) (fairsched_tenant_state{{{T}}})"},
    ),
    Picture(
        "GPU memory",
        "By the driver's ioctls; what NVML says of whole GPUs is further down.",
        "bytes",
        {"{{tenant}}": f"sum by (tenant) (fairsched_vram_bytes{{{TG}}})"},
    ),
]

HOLDS = [
    Picture(
        "Time held",
        "Part of each second for which a tenant is frozen by fairsched, by the reason for which the holds began.",
        "percentunit",
        {
            "{{tenant}} {{reason}}": f"sum by (tenant, reason) "
            f"(rate(fairsched_held_seconds_total{{{T}}}[$__rate_interval]))"
        },
    ),
    Picture(
        "Present holds",
        "How long the hold in progress has lasted (0: none) and the longest allowed, which the first must not reach.",
        "s",
        {
            "{{tenant}} held": f"max by (tenant) (fairsched_hold_age_seconds{{{T}}})",
            "{{tenant}} limit": f"max by (tenant) (fairsched_hold_limit_seconds{{{T}}})",
        },
    ),
    Picture(
        "Holds by reason",
        "Holds begun per second: over entitlement, over quota, too deep a queue, too much memory.",
        "ops",
        {"{{reason}}": f"sum by (reason) (rate(fairsched_holds_total{{{T}}}[$__rate_interval]))"},
    ),
    Picture(
        "Thaws by reason",
        "Holds ended per second. Many by deadline: queues are deeper than the longest hold can repay.",
        "ops",
        {"{{reason}}": f"sum by (reason) (rate(fairsched_thaws_total{{{T}}}[$__rate_interval]))"},
    ),
]

GPUS = [
    Picture(
        "Busy, by our account",
        "Part of the window in which the GPU worked for anybody, and for processes of no tenant.",
        "percentunit",
        {
            "{{gpu_uuid}}": f"fairsched_gpu_busy_ratio{{{G}}}",
            "{{gpu_uuid}} unmanaged": f"fairsched_gpu_unmanaged_ratio{{{G}}}",
        },
    ),
    Picture(
        "Utilisation, by NVML",
        "Part of the time in which any kernel ran. It says nothing of how much of the GPU that kernel used.",
        "percentunit",
        {"{{gpu_uuid}}": f"fairsched_gpu_utilization_ratio{{{G}}}"},
    ),
    Picture(
        "Memory",
        "Used and total, by NVML. Above 95 % the next allocation of any tenant may fail.",
        "bytes",
        {
            "{{gpu_uuid}} used": f"fairsched_gpu_memory_used_bytes{{{G}}}",
            "{{gpu_uuid}} total": f"fairsched_gpu_memory_total_bytes{{{G}}}",
        },
    ),
    Picture(
        "Temperature",
        "By NVML. Most cards slow down a few degrees above 85.",
        "celsius",
        {"{{gpu_uuid}}": f"fairsched_gpu_temperature_celsius{{{G}}}"},
        limit=85,
    ),
    Picture(
        "Power",
        "What the board draws and what the driver lets it draw, by NVML. Near the limit it lowers its clocks.",
        "watt",
        {
            "{{gpu_uuid}}": f"fairsched_gpu_power_watts{{{G}}}",
            "{{gpu_uuid}} limit": f"fairsched_gpu_power_limit_watts{{{G}}}",
        },
        width=8,
    ),
    Picture(
        "PCIe",
        "Traffic to and from the GPU, by NVML: 20 ms of every few seconds, so peaks are missed. Gen5 x16 has 64 GB/s.",
        "Bps",
        {"{{gpu_uuid}} {{direction}}": f"fairsched_gpu_pcie_bytes_per_second{{{G}}}"},
        width=8,
    ),
    Picture(
        "SMs and tensor cores",
        "Part of the time in which they worked, by NVML (GPM). No data: a GPU before Hopper, in MIG mode, or virtual.",
        "percentunit",
        {"{{gpu_uuid}} {{part}}": f"fairsched_gpu_active_ratio{{{G}}}"},
        width=8,
    ),
    Picture(
        "Fairness of each GPU (Jain)",
        "Weighted Jain index of share by entitlement of the tenants that want it; 1 is fair, 1/n is one who has all.",
        "short",
        {"{{gpu_uuid}}": f"fairsched_fairness_jain_ratio{{{G}}}"},
        width=8,
        limit=0.98,
        is_bad_below=True,
    ),
    Picture(
        "Queued work",
        "GPU time that a tenant has queued: what would still run if it were frozen now.",
        "s",
        {"{{tenant}}": f"sum by (tenant) (fairsched_drain_seconds{{{TG}}})"},
        width=8,
    ),
    Picture(
        "Errors by the driver (Xid)",
        "All of each GPU, and those that came by number, since the companion began. No data: nobody listens.",
        "short",
        {
            "{{gpu_uuid}} {{xid}}": f"sum by (gpu_uuid, xid) (fairsched_gpu_xid_errors_total{{{G}}}) > 0"
            f" or sum by (gpu_uuid) (fairsched_gpu_xid_errors_total{{{G}}})"
        },
        width=8,
        limit=1,
    ),
]

COST = [
    Picture(
        "Processors",
        "What each process of fairsched uses, in processors.",
        "percentunit",
        {
            "{{process}}": f"sum by (process) (rate(fairsched_process_cpu_seconds_total{{{N}}}[$__rate_interval]))",
        },
    ),
    Picture(
        "Memory of fairsched",
        "Resident memory of each process, and kernel memory of the BPF maps.",
        "bytes",
        {
            "{{process}}": f"sum by (process) (fairsched_process_resident_bytes{{{N}}})",
            "BPF maps": f"sum(fairsched_bpf_map_memory_bytes{{{N}}})",
        },
    ),
    Picture(
        "Tick",
        "How long a round of observe, decide and apply takes. It must stay far below tick_ms.",
        "s",
        {
            "p50": p99("", N, "fairsched_tick_duration_seconds", 0.5),
            "p99": p99("", N, "fairsched_tick_duration_seconds"),
        },
    ),
    Picture(
        "Late, failed, lost",
        "Ticks that came late or failed, actions that failed, events that BPF lost. All but the first should be 0.",
        "cps",
        {
            "late ticks": f"sum(rate(fairsched_late_ticks_total{{{N}}}[$__rate_interval]))",
            "failed ticks": f"sum(rate(fairsched_failed_ticks_total{{{N}}}[$__rate_interval]))",
            "errors": f"sum(rate(fairsched_errors_total{{{N}}}[$__rate_interval]))",
            "lost events": f"sum(rate(fairsched_bpf_dropped_total{{{N}}}[$__rate_interval]))",
        },
    ),
    Picture(
        "BPF tables",
        "How full each table is, where counting is free. Full: events are lost.",
        "percentunit",
        {
            "{{map}}": f"max by (map) (fairsched_bpf_map_entries{{{N}}}"
            f" / fairsched_bpf_map_capacity_entries{{{N}}})"
        },
    ),
    Picture(
        "Exporter",
        "What it takes to write the page that Prometheus reads, and how old the status on it is.",
        "s",
        {
            "{{instance}} render": f"fairsched_exporter_render_seconds{{{N}}}",
            "{{instance}} age": f"fairsched_snapshot_age_seconds{{{N}}}",
        },
    ),
]

ROWS = {
    "Service levels": SERVICE_LEVELS,
    "Tenants": TENANTS,
    "Holds": HOLDS,
    "GPUs": GPUS,
    "What fairsched costs": COST,
}
