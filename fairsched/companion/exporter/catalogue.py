# SPDX-License-Identifier: Apache-2.0
"""Every metric family of the exporter, and nothing else: docs/metrics.md is written from this.

To add one: a line here, and a line in readings.py that fills it. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairsched.companion.exporter.family import Family, Kind

_TENANT = ("tenant",)
_WHERE = ("tenant", "gpu_uuid")
_GPU = ("gpu_uuid",)
_ACCOUNT, _POLICY, _NVML, _IOCTLS = "account", "policy", "NVML", "driver's ioctls"
_DAEMON, _BPF, _PROC, _EXPORTER = "daemon", "BPF counters", "/proc", "exporter"
_FREEZER, _COMPANION, _GUARD = "freezer", "companion", "guard"


def _gauge(name: str, source: str, labels: tuple[str, ...], about: str) -> Family:
    return Family(f"fairsched_{name}", Kind.GAUGE, about, source, labels, _unit(name))


def _counter(name: str, source: str, labels: tuple[str, ...], about: str) -> Family:
    return Family(f"fairsched_{name}", Kind.COUNTER, about, source, labels, _unit(name))


def _histogram(name: str, source: str, labels: tuple[str, ...], about: str) -> Family:
    return Family(f"fairsched_{name}", Kind.HISTOGRAM, about, source, labels, _unit(name))


def _info(name: str, source: str, labels: tuple[str, ...], about: str) -> Family:
    return Family(f"fairsched_{name}", Kind.INFO, about, source, labels)


def _unit(name: str) -> str:
    last = name.rpartition("_")[2]
    return last if last in ("seconds", "bytes", "ratio", "celsius", "watts") else ""


DAEMON = (
    _gauge("up", _EXPORTER, (), "1 while the daemon answers the exporter, 0 while it does not."),
    _info("build", _DAEMON, ("version",), "The daemon that runs."),
    _info("mode", _DAEMON, ("mode",), "Mode in effect: enforce, observe or dry_run."),
    _info(
        "source",
        _DAEMON,
        ("source",),
        "Where GPU time comes from: ebpf, dcgm or nvml; absent while there is no account.",
    ),
    _gauge(
        "source_error_points",
        _ACCOUNT,
        ("window_s",),
        "How far a share may be off over a window of so many seconds, in points of a GPU, in 19 of 20 windows.",
    ),
    _counter(
        "nvml_odd_answers",
        _ACCOUNT,
        ("what",),
        "What NVML's accounting mode said that cannot be (fallen_sum, more_than_samples, more_than_time), a reused_pid "
        "and each unseen_process that ended before anybody knew whose it was; while samples are the account.",
    ),
    _counter(
        "trace_oddities",
        _ACCOUNT,
        ("what",),
        "Of the trace of context switches while it is the account: holes, what was guessed after one (guessed), stays "
        "of contexts that the driver cannot name (unnamed), processes that ended before it was known whose they were "
        "(nobodys), slices found to be longer than was believed (slices).",
    ),
    _gauge("start_time_seconds", _DAEMON, (), "When the daemon started, Unix time."),
    _gauge(
        "config_error", _DAEMON, (), "1 while the file on disk is refused and an older configuration runs on."
    ),
    _gauge("warnings", _DAEMON, (), "How many warnings fairsched status shows."),
    _gauge("window_seconds", _DAEMON, (), "Window over which shares and fairness are measured."),
    _gauge("snapshot_age_seconds", _EXPORTER, (), "Age of the daemon's status that this page shows."),
    _gauge("pid_view", _DAEMON, (), "1 while containers are shown their own processes by the driver."),
    _gauge("device_gate", _DAEMON, (), "1 while what the configuration says of GPUs is wholly in force."),
    _counter("denied_opens", _BPF, _TENANT, "Opens of GPUs refused; tenant is empty for cgroups of none."),
    _counter("blind_opens", _BPF, (), "Opens of GPUs let through because the cgroup could not be read."),
)

COST = (
    _gauge("cpu_ratio", _PROC, (), "What the daemon costs, of one processor, over ten seconds."),
    _counter(
        "process_cpu_seconds", _PROC, ("process",), "CPU time of the daemon and its helpers, user and system."
    ),
    _gauge("process_resident_bytes", _PROC, ("process",), "Memory of the daemon and its helpers."),
    _histogram("tick_duration_seconds", _DAEMON, (), "How long the daemon took to observe, decide, apply."),
    _counter("late_ticks", _DAEMON, (), "Ticks that began later than they were due, by more than tick_ms."),
    _counter("failed_ticks", _DAEMON, (), "Ticks that failed; everybody is thawed then."),
    _counter(
        "errors",
        _DAEMON,
        ("part",),
        "What failed and was given up, by part: tick, housekeeping, freezer, misbehaviour, driver, vram.",
    ),
    _counter(
        "bpf_dropped",
        _BPF,
        ("programs", "what"),
        "Events that BPF lost: while this grows, what it counts is too low.",
    ),
    _counter(
        "bpf_errors", _BPF, ("programs", "what"), "What BPF met that should not happen, and coped with."
    ),
    _gauge("bpf_map_entries", "BPF maps", ("map",), "Entries of a map, where they are quickly counted."),
    _gauge("bpf_map_capacity_entries", "BPF maps", ("map",), "Most entries that a map can have."),
    _gauge("bpf_map_memory_bytes", "BPF maps", ("map",), "Memory of the kernel for a map."),
    _counter(
        "control_requests",
        _DAEMON,
        ("outcome",),
        "Requests on the control socket: answered, refused, dropped (too slow or too long), fault.",
    ),
    _gauge("companion_up", _DAEMON, (), "1 while the daemon has a companion process, which exports this."),
    _counter("companion_restarts", _DAEMON, (), "How often the companion had to be started again."),
)

SHARES = (
    _counter("gpu_time_seconds", _ACCOUNT, _WHERE, "GPU time received, since accounting began."),
    _gauge(
        "entitlement_ratio",
        _POLICY,
        _WHERE,
        "Part of what the GPU delivers that is the tenant's due now; absent while it wants nothing.",
    ),
    _gauge("share_ratio", _POLICY, _WHERE, "Part of what the GPU delivered that it got in the last window."),
    _gauge(
        "share_error_ratio",
        _ACCOUNT,
        _WHERE,
        "How far its share may be off, in parts of it, in 19 of 20 cases; absent: nothing is known of it.",
    ),
    _gauge("lag_seconds", _POLICY, _WHERE, "GPU time it is owed; negative: it is ahead and owes."),
    _gauge(
        "drain_seconds",
        _ACCOUNT,
        _WHERE,
        "GPU time it has queued: what would still run if it were frozen now.",
    ),
    _histogram("queue_delay_seconds", "BPF map delay_by_key", _WHERE, "How long its work waited for a turn."),
    _info(
        "tenant", _DAEMON, ("tenant", "class"), "Class of a tenant, latency or batch: batch is held first."
    ),
    _gauge("weight", _DAEMON, _TENANT, "Its weight, overrides included."),
    _gauge("quota_ratio", _DAEMON, _TENANT, "Most of a GPU it may have, even an idle one; absent: no cap."),
    _gauge(
        "tenant_state",
        _DAEMON,
        ("tenant", "state"),
        "1 for what it is doing now, 0 for the others: run, held, idle, exempt, away, foreign.",
    ),
    _gauge(
        "low_confidence",
        _ACCOUNT,
        _TENANT,
        "1 while its account is doubted on some GPU, so that nobody is held for it; 0 while it is believed.",
    ),
    _gauge(
        "fairness_jain_ratio", _POLICY, _GPU, "Jain's index of share by entitlement, last window; 1 is fair."
    ),
    _gauge(
        "fairness_error_ratio",
        _POLICY,
        (),
        "Largest distance of a tenant's share from its entitlement in the last window.",
    ),
)

HOLDS = (
    _counter("holds", _FREEZER, ("tenant", "reason"), "Times it was frozen, by why each hold began."),
    _counter("thaws", _FREEZER, ("tenant", "reason"), "Times it was let go, by why each hold ended."),
    _counter("held_seconds", _FREEZER, ("tenant", "reason"), "Time it was held, by why each hold began."),
    _gauge("hold_age_seconds", _FREEZER, _TENANT, "How long the present hold has lasted; 0: it is not held."),
    _gauge(
        "hold_limit_seconds",
        _DAEMON,
        _TENANT,
        "Longest hold of it that is allowed: of the one that lasts, else of its class.",
    ),
    _gauge(
        "misbehaving",
        _DAEMON,
        ("tenant", "gpu_uuid", "kind"),
        "1 while work of the tenant never ends (endless), cannot be seen (unseen), or leaves its cgroups (moving).",
    ),
    _counter("terminations", _DAEMON, ("tenant", "kind"), "Processes told to end, by why."),
)

DRIVER = (
    _gauge("contexts", _IOCTLS, _WHERE, "Compute contexts it has open."),
    _gauge("vram_bytes", _IOCTLS, _WHERE, "GPU memory that the tenant has."),
    _gauge("vram_limit_bytes", _DAEMON, _TENANT, "Memory it may have on each GPU, those below it included."),
    _gauge("vram_limited_bytes", _IOCTLS, _WHERE, "Memory that it has of what its limit allows."),
    _gauge("vram_over", _IOCTLS, _WHERE, "1 while the tenant is beyond its limit, else 0."),
    _counter("vram_refused", _BPF, _WHERE, "Allocations that the kernel refused it."),
    _counter("driver_ioctls", _IOCTLS, _TENANT, "Calls of the tenant to the driver."),
    _counter("driver_ioctls_failed", _IOCTLS, _TENANT, "Calls to the driver that failed."),
    _counter("driver_ioctl_seconds", _IOCTLS, _TENANT, "Time spent in calls to the driver."),
    _counter("driver_opens", _IOCTLS, _TENANT, "Device nodes of the driver it opened."),
    _counter("driver_missed", _BPF, ("what",), "What BPF could not follow of the driver's calls."),
)

GPUS = (
    _info("gpu", _NVML, ("gpu_uuid", "index", "name"), "Index and name of a GPU, for display."),
    _info(
        "mig",
        _NVML,
        ("gpu_uuid", "parent_uuid", "gpu_instance", "compute_instance", "profile"),
        "Which part of which GPU a MIG instance is: its gpu_uuid is that of a GPU everywhere else.",
    ),
    _gauge("gpu_up", _NVML, _GPU, "1 while the driver answers for the GPU, 0 when it has lost it."),
    _counter(
        "gpu_xid_errors",
        _NVML,
        ("gpu_uuid", "xid"),
        "Errors that the driver reported of the whole GPU (Xid, by number) since the companion began; 0 for those of "
        "the hardware while none came. Absent: nobody listens.",
    ),
    _gauge("gpu_busy_ratio", _ACCOUNT, _GPU, "Part of the last window in which it worked for anybody."),
    _gauge("gpu_unmanaged_ratio", _ACCOUNT, _GPU, "Part of the last window used by processes of no tenant."),
    _gauge(
        "gpu_traced",
        _ACCOUNT,
        _GPU,
        "1 while the GPU tells whose turn it is, 0 while that is replayed or sampled.",
    ),
    _counter(
        "account_contradictions",
        _ACCOUNT,
        _GPU,
        "How often its load contradicted the account while somebody was held, so that all were let go.",
    ),
    _gauge(
        "gpu_utilization_ratio",
        _NVML,
        _GPU,
        "Part of the driver's last sampling period in which any kernel ran; not how much of the GPU it filled.",
    ),
    _gauge("gpu_memory_used_bytes", _NVML, _GPU, "Memory in use, by whomever."),
    _gauge("gpu_memory_total_bytes", _NVML, _GPU, "Memory that the GPU has."),
    _gauge("gpu_temperature_celsius", _NVML, _GPU, "Temperature of the GPU, in degrees Celsius."),
    _gauge("gpu_power_watts", _NVML, _GPU, "Power that the board draws."),
    _gauge("gpu_power_limit_watts", _NVML, _GPU, "Power that the driver lets it draw now."),
    _gauge(
        "gpu_pcie_bytes_per_second",
        _NVML,
        ("gpu_uuid", "direction"),
        "Traffic over PCIe, to_gpu and from_gpu, in 20 ms of the last seconds.",
    ),
    _gauge(
        "gpu_active_ratio",
        _NVML,
        ("gpu_uuid", "part"),
        "Part of the time since the page before in which its engine for graphics and compute (graphics), its SMs (sm: "
        "their mean) and their tensor cores (tensor) worked. Hopper and later, not in MIG mode.",
    ),
)

SLIS = (
    _gauge("tokens_per_second", _COMPANION, _TENANT, "Tokens it makes, as its own metrics say."),
    _gauge(
        "token_rate_cv_ratio",
        _COMPANION,
        _TENANT,
        "Standard deviation of its token rate over windows of one second, by their mean.",
    ),
    _counter(
        "token_page_failures",
        _COMPANION,
        _TENANT,
        "Readings of its own metrics pages that failed; fairsched status says why the last one did.",
    ),
    _gauge("sli_queue_delay_p99_seconds", _COMPANION, (), "99 of 100 waits for a turn were no longer."),
    _gauge(
        "sli_queue_delay_floor_seconds",
        _COMPANION,
        (),
        "What that may be where turns are fair: 1.25 (n - 1) turns, of n tenants at once on a GPU.",
    ),
    _gauge(
        "sli_sm_utilization_stdev_ratio", _COMPANION, (), "Standard deviation of the GPUs' SM utilisation."
    ),
    _gauge(
        "sli_token_rate_cv_ratio",
        _COMPANION,
        (),
        "Coefficient of variation of the token rates of tenants, each by its entitlement.",
    ),
    _gauge("is_fair", _COMPANION, (), "1 while that is below the objective, 0 while it is not."),
)

ESCALATION = (
    _gauge("escalation_level", _COMPANION, (), "The last step taken of the ladder, 1, 2, ...; 0: none."),
    _counter(
        "escalation_steps",
        _COMPANION,
        ("step", "outcome"),
        "Steps of the ladder by what became of them: done, dry_run, skipped, failed, rolled_back.",
    ),
)

GUARD = (
    _gauge("guard_over", _GUARD, ("limit", "what"), "Subjects that are over a limit now."),
    _counter(
        "guard_deeds",
        _GUARD,
        ("limit", "act", "outcome"),
        "What limits asked for (warn, hold, end), and whether it was done, refused or only a dry_run.",
    ),
    _gauge("guard_held_tenants", _GUARD, (), "Tenants whose quota the guard has lowered for the time being."),
    _gauge("guard_troubles", _GUARD, (), "What the guard cannot do now; fairsched status says it."),
    _counter("guard_rounds", _GUARD, (), "Looks at everybody on the GPUs since the companion began."),
    _gauge("guard_round_age_seconds", _GUARD, (), "Since the last such look."),
    _gauge("guard_tape_bytes", _GUARD, (), "Tapes of the past, without the one that is written."),
)

EXPORTER = (
    _counter("exporter_requests", _EXPORTER, ("code",), "Answers by HTTP status."),
    _counter(
        "exporter_refused",
        _EXPORTER,
        ("reason",),
        "Connections ended without an answer: too_many, too_slow, too_long (the request), tls, gone.",
    ),
    _gauge("exporter_render_seconds", _EXPORTER, (), "What it took to write the page before this one."),
    _gauge(
        "exporter_tenants_left_out",
        _EXPORTER,
        (),
        "Tenants that are in no series of their own, because there are more than the exporter shows.",
    ),
)

CHAPTERS: Mapping[str, tuple[Family, ...]] = {
    "Shares": SHARES,
    "Holds": HOLDS,
    "GPUs": GPUS,
    "Service levels": SLIS,
    "Escalation": ESCALATION,
    "Guard": GUARD,
    "Driver and memory": DRIVER,
    "Daemon": DAEMON,
    "What fairsched costs, and what it missed": COST,
    "The exporter": EXPORTER,
}


def families() -> Iterator[Family]:
    """All of them, in the order of the page."""
    for chapter in CHAPTERS.values():
        yield from chapter


BY_NAME: Mapping[str, Family] = {family.name: family for family in families()}
