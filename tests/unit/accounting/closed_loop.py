# SPDX-License-Identifier: Apache-2.0
"""The policy's model of shared GPUs, looked at through the eBPF account instead of through the truth.

Problem: what holds do to the account (drains nobody reports the end of) shows only in the closed loop: the account
decides who is held, the hold decides what the account can see.

Approach: :class:`tests.unit.policy.model_gpu.Simulation` with a :class:`FakeProbe` that hears what programs do, as
libcuda's probes would, and an :class:`EbpfAccount` whose rows are the snapshot. The model knows the truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fairsched.accounting.context import ProcessUse
from fairsched.model import Confidence, ReasonCode, Snapshot, TenantClass, TenantSpec, Use
from tests.unit.accounting.fake_probe import MS, FakeProbe, account_of
from tests.unit.policy.model_gpu import Simulation, Tenant
from tests.unit.policy.model_processes import Process

WAKE_NS = 50_000
"""From the completion on the GPU to the return of the call that waited for it."""


class Steps(Process):
    """Launch a step, wait for all of it, pause; again. Times of kernels are log-normal around their mean."""

    def __init__(
        self,
        kernels: int,
        kernel_ns: int,
        jitter_ratio: float,
        gap_ns: int,
        *,
        is_seen: bool = True,
        poisson: bool = False,
        start_ns: int = 0,
    ) -> None:
        super().__init__(start_ns=start_ns)
        self.kernels, self.kernel_ns, self.jitter_ratio = kernels, kernel_ns, jitter_ratio
        self.gap_ns, self.is_seen, self.poisson = gap_ns, is_seen, poisson
        self.submitted_ns = 0

    def on_start(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        self.submitted_ns = sim.now
        sim.launched(self, self.kernels)
        self.submit(sim, sum(sim.kernel_ns(self) for _ in range(self.kernels)))

    def on_done(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        sim.program(self, sim.now + max(1, round(sim.rng.expovariate(1 / WAKE_NS))), lambda: self._seen(sim))

    def _seen(self, sim: ClosedLoop) -> None:
        if self.is_seen:
            sim.synced(self, sim.now - self.submitted_ns)
        gap = sim.rng.expovariate(1 / self.gap_ns) if self.poisson else self.gap_ns
        sim.program(self, sim.now + 20_000 + round(gap), lambda: self.on_start(sim))


class Pipeline(Steps):
    """Keeps ``depth`` steps queued, waiting for the oldest."""

    def __init__(self, kernels: int, kernel_ns: int, jitter_ratio: float, depth: int) -> None:
        super().__init__(kernels, kernel_ns, jitter_ratio, 0)
        self.depth = depth
        self.before = 0
        """Launches before the first step."""
        self.done = 0
        self.asked = 0
        self.finished_ns: deque[int] = deque()
        """Steps that are done and not waited for yet."""
        self.returned_ns = 0
        """From the last wait: the next one begins then, and returns at once if its step was done long ago."""

    def on_start(self, sim: Simulation) -> None:
        assert isinstance(sim, ClosedLoop)
        self.submitted_ns = sim.now
        while self.asked - self.done < self.depth:
            self.asked += 1
            sim.launched(self, self.kernels)
            self.submit(sim, sum(sim.kernel_ns(self) for _ in range(self.kernels)))

    def _seen(self, sim: ClosedLoop) -> None:
        self.done += 1
        waited_ns = max(1000, self.finished_ns.popleft() - self.returned_ns)
        sim.progressed(self, self.before + self.done * self.kernels, waited_ns)
        self.returned_ns = sim.now
        sim.program(self, sim.now + 20_000, lambda: self.on_start(sim))


class Unseen(Pipeline):
    """Submits past the exports of libcuda: no probe hears of it."""


class Flood(Steps):
    """Fills its queue and never asks; goes on when a quarter of it is free. With ``off_ns``: it rests now and then."""

    DEPTH = 1024
    AT_ONCE = 16

    def __init__(self, kernel_ns: int, *, on_ns: int = 1 << 62, off_ns: int = 0) -> None:
        super().__init__(1, kernel_ns, 0.1, 0, is_seen=False)
        self.on_ns, self.off_ns = on_ns, off_ns
        self.room = self.DEPTH
        self.is_blocked = False

    def on_start(self, sim: Simulation) -> None:
        count, self.room = self.room, 0
        self._fill(sim, count)

    def _fill(self, sim: Simulation, count: int) -> None:
        assert isinstance(sim, ClosedLoop)
        if count:
            part = min(self.AT_ONCE, count)
            sim.launched(self, part)
            for _ in range(part):
                self.submit(sim, sim.kernel_ns(self))
            sim.program(self, sim.now + part * 3000, lambda: self._fill(sim, count - part))
            return
        self.is_blocked = True
        self._go_on(sim)

    def _go_on(self, sim: Simulation) -> None:
        if self.is_blocked and self.room >= self.DEPTH // 4:
            self.is_blocked = False
            into_ns = sim.now % (self.on_ns + self.off_ns)
            rest_ns = self.on_ns + self.off_ns - into_ns if into_ns >= self.on_ns else 0
            sim.program(self, sim.now + rest_ns + 30_000, lambda: self.on_start(sim))

    def on_done(self, sim: Simulation) -> None:
        """Its memory would tell, but it does not look."""

    def freed(self, sim: Simulation) -> None:
        """A place in the queue, whether or not it is frozen."""
        self.room += 1
        self._go_on(sim)


class Totals(NamedTuple):
    """GPU time of each tenant, in ns."""

    charged: Mapping[str, int]
    had: Mapping[str, int]

    def since(self, before: Totals) -> Totals:
        return Totals(
            {name: ns - before.charged[name] for name, ns in self.charged.items()},
            {name: ns - before.had[name] for name, ns in self.had.items()},
        )

    @property
    def whole_ns(self) -> int:
        """That anybody had; never 0."""
        return max(1, sum(self.had.values()))

    def account_errors(self) -> dict[str, float]:
        """In points: how far the share that the account has of each is from the truth."""
        charged_ns = max(1, sum(self.charged.values()))
        return {
            name: 100 * abs(self.charged[name] / charged_ns - ns / self.whole_ns)
            for name, ns in self.had.items()
        }

    def share_errors(self, due: Mapping[str, float]) -> dict[str, float]:
        """In points: how far the share of each is from its part that was due."""
        return {name: 100 * abs(ns / self.whole_ns - due[name]) for name, ns in self.had.items()}

    def words(self, due: Mapping[str, float]) -> str:
        return ", ".join(
            f"{name} {100 * ns / self.whole_ns:.1f} of {100 * due[name]:.1f}" for name, ns in self.had.items()
        )


def _with_most(use: Use, sure_ns: int | None) -> Use:
    """As observe/snapshot.py does it: held for what of it is no guess."""
    if use.confidence is Confidence.BOUND:
        return use._replace(confidence=Confidence.LOW, most_ns=use.used_ns)
    return use._replace(most_ns=sure_ns) if use.confidence is Confidence.LOW else use


def by_weight(tenants: Iterable[Tenant]) -> dict[str, float]:
    """The share that is due to each of those who always want the GPU."""
    weights = {tenant.name: tenant.spec.weight for tenant in tenants}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def pid_of(slot: int) -> int:
    """Of the process with that context."""
    return 1000 + slot


class ClosedLoop(Simulation):
    """Run tenants under the account's own view of them."""

    def __init__(self, tenants: Sequence[Tenant], *, is_enforced: bool = True, seed: int = 7) -> None:
        super().__init__(tenants, is_enforced=is_enforced, seed=seed)
        self.probe = FakeProbe()
        self.account = account_of(self.probe)
        self.slots = {process: slot for slot, process in enumerate(self.owner)}
        self.groups = {name: 100 + number for number, name in enumerate(self.tenants)}
        self.names = {number: name for name, number in self.groups.items()}
        self.billed: dict[str, int] = dict.fromkeys(self.tenants, 0)
        for process, slot in self.slots.items():
            if not isinstance(process, Unseen):
                self.probe.create(slot, pid_of(slot), self.groups[self.owner[process].name])

    # -- what programs do ---------------------------------------------------------------------

    def kernel_ns(self, process: Steps) -> int:
        sigma = process.jitter_ratio
        return round(process.kernel_ns * self.rng.lognormvariate(-sigma * sigma / 2, sigma))

    def launched(self, process: Process, count: int, graph: int = 0) -> None:
        """``graph``: the handle of the one that was launched; 0 = kernels."""
        if not isinstance(process, Unseen):
            self.probe.launch(self.slots[process], self.now, count, graph)

    def synced(self, process: Process, waited_ns: int) -> None:
        self.probe.sync(self.slots[process], self.now, waited_ns)

    def progressed(self, process: Process, completed: int, waited_ns: int) -> None:
        slot = self.slots[process]
        if isinstance(process, Unseen):
            return
        if completed >= self.probe.contexts_by_slot[slot].submitted:
            self.probe.sync(slot, self.now, waited_ns)
        else:
            self.probe.progress(slot, self.now, completed, waited_ns)

    def _chunk_done(self, name: str, serial: int) -> None:
        process = self.gpus[name].running
        before = len(process.queue) if process else 0
        super()._chunk_done(name, serial)
        if isinstance(process, Pipeline) and len(process.queue) < before:
            process.finished_ns.append(self.now)
        if isinstance(process, Flood) and len(process.queue) < before:
            process.freed(self)

    # -- what the daemon sees -----------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        exact = super().snapshot()
        sums: dict[str, Use] = {}
        sure_ns: dict[str, int] = {}
        for row in self.rows():
            name = self.names[row.cgroup_id]
            if row.confidence not in (Confidence.LOW, Confidence.NONE):
                sure_ns[name] = sure_ns.get(name, 0) + row.used_ns
            was = sums.get(name)
            sums[name] = Use(
                name,
                "gpu0",
                row.used_ns + (was.used_ns if was else 0),
                row.has_demand or (was is not None and was.has_demand),
                row.outstanding_ns + (was.outstanding_ns if was else 0),
                row.confidence if was is None else row.confidence.and_of(was.confidence),
                unmeasured_ns=row.unmeasured_ns + (was.unmeasured_ns if was else 0),
                paused_ns=row.paused_ns + (was.paused_ns if was else 0),
                idle_ns=row.idle_ns + (was.idle_ns if was else 0),
                is_anew=row.is_anew or (was is not None and was.is_anew),
            )
        idle = frozenset("gpu0" for _ in self.account.idle_gpus())
        return Snapshot(
            exact.now_ns,
            exact.interval_ns,
            tuple(_with_most(use, sure_ns.get(use.tenant)) for use in sums.values()),
            exact.holds,
            exact.freeze_latency_ns,
            idle,
        )

    def _hold(self, name: str, deadline_ns: int, why: ReasonCode) -> None:
        super()._hold(name, deadline_ns, why)
        self.account.hold([self.groups[name]], self.now)

    def _thaw(self, name: str, why: ReasonCode) -> None:
        super()._thaw(name, why)
        self.account.thaw([self.groups[name]], self.now)

    # -- the verdict --------------------------------------------------------------------------

    def errors(self, settle_ns: int, end_ns: int) -> dict[str, float]:
        """Of each tenant's account between the two moments, relative to its own time."""
        begin, end = self.marks([settle_ns], end_ns)
        charged, had = end.since(begin)
        return {name: charged[name] / real - 1 if real else 0.0 for name, real in had.items()}

    def marks(
        self, moments_ns: Iterable[int], end_ns: int, also: Callable[[], None] = lambda: None
    ) -> list[Totals]:
        """Run to ``end_ns``; what is true at each of the moments and then, and when ``also`` is called."""
        found: list[Totals] = []

        def mark() -> None:
            found.append(self.totals())
            also()

        for moment_ns in moments_ns:
            self.at(moment_ns, mark)
        self.run(end_ns)
        mark()
        return found

    def totals(self) -> Totals:
        """As of now."""
        self.snapshot_now()
        return Totals(dict(self.billed), {name: self.delivered[name, "gpu0"] for name in self.tenants})

    def snapshot_now(self) -> None:
        """Bring account and truth to this moment."""
        for name in self.gpus:
            self._account(name)
        self.rows()

    def rows(self) -> list[ProcessUse]:
        """What the account has to say since it was last asked."""
        self.probe.now_ns = self.now
        rows = self.account.read(self.now)
        for row in rows:
            self.billed[self.names[row.cgroup_id]] += row.used_ns
        return rows


def decode() -> Process:
    return Steps(20, 250_000, 0.2, 500_000)


def graph() -> Process:
    return Steps(1, 6 * MS, 0.02, 300_000)


def prefill() -> Process:
    return Steps(40, MS, 0.3, 150 * MS, poisson=True)


def burst() -> Process:
    return Steps(200, 400_000, 0.2, 500 * MS)


def long_kernel() -> Process:
    return Steps(1, 100 * MS, 0.4, MS)


def poll() -> Process:
    return Steps(20, 250_000, 0.2, 500_000, is_seen=False, start_ns=300 * MS)


def trainer() -> Process:
    return Pipeline(30, 500_000, 0.1, 4)


KINDS: dict[str, Callable[[], Process]] = {
    "decode": decode,
    "graph": graph,
    "prefill": prefill,
    "burst": burst,
    "longkernel": long_kernel,
    "poll": poll,
    "trainer": trainer,
}


def mix(*kinds: str, is_enforced: bool = True, seed: int = 1) -> ClosedLoop:
    """Tenants of these kinds (``trainer*3`` = three processes) with weights n ... 1."""
    tenants = []
    for number, kind in enumerate(kinds):
        name, _, count = kind.partition("*")
        tenant_class = TenantClass.BATCH if name == "trainer" else TenantClass.LATENCY
        spec = TenantSpec(name, weight=len(kinds) - number, tenant_class=tenant_class)
        tenants.append(Tenant(spec, [KINDS[name]() for _ in range(int(count or 1))]))
    return ClosedLoop(tenants, is_enforced=is_enforced, seed=seed)


def with_greedy(seed: int = 1, *, is_enforced: bool = True) -> ClosedLoop:
    """The demo: decoders of weights 4, 2 and 1 beside three processes with deep queues and weight 1."""
    decoders = {"a": 4, "b": 2, "c": 1}
    tenants = [
        Tenant(TenantSpec(name, weight=weight), [Steps(40, 500_000, 0.1, MS)])
        for name, weight in decoders.items()
    ]
    greedy = TenantSpec("greedy", tenant_class=TenantClass.BATCH)
    tenants.append(Tenant(greedy, [Pipeline(10, MS, 0.1, 4) for _ in range(3)]))
    return ClosedLoop(tenants, is_enforced=is_enforced, seed=seed)
