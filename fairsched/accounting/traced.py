# SPDX-License-Identifier: Apache-2.0
"""GPU time per process from the trace of context switches alone: the account where there is no eBPF and the driver
hands out its trace.

Problem. NVML's samples name one process per 139 ms; the trace names everybody, to 32 ns. But no call is seen, so what a
tenant has queued, and when the last one on the engine has run dry, is not known; and the trace may be refused, lost, or
have holes, and there is none of MIG instances and while an MPS server has clients.

Approach. A book of stays per GPU (:mod:`fairsched.accounting.stays`), above the account of samples: of a GPU whose
trace is read the book is taken, of the others samples, and where a trace is lost samples go on from there. While every
GPU has a trace the source is TRACE, and the law is that of an exact account.

What was uncertain is charged at once, as a whole, to who runs (doubt stays at home), and to who is held where the load
of the GPU is known. When the load of that time is known (DCGM's, else NVML's utilisation: of two readings the higher,
for they come late), what cannot have been work is taken off what is charged next. So totals only grow.

Terms. refund: what a process was charged and had not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairsched.accounting.context import DEMAND_LINGER_NS, ProcessUse
from fairsched.accounting.error import stays_points
from fairsched.accounting.nvml import POLL_NS, NvmlAccount
from fairsched.accounting.pauses import TenantPauses
from fairsched.accounting.stays import Stays
from fairsched.gpu.trace import Trace, TraceLost
from fairsched.model import Confidence, Source

_CHECK_NS = 250_000_000
"""Between two looks at whose a process is: it may move, or end, and its number be another's."""
_LEARN = 0.25
"""What a drain that was shorter than believed counts: queues vary, and one that is expected and not there costs a hold
that is a little early; one that is there and was not expected is a debt."""
_FORGOTTEN_NS = 10_000_000_000
"""A process that had no turn for so long, and waits for none."""
_LOAD_NS = 1_000_000_000
"""Of which a reading of the load tells; NVML's is of a second at most."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Owner:
    """Whose a process is."""

    cgroup_id: int
    """0: nobody knows."""
    identity: object | None
    checked_ns: int
    is_held_wanting: bool = False
    """It had work when it was held, and is held."""
    is_alive: bool = True
    refund_ns: int = 0
    is_draining: bool = False
    """It is held, and what it had queued still runs, as far as is known."""
    drained_ns: int = 0
    """Of that, what has run."""
    queue_ns: float = 0.0
    """What it has queued when it is held, from the times before."""

    @property
    def outstanding_ns(self) -> int:
        """What would still run, or does."""
        return max(0, round(self.queue_ns) - self.drained_ns)

    def begin_drain(self) -> None:
        """It was held with work."""
        if not self.is_draining:
            self.is_draining, self.drained_ns = True, 0

    def end_drain(self, *, is_dry: bool) -> None:
        """Nothing more runs (``is_dry``), or it was let go before."""
        if self.is_draining and (is_dry or self.drained_ns > self.queue_ns):
            self.queue_ns += (self.drained_ns - self.queue_ns) * (
                1.0 if self.drained_ns > self.queue_ns else _LEARN
            )
        self.is_draining = False


@dataclass
class _Window:
    """What was charged while one reading of the load was true."""

    since_ns: int
    certain_ns: int = 0
    uncertain_ns: Counter[int] = field(default_factory=Counter)
    until_ns: int = 0
    load: float | None = None


class _Slot:
    """One GPU whose trace is read."""

    def __init__(self, slot: int, trace: Trace, nature: tuple[int, int]) -> None:
        self.slot, self.trace = slot, trace
        self.book = Stays(*nature)
        self.owners: dict[int, _Owner] = {}
        self.pauses = TenantPauses()
        self.window: _Window | None = None
        self.before: _Window | None = None


class TracedAccount:
    """Uses of HIGH confidence where a trace is read, those of ``below`` elsewhere."""

    def __init__(
        self,
        below: NvmlAccount,
        cgroup_of: Callable[[int], int | None],
        nature: tuple[int, int],
        *,
        identity_of: Callable[[int], object | None] = lambda _pid: 0,
        load: Callable[[int], float | None] = lambda _slot: None,
    ) -> None:
        """``nature``: slice and switch in ns, as far as is known. ``identity_of`` a pid tells two processes of one
        number apart; None: it has ended. ``load``: the part of the last second for which a GPU (slot) was active, where
        that is known."""
        self.below = below
        self._cgroup_of, self._identity_of, self._load, self._nature = cgroup_of, identity_of, load, nature
        self._slots: dict[int, _Slot] = {}
        self._held: set[int] = set()
        self._mute_ns: dict[int, int] = {}
        """Until then samples are of a time that was charged by the trace, or by nobody."""
        self._ended: set[int] = set()
        """Since the last read."""
        self._counts: Counter[str] = Counter()
        """Of traces that were given up."""
        self.slots: Callable[[], Iterable[int]] = tuple
        """GPUs that are there."""
        self._tenant_of: Callable[[int], str | None] = lambda _cgroup_id: None

    # ---- GpuTimeSource ----

    @property
    def source(self) -> Source:
        """TRACE while every GPU has one."""
        wanted = set(self.slots())
        return Source.TRACE if wanted and wanted <= self._slots.keys() else self.below.source

    @property
    def tenant_of(self) -> Callable[[int], str | None]:
        """See :class:`GpuTimeSource`."""
        return self._tenant_of

    @tenant_of.setter
    def tenant_of(self, tenant_of: Callable[[int], str | None]) -> None:
        self._tenant_of = self.below.tenant_of = tenant_of

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read."""
        rows = self.below.read(now_ns)
        self._follow()
        self._mute_ns |= dict.fromkeys(self._ended, now_ns + POLL_NS)
        self._ended.clear()
        for row in rows:
            if row.used_ns and now_ns < self._mute_ns.get(row.gpu, 0):
                row.used_ns = 0
        told = {slot for slot, one in self._slots.items() if one.book.has_begun}
        rows = [row for row in rows if row.gpu not in told]
        for slot in sorted(told):
            rows += self._rows(self._slots[slot], now_ns)
        return rows

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """These were frozen."""
        held = set(cgroup_ids)
        self.below.hold(held, now_ns, by_others=by_others)
        self._held |= held
        for one, pid, owner in self._owners(held):
            process = one.book.processes.get(pid)
            wants = process is not None and (
                one.book.is_wanting(process) or now_ns - process.left_ns <= DEMAND_LINGER_NS
            )
            owner.is_held_wanting = not by_others and (wants or owner.is_held_wanting)
            if wants:
                owner.begin_drain()

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """These run again."""
        thawed = set(cgroup_ids)
        self.below.thaw(thawed, now_ns)
        self._held -= thawed
        for one, pid, owner in self._owners(thawed):
            process = one.book.processes.get(pid)
            owner.end_drain(is_dry=False)
            owner.drained_ns = 0
            if owner.is_held_wanting and process is not None:
                one.book.expect(process, now_ns)
            owner.is_held_wanting = False

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """Not known."""
        return 0

    def error_points(self, window_s: float) -> float:
        """See :class:`GpuTimeSource`."""
        return stays_points(window_s) if self.source is Source.TRACE else self.below.error_points(window_s)

    def error_ratio(self, tenant: str, gpu: int) -> float | None:
        """See :class:`GpuTimeSource`: not known of one, for what the last one on the engine does is not."""
        return None if gpu in self._slots else self.below.error_ratio(tenant, gpu)

    def graph_work(self, _tenant: str, _gpu: int) -> None:
        """The trace does not tell what runs."""

    def counts(self) -> Mapping[str, int]:
        """Of all traces since the start: holes, stays of contexts that the driver cannot name, and the rest."""
        found = Counter(self._counts)
        for one in self._slots.values():
            found.update(one.book.counts)
        return found

    # ---- the traces (observe/traces.py) ----

    @property
    def gpus(self) -> set[int]:
        """Whose trace is read."""
        return set(self._slots)

    def begin(self, gpu: int, trace: Trace) -> None:
        """From now on this tells whose turn it is there."""
        self._slots[gpu] = _Slot(gpu, trace, self._nature)

    def end(self, gpu: int) -> None:
        """From now on samples are the account there."""
        one = self._slots.pop(gpu, None)
        if one is not None:
            self._counts.update(one.book.counts)
            self._ended.add(gpu)

    def _follow(self) -> None:
        for slot, one in list(self._slots.items()):
            try:
                switches, is_whole = one.trace.read()
            except TraceLost as error:
                logger.warning("trace=lost gpu=%d error=%r", slot, str(error))
                self.end(slot)
                continue
            if not is_whole and not any(switch.is_hole for switch in switches):
                one.book.lose()
            one.book.feed(switches, one.trace.told_ns)

    # ---- mechanism ----

    def _owners(self, cgroup_ids: set[int]) -> Iterator[tuple[_Slot, int, _Owner]]:
        for one in self._slots.values():
            for pid, owner in one.owners.items():
                if owner.cgroup_id in cgroup_ids:
                    yield one, pid, owner

    def _rows(self, one: _Slot, now_ns: int) -> list[ProcessUse]:
        used = self._charge(one, now_ns)
        self._note_pauses(one)
        rows, of_tenant = [], dict[object, ProcessUse]()
        for pid, owner in one.owners.items():
            process = one.book.processes[pid]
            wants = owner.is_alive and (
                owner.is_held_wanting
                or one.book.is_wanting(process)
                or now_ns - process.left_ns <= DEMAND_LINGER_NS
            )
            if not used.get(pid) and not wants:
                continue
            is_dry = owner.cgroup_id in self._held and not owner.is_draining
            queued_ns = owner.outstanding_ns if wants and not is_dry else 0
            row = ProcessUse(
                owner.cgroup_id, pid, one.slot, used.get(pid, 0), wants, queued_ns, Confidence.HIGH, 0
            )
            rows.append(row)
            if wants:
                of_tenant.setdefault(self._whose(owner), row)
        free_ns, one.book.free_ns = one.book.free_ns, 0
        for tenant, row in of_tenant.items():
            row.paused_ns = one.pauses.paused_ns(tenant, now_ns)
            row.idle_ns = min(row.paused_ns, free_ns)
        one.pauses.go_on(now_ns)
        self._forget(one, now_ns)
        return rows

    def _charge(self, one: _Slot, now_ns: int) -> dict[int, int]:
        """GPU time by process since the last read, less what is refunded."""
        window, load = self._window(one, now_ns), self._load(one.slot)
        used = {}
        for pid, process in one.book.processes.items():
            owner = self._owner(one, pid, now_ns)
            certain_ns, uncertain_ns = process.certain_ns, process.uncertain_ns
            process.certain_ns = process.uncertain_ns = 0
            if load is None and owner.cgroup_id in self._held:
                uncertain_ns = 0
            window.certain_ns += certain_ns
            window.uncertain_ns[pid] += uncertain_ns
            total_ns = certain_ns + uncertain_ns
            if owner.is_draining:
                owner.drained_ns += total_ns
                if not one.book.is_wanting(process):
                    owner.end_drain(is_dry=True)
            off_ns = min(total_ns, owner.refund_ns)
            owner.refund_ns -= off_ns
            if total_ns > off_ns:
                used[pid] = total_ns - off_ns
        return used

    def _window(self, one: _Slot, now_ns: int) -> _Window:
        """The one that what is charged now belongs to; the one before the last is settled."""
        window = one.window
        if window is not None and now_ns - window.since_ns < _LOAD_NS:
            return window
        load = self._load(one.slot)
        if one.before is not None:
            self._refund(one, one.before, load)
        if window is not None:
            window.until_ns, window.load = now_ns, load
        one.before, one.window = window, _Window(now_ns)
        return one.window

    def _refund(self, one: _Slot, window: _Window, later_load: float | None) -> None:
        uncertain_ns = sum(window.uncertain_ns.values())
        if window.load is None or later_load is None or not uncertain_ns:
            return
        active_ns = min(1.0, max(window.load, later_load)) * (window.until_ns - window.since_ns)
        part = 1.0 - min(1.0, max(0.0, active_ns - window.certain_ns) / uncertain_ns)
        for pid, ns in window.uncertain_ns.items():
            if pid in one.owners:
                one.owners[pid].refund_ns += round(part * ns)

    def _owner(self, one: _Slot, pid: int, now_ns: int) -> _Owner:
        owner = one.owners.get(pid)
        if owner is not None and now_ns - owner.checked_ns < _CHECK_NS:
            return owner
        cgroup_id, identity = self._cgroup_of(pid), self._identity_of(pid)
        if owner is None:
            owner = one.owners[pid] = _Owner(cgroup_id or 0, identity, now_ns)
            self._counts["nobodys"] += cgroup_id is None
        elif identity is not None and owner.identity != identity:
            if owner.identity is not None:  # its number is another's now
                owner.refund_ns, owner.is_held_wanting = 0, False
                for window in (one.window, one.before):
                    if window is not None:
                        window.uncertain_ns.pop(pid, None)
            owner.identity = identity
        owner.checked_ns = now_ns
        owner.is_alive = cgroup_id is not None
        if cgroup_id is not None:
            owner.cgroup_id = cgroup_id
        else:  # what goes on in its name is of where it was
            owner.is_held_wanting = False
        return owner

    def _whose(self, owner: _Owner) -> object:
        return self._tenant_of(owner.cgroup_id) or owner.cgroup_id

    def _note_pauses(self, one: _Slot) -> None:
        changes, one.book.changes = one.book.changes, []
        for t_ns, pid, wants in changes:
            owner = one.owners.get(pid)
            if owner is not None and (wants or not owner.is_held_wanting):
                one.pauses.note((pid, one.slot), self._whose(owner), t_ns, wants=wants)

    def _forget(self, one: _Slot, now_ns: int) -> None:
        gone = {process.pid for process in one.book.oldest()}
        for pid, process in one.book.processes.items():
            is_over = now_ns - process.seen_ns > _FORGOTTEN_NS
            if is_over and not one.owners[pid].is_held_wanting and not one.book.is_wanting(process):
                gone.add(pid)
        for pid in gone:
            one.pauses.forget((pid, one.slot), self._whose(one.owners.pop(pid)), now_ns)
            one.book.forget(pid)
