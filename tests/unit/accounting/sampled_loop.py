# SPDX-License-Identifier: Apache-2.0
"""The policy's model of shared GPUs, looked at through NVML's samples instead of through the truth.

Problem: the law on samples acts on chance as well as on what is true, and what it does changes what is sampled.

Approach: :class:`tests.unit.policy.model_gpu.Simulation` with a driver that keeps one sample a period (who is on the
GPU at that moment, and for which part of the time it was busy), and the daemon's :class:`NvmlAccount`, whose rows are
the snapshot. The model knows the truth.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fairsched.accounting.nvml import NvmlAccount
from fairsched.gpu.sampler import Sample
from fairsched.model import Confidence, PolicyParams, ReasonCode, Snapshot, TenantClass, TenantSpec, Use
from fairsched.policy.shares import entitlements
from tests.unit.gpu.fake_nvml import FakeNvml
from tests.unit.policy.model_gpu import MS, Simulation, Tenant
from tests.unit.policy.model_processes import ClosedLoop, DeepQueue, OnOff, Process

S = 1000 * MS
PERIOD_NS = 139 * MS
_EPOCH_US = 10**15
"""NVML's clock is not ours."""


class Driver:
    """Stands in for NVML and one GPU. ``shows_each``: an entry per sample, else a mean per process as in nvml.h."""

    def __init__(self, *, shows_each: bool) -> None:
        self._shows_each = shows_each
        self._ring: deque[Sample] = deque(maxlen=72)

    def keep(self, now_ns: int, pid: int, busy_ratio: float) -> None:
        self._ring.append(Sample(_EPOCH_US + now_ns // 1000, pid, round(min(1.0, busy_ratio), 2)))

    def read(self, after_us: int) -> list[Sample]:
        new = [sample for sample in self._ring if sample.time_us > after_us]
        if self._shows_each:
            return new
        means: dict[int, Sample] = {}
        for sample in new:
            before = means.get(sample.pid, Sample(0, sample.pid, 0.0))
            busy_ratio = before.busy_ratio + sample.busy_ratio / len(new)
            means[sample.pid] = Sample(sample.time_us, sample.pid, busy_ratio)
        return [one._replace(busy_ratio=round(one.busy_ratio, 2)) for one in means.values()]


class SampledLoop(Simulation):
    """Run tenants under the sampled account's view of them."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        *,
        seed: int,
        is_enforced: bool = True,
        shows_each: bool = False,
        period_ns: int = PERIOD_NS,
        nvml_of: Callable[[], FakeNvml] | None = None,
        one_process: Collection[str] = (),
        is_busy_in_switches: bool = True,
    ) -> None:
        """``nvml_of`` makes an NVML with more to tell than samples. ``one_process``: tenants of one process whose
        contexts the model calls processes. ``is_busy_in_switches``: what NVML calls a busy GPU."""
        params = PolicyParams().sampled(period_ns)
        super().__init__(tenants, params=params, is_enforced=is_enforced, seed=seed)
        self.period_ns, self.is_busy_in_switches = period_ns, is_busy_in_switches
        self.drivers: dict[str, Driver | FakeNvml] = {
            gpu: nvml_of() if nvml_of is not None else Driver(shows_each=shows_each) for gpu in self.gpus
        }
        self.pids = {process: 1000 + place for place, process in enumerate(self.owner)}
        for name in one_process:
            mine = [process for process, owner in self.owner.items() if owner.name == name]
            self.pids.update(dict.fromkeys(mine, self.pids[mine[0]]))
        self.groups = {name: 100 + place for place, name in enumerate(self.tenants)}
        self.names = {group: name for name, group in self.groups.items()}
        self._was_busy_ns = dict.fromkeys(self.gpus, 0)
        readers: list[Any] = [
            one.reader if isinstance(one, FakeNvml) else one for one in self.drivers.values()
        ]
        modes = [
            one.mode(reader)
            for one, reader in zip(self.drivers.values(), readers, strict=True)
            if isinstance(one, FakeNvml)
        ]
        self.account = NvmlAccount(readers, self._group_of, modes=modes, clock_ns=lambda: self.now)
        for one in self.drivers.values():
            for pid in self.pids.values() if isinstance(one, FakeNvml) else ():
                one.start(pid, 0)
        self.account.tenant_of = self.names.get
        self.at(period_ns, self._sample_all)

    def _group_of(self, pid: int) -> int | None:
        process = next(one for one, its in self.pids.items() if its == pid)
        return None if process.has_exited else self.groups[self.owner[process].name]

    def _sample_all(self) -> None:
        for name, gpu in self.gpus.items():
            self._account(name)
            since_ns = self.now if gpu.busy_since_ns is None else gpu.busy_since_ns
            busy_ns = gpu.non_idle_ns + self.now - since_ns
            if not self.is_busy_in_switches:
                busy_ns = sum(ns for (_, on), ns in self.delivered.items() if on == name)
            busy_ratio = (busy_ns - self._was_busy_ns[name]) / self.period_ns
            self._was_busy_ns[name] = busy_ns
            if gpu.running is not None and busy_ratio > 0:
                self.drivers[name].keep(self.now, self.pids[gpu.running], busy_ratio)
        self.at(self.now + self.period_ns + self.rng.randrange(-2 * MS, 2 * MS), self._sample_all)

    def _hold(self, name: str, deadline_ns: int, why: ReasonCode) -> None:
        super()._hold(name, deadline_ns, why)
        self.account.hold([self.groups[name]], self.now)

    def _thaw(self, name: str, why: ReasonCode) -> None:
        super()._thaw(name, why)
        self.account.thaw([self.groups[name]], self.now)

    def snapshot(self) -> Snapshot:
        labels = list(self.gpus)
        uses: dict[tuple[str, str], Use] = {}
        for row in self.account.read(self.now):
            key = self.names[row.cgroup_id], labels[row.gpu]
            was = uses.get(key) or Use(*key, 0, False, 0, Confidence.SAMPLED)
            uses[key] = was._replace(
                used_ns=was.used_ns + row.used_ns,
                has_demand=was.has_demand or row.has_demand,
                outstanding_ns=was.outstanding_ns + row.outstanding_ns,
                paused_ns=was.paused_ns + row.paused_ns,
                idle_ns=was.idle_ns + row.idle_ns,
            )
        interval_ns, self.last_ns = self.now - self.last_ns, self.now
        latency = {tenant.name: tenant.freeze_latency_ns for tenant in self.tenants.values()}
        return Snapshot(self.now, interval_ns, tuple(uses.values()), dict(self.holds), latency)

    # -- the verdict --------------------------------------------------------------------------

    def due(self) -> Mapping[str, float]:
        return entitlements(list(self.tenants), self.specs)

    def error_points(self, start_ns: int, stop_ns: int) -> float:
        """Of the tenant that is furthest off."""
        shares, due = self.shares(start_ns, stop_ns), self.due()
        return 100 * max(abs(shares[name] - due[name]) for name in due)

    def least_of_due(self, start_ns: int, stop_ns: int, window_ns: int) -> float:
        """What anybody got in any window, in parts of its due."""
        due = self.due()
        return min(
            self.shares(begin, begin + window_ns)[name] / due[name]
            for begin in range(start_ns, stop_ns - window_ns + 1, 1000 * MS)
            for name in due
        )


def decoder(token_ns: int = 20 * MS) -> Process:
    return ClosedLoop(token_ns, MS // 10)


def trainer(depth: int = 4) -> Process:
    return DeepQueue(25 * MS, depth)


def tenants_of(*rows: tuple[str, float, Sequence[Process]], **spec: object) -> list[Tenant]:
    """``rows``: name, weight, processes. Trainers are of class batch."""
    found = []
    for name, weight, processes in rows:
        is_batch = isinstance(processes[0], DeepQueue)
        tenant_class = TenantClass.BATCH if is_batch else TenantClass.LATENCY
        found.append(
            Tenant(
                TenantSpec(name, weight=weight, tenant_class=tenant_class, **spec),  # type: ignore[arg-type]
                list(processes),
            )
        )
    return found


MIXES: Mapping[str, Callable[[], list[Tenant]]] = {
    "4:2:1:1": lambda: tenants_of(
        ("a", 4, [decoder()]),
        ("b", 2, [decoder(15 * MS)]),
        ("c", 1, [decoder()]),
        ("greedy", 1, [trainer()]),
    ),
    "3:1": lambda: tenants_of(("a", 3, [decoder()]), ("b", 1, [trainer()])),
    "1:3": lambda: tenants_of(("a", 1, [decoder()]), ("b", 3, [trainer()])),
    "9:1": lambda: tenants_of(("a", 9, [decoder()]), ("b", 1, [trainer()])),
    "four processes": lambda: tenants_of(
        ("a", 1, [decoder()]), ("b", 1, [trainer(2), trainer(2), trainer(2), trainer(2)])
    ),
    "eight contexts": lambda: tenants_of(
        ("a", 4, [decoder(10 * MS)]),
        ("b", 4, [decoder(10 * MS)]),
        ("x", 1, [decoder(10 * MS) for _ in range(8)]),
    ),
    "four equals": lambda: tenants_of(*[(name, 1, [decoder()]) for name in "abcd"]),
    "on and off": lambda: tenants_of(
        ("a", 1, [OnOff(300 * MS, 700 * MS, token_ns=20 * MS, gap_ns=MS // 10)]), ("b", 1, [trainer()])
    ),
    "light": lambda: tenants_of(
        ("a", 1, [ClosedLoop(MS, 22 * MS)]), ("b", 1, [trainer()]), ("c", 1, [decoder()])
    ),
}


def drawn_even(number: int) -> list[Tenant]:
    """Two to eight tenants of equal weight and one process each, that always want the GPU."""
    rng = random.Random(f"even {number}")
    rows = []
    for place in range(rng.randint(2, 8)):
        step_ns = round(rng.uniform(4, 40)) * MS
        process: Process = decoder(step_ns) if rng.random() < 0.5 else DeepQueue(step_ns, rng.randint(2, 4))
        rows.append((f"t{place}", 1.0, [process]))
    return tenants_of(*rows)


def drawn(number: int) -> list[Tenant]:
    """Two to six tenants of weights 1 to 9 that always want the GPU; the same for the same number."""
    rng = random.Random(f"sampled {number}")
    rows = []
    for place in range(rng.randint(2, 6)):
        many, step_ns = rng.choice((1, 1, 1, 2, 3)), round(rng.uniform(2, 40)) * MS
        if rng.random() < 0.5:
            processes: list[Process] = [decoder(step_ns) for _ in range(many)]
        else:
            processes = [DeepQueue(step_ns, rng.randint(2, 4)) for _ in range(many)]
        rows.append((f"t{place}", float(rng.randint(1, 9)), processes))
    return tenants_of(*rows)
