# SPDX-License-Identifier: Apache-2.0
"""A discrete-event model of shared GPUs under the control law: the oracle of the policy's tests.

What is modelled. Each GPU serves a fixed circular runlist of contexts in 2 ms slices, round-robin over
those with work; a switch between contexts costs 0.1 ms. Queues are asynchronous: they drain whether or
not their owner is frozen. A frozen process does nothing new: what it would have done waits for the thaw.
A hold or a thaw takes the freeze latency (1-3 ms) to act. The account is the exact delivered time, to
which a test may add an error.

Driving. As the daemon does: every 20 ms while a GPU has two tenants with demand, else every 100 ms, but not
before ``quiet_until_ns``; when a GPU has stood empty for ``idle_confirm_ns`` while somebody is held; at once
when a process exits, and when ``wake_ns`` says so.

All times are nanoseconds; a run is deterministic for one seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fairsched.accounting.context import DEMAND_LINGER_NS
from fairsched.model import (
    Action,
    ActionKind,
    Confidence,
    Hold,
    PolicyParams,
    ReasonCode,
    Snapshot,
    TenantSpec,
    Use,
)
from fairsched.policy import PolicyState, decide
from tests.unit.policy.model_processes import Process
from tests.unit.policy.model_results import Results

MS = 1_000_000
SLICE_NS = 2 * MS
SWITCH_NS = 100_000
INNER_TICK_NS = 20 * MS
TICK_NS = 100 * MS
S = 1000 * MS
GRANT_LIMIT_NS = 3 * MS


@dataclass
class Tenant:
    spec: TenantSpec
    processes: list[Process]
    freeze_latency_ns: int = MS
    account_bias_ratio: float = 0.0
    """The account reads this much too high (or low)."""
    confidence: Confidence = Confidence.HIGH
    foreign_from_ns: int | None = None
    """Frozen by somebody else from here ..."""
    foreign_to_ns: int | None = None

    is_frozen: bool = False
    deferred: list[Callable[[], None]] = field(default_factory=list)
    had_work: bool = False
    worked_ns: dict[str, int] = field(default_factory=dict)
    """By GPU: when it last had work."""
    hold_serial: int = 0
    grant_ns: int | None = None
    """What it may still queue before it is held again."""
    grant_until_ns: int = 0
    grant_deadline_ns: int = 0

    @property
    def name(self) -> str:
        return self.spec.name

    def wants(self, gpu: str, now_ns: int) -> bool:
        """As the account says it: a decoder between two tokens still does."""
        return self.queued_ns(gpu) > 0 or now_ns - self.worked_ns.get(gpu, -S) <= DEMAND_LINGER_NS

    def queued_ns(self, gpu: str) -> int:
        return sum(sum(process.queue) for process in self.processes if process.gpu == gpu)

    def gpus(self) -> list[str]:
        return sorted({process.gpu for process in self.processes if not process.has_exited})


@dataclass
class _Gpu:
    runlist: list[Process] = field(default_factory=list)
    at: int = 0
    current: Process | None = None
    running: Process | None = None
    chunk_start_ns: int = 0
    chunk_ns: int = 0
    slice_left_ns: int = 0
    serial: int = 0
    busy_since_ns: int | None = None
    idle_since_ns: int = 0
    non_idle_ns: int = 0


@dataclass
class HoldRecord:
    tenant: str
    since_ns: int
    until_ns: int
    deadline_ns: int
    why: ReasonCode
    ended: ReasonCode | None = None


class Simulation(Results):
    """Run ``tenants`` for a while and keep what happened."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        *,
        params: PolicyParams | None = None,
        is_enforced: bool = True,
        noise_ratio: float = 0.0,
        outstanding_error_ratio: float = 0.0,
        honours_wake: bool = True,
        seed: int = 7,
    ) -> None:
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.owner = {process: tenant for tenant in tenants for process in tenant.processes}
        self.specs = {tenant.name: tenant.spec for tenant in tenants}
        self.params = params or PolicyParams()
        self.is_enforced, self.noise_ratio, self.honours_wake = is_enforced, noise_ratio, honours_wake
        self.outstanding_error_ratio = outstanding_error_ratio
        self.rng = random.Random(seed)
        self.now = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.counter = itertools.count()
        self.gpus: dict[str, _Gpu] = {}
        self.state = PolicyState()
        self.holds: dict[str, Hold] = {}
        self.records: list[HoldRecord] = []
        self.open: dict[str, HoldRecord] = {}
        self.delivered: dict[tuple[str, str], int] = {}
        self.seen: dict[tuple[str, str], int] = {}
        self.last_ns = 0
        self.tick_serial = 0
        self.samples: list[tuple[int, dict[tuple[str, str], int], dict[str, int]]] = []
        self.worst_lag: dict[tuple[str, str], float] = {}
        self.lowest_lag: dict[tuple[str, str], float] = {}
        self.alone: list[tuple[int, str]] = []
        """Moments at which a held tenant was the only one with demand on all its GPUs."""
        self.last_work: dict[str, int] = {}
        self.watch: Callable[[Simulation, Snapshot, object], None] | None = None
        for process in self.owner:
            self.gpus.setdefault(process.gpu, _Gpu()).runlist.append(process)
            self.delivered[self.owner[process].name, process.gpu] = 0

    # -- time ---------------------------------------------------------------------------------

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (max(when_ns, self.now), next(self.counter), what))

    def program(self, process: Process, when_ns: int, what: Callable[[], None]) -> None:
        """Something the process does on the CPU: not while it is frozen, not after it exited."""

        def run() -> None:
            tenant = self.owner[process]
            if process.has_exited:
                return
            if tenant.is_frozen:
                tenant.deferred.append(run)
                return
            what()

        if when_ns <= self.now:
            run()
        else:
            self.at(when_ns, run)

    def run(self, duration_ns: int) -> Simulation:
        for process in self.owner:
            self.program(process, process.start_ns, lambda p=process: p.on_start(self))  # type: ignore[misc]
            if process.stop_ns is not None:
                self.at(process.stop_ns, lambda p=process: self._exit(p))  # type: ignore[misc]
        for tenant in self.tenants.values():
            if tenant.foreign_from_ns is not None and tenant.foreign_to_ns is not None:
                self.at(tenant.foreign_from_ns, lambda t=tenant: self._foreign(t, True))  # type: ignore[misc]
                self.at(tenant.foreign_to_ns, lambda t=tenant: self._foreign(t, False))  # type: ignore[misc]
        for when in range(0, duration_ns + 1, 100 * MS):
            self.at(when, self._sample)
        self.at(INNER_TICK_NS, self.tick)
        while self.events and self.events[0][0] <= duration_ns:
            self.now, _, what = heapq.heappop(self.events)
            what()
        for record in self.open.values():
            record.until_ns = duration_ns
        return self

    def _exit(self, process: Process) -> None:
        process.has_exited = True
        gpu = self.gpus[process.gpu]
        if gpu.running is process:
            self._account(process.gpu)
            gpu.serial += 1
            gpu.running = None
        process.queue.clear()
        self.kick(process.gpu)
        self.at(self.now, self.tick)

    def _foreign(self, tenant: Tenant, freeze: bool) -> None:
        if freeze:
            self._close(tenant.name, None)
            self.holds[tenant.name] = Hold(tenant.name, self.now, 0, False)
            tenant.is_frozen = True
        else:
            self.holds.pop(tenant.name, None)
            self._release(tenant)

    # -- silicon ------------------------------------------------------------------------------

    def switch_ns(self) -> int:
        return SWITCH_NS

    def slice_ns(self, process: Process) -> int:
        return SLICE_NS

    def until_switch_ns(self, process: Process, slice_left_ns: int) -> int:
        """How long it runs on if it has work and others wait."""
        return slice_left_ns

    def kick(self, name: str) -> None:
        if self.gpus[name].running is None:
            self._next(name)

    def _next(self, name: str) -> None:
        gpu = self.gpus[name]
        size = len(gpu.runlist)
        keep = gpu.current is not None and gpu.slice_left_ns > 0 and bool(gpu.current.queue)
        chosen = gpu.at if keep else None
        if chosen is None:
            order = ((gpu.at + step) % size for step in range(1, size + 1))
            chosen = next((index for index in order if gpu.runlist[index].queue), None)
        if chosen is None:
            if gpu.busy_since_ns is not None:
                gpu.non_idle_ns += self.now - gpu.busy_since_ns
                gpu.busy_since_ns = None
                gpu.idle_since_ns = self.now
                if any(hold.is_ours for hold in self.holds.values()):
                    since = self.now
                    self.at(since + self.params.idle_confirm_ns, lambda: self._confirm_idle(gpu, since))
            return
        if gpu.busy_since_ns is None:
            gpu.busy_since_ns = self.now
        process = gpu.runlist[chosen]
        switch = 0
        if not keep:
            gpu.slice_left_ns = self.slice_ns(process)
            switch = self.switch_ns() if process is not gpu.current else 0
        gpu.at, gpu.current, gpu.running = chosen, process, process
        gpu.chunk_start_ns = self.now + switch
        gpu.chunk_ns = min(self.until_switch_ns(process, gpu.slice_left_ns), process.queue[0])
        gpu.serial += 1
        serial = gpu.serial
        self.at(gpu.chunk_start_ns + gpu.chunk_ns, lambda: self._chunk_done(name, serial))

    def _confirm_idle(self, gpu: _Gpu, since_ns: int) -> None:
        if gpu.busy_since_ns is None and gpu.idle_since_ns == since_ns and since_ns >= self.last_ns:
            self.tick()

    def _chunk_done(self, name: str, serial: int) -> None:
        gpu = self.gpus[name]
        if gpu.serial != serial:
            return
        process = gpu.running
        assert process is not None
        self._account(name)
        self.owner[process].worked_ns[name] = self.now
        gpu.running = None
        if process.queue and process.queue[0] <= 0:
            process.queue.popleft()
            self.program(process, self.now, lambda: process.on_done(self))
        if gpu.running is None:
            self._next(name)

    def _account(self, name: str) -> None:
        """Book what the running context got so far."""
        gpu = self.gpus[name]
        process = gpu.running
        if process is None or self.now <= gpu.chunk_start_ns:
            return
        got = min(self.now - gpu.chunk_start_ns, gpu.chunk_ns)
        gpu.chunk_start_ns += got
        gpu.chunk_ns -= got
        gpu.slice_left_ns -= got
        process.queue[0] -= got
        self.delivered[self.owner[process].name, name] += got

    # -- daemon -------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        for name in self.gpus:
            self._account(name)
        uses = []
        for tenant in self.tenants.values():
            gpus = tenant.gpus()
            for gpu in gpus:
                key = (tenant.name, gpu)
                used = self.delivered[key] - self.seen.get(key, 0)
                self.seen[key] = self.delivered[key]
                error = 1 + tenant.account_bias_ratio + self.rng.uniform(-self.noise_ratio, self.noise_ratio)
                queued = tenant.queued_ns(gpu)
                guess = 1 + self.rng.uniform(-self.outstanding_error_ratio, self.outstanding_error_ratio)
                hold = self.holds.get(tenant.name)
                is_held = hold is not None and hold.is_ours
                demand = tenant.had_work if is_held else tenant.wants(gpu, self.now)
                uses.append(
                    Use(
                        tenant.name,
                        gpu,
                        round(used * error),
                        demand,
                        round(queued * guess),
                        tenant.confidence,
                    )
                )
        interval = self.now - self.last_ns
        since = {
            name: one.idle_since_ns for name, one in self.gpus.items() if one.idle_since_ns >= self.last_ns
        }
        self.last_ns = self.now
        idle = frozenset(name for name, gpu in self.gpus.items() if not any(p.queue for p in gpu.runlist))
        latency = {tenant.name: tenant.freeze_latency_ns for tenant in self.tenants.values()}
        return Snapshot(self.now, interval, tuple(uses), dict(self.holds), latency, idle, since)

    def tick(self) -> None:
        self.tick_serial += 1
        serial = self.tick_serial
        snapshot = self.snapshot()
        wake = quiet = None
        if self.is_enforced:
            decision = decide(snapshot, self.state, self.specs, self.params)
            self.state = decision.state
            for action in decision.plan:
                if action.kind is ActionKind.HOLD:
                    self._hold(action.tenant, action.deadline_ns, action.reason.code)
                else:
                    self._thaw(action.tenant, action.reason.code)
                    self._grant(action)
            wake, quiet = decision.wake_ns if self.honours_wake else None, decision.quiet_until_ns
            for key, account in self.state.accounts.items():
                self.worst_lag[key] = max(self.worst_lag.get(key, 0.0), abs(account.lag_ns))
                self.lowest_lag[key] = min(self.lowest_lag.get(key, 0.0), account.lag_ns)
            self._check_alone(snapshot)
            if self.watch is not None:
                self.watch(self, snapshot, decision)
        wanting = [use.gpu for use in snapshot.uses if use.has_demand]
        pause = INNER_TICK_NS if any(wanting.count(gpu) >= 2 for gpu in set(wanting)) else TICK_NS
        due = max(self.now + pause, min(quiet or 0, self.now + TICK_NS))
        if wake is not None:
            due = min(due, wake)
        self.at(due, lambda: self.tick() if self.tick_serial == serial else None)

    def _check_alone(self, snapshot: Snapshot) -> None:
        for name, hold in self.holds.items():
            if not hold.is_ours or self.open[name].why is ReasonCode.OVER_QUOTA:
                continue
            gpus = {use.gpu for use in snapshot.uses if use.tenant == name}
            others = [
                use
                for use in snapshot.uses
                if use.gpu in gpus and use.tenant != name and use.tenant not in self.holds
            ]
            for use in others:
                if use.has_demand or use.used_ns:
                    self.last_work[use.tenant] = self.now
            grace = self.params.demand_grace_ns
            if not any(self.now - self.last_work.get(use.tenant, -TICK_NS) <= grace for use in others):
                self.alone.append((self.now, name))

    def _hold(self, name: str, deadline_ns: int, why: ReasonCode) -> None:
        tenant = self.tenants[name]
        tenant.grant_ns = None
        assert name not in self.holds, f"{name} is held already"
        self.holds[name] = Hold(name, self.now, deadline_ns, True)
        tenant.had_work = any(tenant.wants(gpu, self.now) for gpu in tenant.gpus())
        record = HoldRecord(name, self.now, self.now, deadline_ns, why)
        self.records.append(record)
        self.open[name] = record
        tenant.hold_serial += 1
        serial = tenant.hold_serial

        def act() -> None:
            if tenant.hold_serial == serial:
                tenant.is_frozen = True

        self.at(self.now + tenant.freeze_latency_ns, act)

    def _thaw(self, name: str, why: ReasonCode) -> None:
        tenant = self.tenants[name]
        assert self.holds[name].is_ours, f"{name} is not ours to thaw"
        del self.holds[name]
        self._close(name, why)
        tenant.hold_serial += 1
        serial = tenant.hold_serial
        self.at(
            self.now + tenant.freeze_latency_ns,
            lambda: self._release(tenant) if tenant.hold_serial == serial else None,
        )

    def _grant(self, action: Action) -> None:
        """As the daemon does it: watched for a few milliseconds from when it runs."""
        tenant = self.tenants[action.tenant]
        tenant.grant_ns, tenant.grant_deadline_ns = action.grant_ns, action.deadline_ns
        tenant.grant_until_ns = self.now + tenant.freeze_latency_ns + GRANT_LIMIT_NS

    def note_queued(self, process: Process, cost_ns: int) -> None:
        """Something was submitted. A grant that is used up ends in a hold, at once."""
        tenant = self.owner[process]
        if tenant.grant_ns is None or self.now > tenant.grant_until_ns:
            return
        tenant.grant_ns -= cost_ns
        if tenant.grant_ns <= 0:
            tenant.grant_ns = None
            self._hold(tenant.name, tenant.grant_deadline_ns, ReasonCode.DEEP_QUEUE)
            tenant.is_frozen = True

    def _close(self, name: str, why: ReasonCode | None) -> None:
        record = self.open.pop(name, None)
        if record is not None:
            record.until_ns, record.ended = self.now, why

    def _release(self, tenant: Tenant) -> None:
        tenant.is_frozen = False
        waiting, tenant.deferred = tenant.deferred, []
        for run in waiting:
            run()

    def _sample(self) -> None:
        busy = {}
        for name, gpu in self.gpus.items():
            self._account(name)
            running = self.now - gpu.busy_since_ns if gpu.busy_since_ns is not None else 0
            busy[name] = gpu.non_idle_ns + running
        self.samples.append((self.now, dict(self.delivered), busy))
