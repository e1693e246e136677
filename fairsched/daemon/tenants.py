# SPDX-License-Identifier: Apache-2.0
"""Fills the part of the status document that is about each tenant.

What is the same for all of them (:class:`TenantReports`) is gone through once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairsched.act.holds import Applier
from fairsched.act.misbehaviour import lowered
from fairsched.act.tally import Tally
from fairsched.cgroup import names
from fairsched.cgroup.names import known_as
from fairsched.config.podlayer import policy_of
from fairsched.daemon.ledger import Ledger
from fairsched.daemon.parts import Parts
from fairsched.gpu.nvml import gpu_label
from fairsched.model import ActionKind, Confidence, ReasonCode, ShareView, TenantSpec, Use
from fairsched.observe.sensors import Sensors
from fairsched.observe.tree import TenantView, Tree
from fairsched.protocol.delays import median_and_p99_ms
from fairsched.protocol.own import Histogram
from fairsched.protocol.status import (
    DecisionRecord,
    DriverCallsStatus,
    TenantGpuStatus,
    TenantState,
    TenantStatus,
)

_HELD_WINDOW_NS = 10_000_000_000
_MOST_KNOWN_AS = 64
"""Cgroups of one tenant that are told by name."""
CONTEXTS_ONLY = "has contexts, no launch of it was seen: idle since, or it works past the libcuda we watch"
UNPROVEN = "of some of its launches the end is not known, or which GPU they are on: held for a bound"
NOT_LEARNT = "what a launch of it takes is not known yet, or which GPU it is on: until then it is left alone"


@dataclass
class _Past:
    """What is on record, by tenant: gone through once for all of them."""

    total_ns: dict[str, dict[str, int]] = field(default_factory=dict)
    """GPU time by UUID."""
    last: dict[str, DecisionRecord] = field(default_factory=dict)
    recently_held_ns: dict[str, int] = field(default_factory=dict)
    """Of holds that ended in the last ten seconds."""

    @classmethod
    def of(cls, ledger: Ledger, records: Sequence[DecisionRecord], now_ns: int) -> _Past:
        past, begin_ns = cls(), now_ns - _HELD_WINDOW_NS
        for (tenant, gpu), ns in ledger.total_ns.items():
            past.total_ns.setdefault(tenant, {})[gpu] = ns
        for record in records:
            past.last[record.tenant] = record
            if record.held_ns is not None and not record.is_dry_run and record.t_ns >= begin_ns:
                known_ns = past.recently_held_ns.get(record.tenant, 0)
                past.recently_held_ns[record.tenant] = known_ns + min(record.held_ns, record.t_ns - begin_ns)
        return past


@dataclass
class _Driver:
    """What the driver's ioctls say, by tenant and UUID."""

    contexts: dict[str, dict[str, int]] = field(default_factory=dict)
    vram_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    calls: dict[str, DriverCallsStatus] = field(default_factory=dict)

    @classmethod
    def of(cls, sensors: Sensors, tree: Tree) -> _Driver:
        found = cls()
        for use in sensors.driver.uses():
            tenant = tree.tenant_of(use.cgroup_id)
            if tenant is not None and use.gpu is not None:
                gpu = gpu_label(sensors.gpus, use.gpu)
                for table, value in ((found.contexts, use.contexts), (found.vram_bytes, use.vram_bytes)):
                    mine = table.setdefault(tenant, {})
                    mine[gpu] = mine.get(gpu, 0) + value
        for tenant, calls in sensors.driver.calls().items():
            found.calls[tenant] = DriverCallsStatus(
                calls.ioctls, calls.failed, calls.time_ns / 1e9, calls.opens
            )
        return found


@dataclass
class _Delays:
    """Queue delays by tenant, each by UUID."""

    now: dict[str, dict[str, Histogram]] = field(default_factory=dict)
    """Since the start."""
    before: Mapping[str, Mapping[str, Histogram]] = field(default_factory=dict)
    """As they were a minute ago."""

    @classmethod
    def of(cls, sensors: Sensors, tree: Tree, specs: Mapping[str, TenantSpec], now_ns: int) -> _Delays:
        found = cls()
        counts = sensors.queue_delays(tree.tenant_of, tree.has_cgroup, {*specs, *tree.tenants})
        for (tenant, slot), (*buckets, sum_ns) in counts.items():
            mine = found.now.setdefault(tenant, {})
            mine[gpu_label(sensors.gpus, slot)] = Histogram.of(buckets, sum_ns)
        found.before = sensors.a_minute_ago.take(now_ns, found.now)
        return found

    def median_and_p99_ms(self, tenant: str) -> tuple[float | None, float | None]:
        """Of the last minute."""
        return median_and_p99_ms(self.before.get(tenant, {}), self.now.get(tenant, {}))


def _known_as(view: TenantView | None) -> tuple[str, ...]:
    """What people call its cgroups, each once."""
    paths = sorted(ref.path for ref in view.refs.values())[:_MOST_KNOWN_AS] if view else ()
    found = (known_as(path, names.shared()) for path in paths)
    return tuple(dict.fromkeys(one for one in found if one is not None))


class TenantReports:
    """What is known of the tenants at one moment: from the ledger, the driver's calls and the last decision."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._shares: dict[str, list[ShareView]] = {}
        for share in parts.shares:
            self._shares.setdefault(share.tenant, []).append(share)
        self._delays = _Delays.of(parts.sensors, parts.tree, parts.specs, parts.vitals.now_ns)
        self._uses = _uses(parts.ledger)
        self._past = _Past.of(parts.ledger, parts.applier.records, parts.vitals.now_ns)
        self._driver = _Driver.of(parts.sensors, parts.tree)

    def all(self) -> tuple[TenantStatus, ...]:
        """Of every tenant that the file names or that has a cgroup; of inner ones only where they have one."""
        named, there = self._parts.specs, self._parts.tree.tenants
        inner = {name.rpartition("/")[0] for name in (*named, *there)}
        names = sorted({*named, *there} - (inner - there.keys()))
        return tuple(self._status(name) for name in names)

    def _gpus(self, name: str) -> tuple[TenantGpuStatus, ...]:
        return tuple(
            TenantGpuStatus(
                uuid=share.gpu,
                entitled_ratio=share.entitlement_ratio if share.has_demand else None,
                used_ratio=share.used_ratio,
                lag_ms=share.lag_ns / 1e6,
                has_demand=share.has_demand,
                confidence=share.confidence,
                error_ratio=self._parts.sensors.error_ratio(name, share.gpu),
                graphs=self._parts.sensors.graph_work(name, share.gpu),
                drain_ms=None if use is None else use.outstanding_ns / 1e6,
            )
            for share in self._shares.get(name, ())
            for use in [self._uses.get((name, share.gpu))]
        )

    def _status(self, name: str) -> TenantStatus:
        parts, now_ns = self._parts, self._parts.vitals.now_ns
        spec = self._spec(name)
        view = parts.tree.tenants.get(name)
        gpus = self._gpus(name)
        worst = min(gpus, key=lambda gpu: gpu.lag_ms or 0.0, default=None)
        total_ns = self._past.total_ns.get(name, {})
        episodes = parts.misbehaviour.statuses(name, now_ns)
        confidence = worst.confidence if worst else Confidence.NONE
        contexts = self._driver.contexts.get(name, {})
        is_unlaunched = not gpus and not episodes and any(contexts.values())
        if is_unlaunched:
            confidence = Confidence.LOW
        sensors = parts.sensors
        note = _contexts_note(sensors) if is_unlaunched else None
        if worst is not None and (use := self._uses.get((name, worst.uuid))) is not None:
            note = _account_note(use, sensors)
        median_ms, p99_ms = self._delays.median_and_p99_ms(name)
        return TenantStatus(
            name=name,
            state=self._state(name, gpus, is_seen=bool(episodes), is_open=is_unlaunched),
            weight=spec.weight,
            tenant_class=spec.tenant_class,
            entitled_ratio=worst.entitled_ratio if worst else None,
            used_ratio=worst.used_ratio if worst else None,
            lag_ms=worst.lag_ms if worst else None,
            queue_delay_p50_ms=median_ms,
            queue_delay_p99_ms=p99_ms,
            queue_delays=self._delays.now.get(name, {}),
            held_ms_per_s=_held_ms_per_s(name, parts.applier, self._past, now_ns),
            held_s=_held_s(name, parts.applier, now_ns),
            held_by_reason_s=_held_by_reason_s(name, parts.applier, now_ns),
            holds=_done(name, parts.applier.real, ActionKind.HOLD),
            thaws=_done(name, parts.applier.real, ActionKind.THAW),
            dry_held_s=_dry_held_s(name, parts.applier.dry, now_ns),
            dry_holds=_done(name, parts.applier.dry, ActionKind.HOLD),
            hold_age_s=_hold_age_s(name, parts.applier, now_ns),
            hold_limit_s=_hold_limit_s(name, spec, parts.applier),
            gpu_time_s=sum(total_ns.values()) / 1e9 if total_ns else None,
            gpu_time_by_gpu_s={gpu: ns / 1e9 for gpu, ns in total_ns.items()},
            confidence=lowered(confidence, episodes),
            error_ratio=worst.error_ratio if worst else None,
            quota_ratio=spec.quota_ratio,
            min_ratio=spec.min_ratio,
            is_overridden=name in parts.settings.overrides.tenants,
            cgroups=tuple(sorted(ref.path for ref in view.refs.values())) if view else (),
            known_as=_known_as(view),
            gpus=gpus,
            last=self._past.last.get(name),
            note="; ".join([*self._mps_notes(name), *([] if episodes or note is None else [note])]) or None,
            misbehaviour=episodes[0] if episodes else None,
            misbehaviours=episodes,
            contexts_by_gpu=contexts,
            vram_by_gpu_bytes=self._driver.vram_bytes.get(name, {}),
            driver_calls=self._driver.calls.get(name),
            terminations={
                **parts.misbehaviour.terminator.terminations(name),
                **parts.vram.terminator.terminations(name),
            },
            vram_limit_bytes=spec.vram_limit_bytes,
            vram=parts.vram.statuses(name, now_ns),
            policy=policy_of(parts.settings.config, name),
        )

    def _state(
        self, name: str, gpus: tuple[TenantGpuStatus, ...], *, is_seen: bool, is_open: bool
    ) -> TenantState:
        """``is_seen``: the GPU works for it, though the account may know nothing of that. ``is_open``: it has a context
        of which the account knows nothing."""
        view = self._parts.tree.tenants.get(name)
        if name in self._parts.applier.holds:
            return TenantState.HELD
        if view is not None and view.is_paused:
            return TenantState.FOREIGN
        if view is None or not (gpus or is_seen or is_open):
            return TenantState.AWAY
        if self._spec(name).is_exempt:
            return TenantState.EXEMPT
        return TenantState.RUN if is_seen or any(gpu.has_demand for gpu in gpus) else TenantState.IDLE

    def _mps_notes(self, name: str) -> list[str]:
        groups = self._parts.sensors.mps.groups
        return [f"{group.gpu[:12]}: {group.text(name)}" for group in groups if name in group.clients]

    def _spec(self, name: str) -> TenantSpec:
        return self._parts.specs.get(name) or TenantSpec(name)


def _contexts_note(sensors: Sensors) -> str | None:
    """Of a tenant that has contexts, and no account: nothing where no probe looks for launches."""
    return None if sensors.account is None else CONTEXTS_ONLY


def _account_note(use: Use, sensors: Sensors) -> str | None:
    """Why its account is low, where that lies in its own calls; what else lowers one is among the warnings."""
    if (
        use.confidence is not Confidence.LOW
        or sensors.account is None
        or use.tenant in sensors.owners.over_work
    ):
        return None
    return NOT_LEARNT if use.most_ns is None else UNPROVEN


def _held_s(name: str, applier: Applier, now_ns: int) -> float | None:
    """Since the start, the hold in progress included."""
    if applier.is_dry_run:
        return None
    hold = applier.holds.get(name)
    return (applier.real.held_ns.get(name, 0) + (now_ns - hold.since_ns if hold else 0)) / 1e9


def _held_ms_per_s(name: str, applier: Applier, past: _Past, now_ns: int) -> float | None:
    """Over the last ten seconds, the hold in progress included."""
    if applier.is_dry_run:
        return None
    held_ns = past.recently_held_ns.get(name, 0)
    hold = applier.holds.get(name)
    if hold is not None:
        held_ns += now_ns - max(hold.since_ns, now_ns - _HELD_WINDOW_NS)
    return held_ns / (_HELD_WINDOW_NS / 1e9) / 1e6


def _held_by_reason_s(name: str, applier: Applier, now_ns: int) -> dict[str, float]:
    """Time in a hold over its entitlement is known from the start: 0 as well."""
    if applier.is_dry_run:
        return {}
    held = {ReasonCode.OVER_ENTITLEMENT: 0, **applier.real.held_for_ns(name, now_ns)}
    return {reason.value: ns / 1e9 for reason, ns in held.items()}


def _dry_held_s(name: str, dry: Tally, now_ns: int) -> float | None:
    held = dry.held_for_ns(name, now_ns)
    return sum(held.values()) / 1e9 if held else None


def _done(name: str, tally: Tally, kind: ActionKind) -> dict[str, int]:
    done = tally.done.get(name, {})
    return {reason.value: count for (what, reason), count in done.items() if what is kind}


def _hold_age_s(name: str, applier: Applier, now_ns: int) -> float | None:
    if applier.is_dry_run:
        return None
    hold = applier.holds.get(name)
    return (now_ns - hold.since_ns) / 1e9 if hold is not None else 0.0


def _hold_limit_s(name: str, spec: TenantSpec, applier: Applier) -> float:
    """Of the hold that lasts, which may be a longer one (a deep queue); else what is promised."""
    hold = applier.holds.get(name)
    now_ns = 0 if hold is None else hold.deadline_ns - hold.since_ns
    return max(spec.max_freeze_ns, now_ns) / 1e9


def _uses(ledger: Ledger) -> dict[tuple[str, str], Use]:
    """By (tenant, GPU), as of the last tick."""
    uses = ledger.last.uses if ledger.last is not None else ()
    return {(use.tenant, use.gpu): use for use in uses}
