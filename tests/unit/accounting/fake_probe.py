# SPDX-License-Identifier: Apache-2.0
"""Stands in for GpuTimeProbe: a test says what processes do, the edges and live contexts follow as BPF makes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fairsched.accounting.context import ProcessUse
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge
from fairsched.bpf.rooms import OwnRooms
from fairsched.gpu.trace import Switch, TraceLost
from fairsched.model import NEVER_NS

MS = 1_000_000
SLICE_NS = 2 * MS
SWITCH_NS = 100_000
SLOTS = 64
PAUSE = MS // 2
WAITED = MS
"""A sync that really waited."""


@dataclass
class FakeProbe:
    """Only what EbpfAccount asks for."""

    contexts_by_slot: list[abi.Ctx] = field(default_factory=lambda: [abi.Ctx() for _ in range(SLOTS)])
    clocks: list[abi.Clock] = field(default_factory=lambda: [abi.Clock() for _ in range(4)])
    edges: list[Edge] = field(default_factory=list)
    dropped: int = 0
    is_losing: bool = False
    """Edges go nowhere and are counted."""
    knows_graphs: bool = True
    """Graphs are told apart."""
    graphs_by_slot: dict[int, abi.Graphs] = field(default_factory=lambda: defaultdict(abi.Graphs))
    drains_ended: list[tuple[int, int, int]] = field(default_factory=list)
    limits: abi.Limits = field(default_factory=abi.Limits)
    now_ns: int = 0
    """When it is told that a drain is over; not before the last call of its process."""
    rooms: OwnRooms = field(default_factory=lambda: OwnRooms(abi.Table.CONTEXTS, abi.MAX_CTXS))

    # ---- what the account asks ----

    def read_edges(self, most: int | None = None) -> list[Edge]:
        end = len(self.edges) if most is None else most
        edges, self.edges = self.edges[:end], self.edges[end:]
        return edges

    @property
    def unread_edges(self) -> int:
        return len(self.edges)

    def count(self, what: abi.Count) -> int:
        return self.dropped if what is abi.Count.EDGE_DROPPED else 0

    def context(self, slot: int) -> abi.Ctx:
        return self.contexts_by_slot[slot]

    def graphs(self, slot: int) -> abi.Graphs:
        return self.graphs_by_slot[slot]

    def contexts(self) -> Iterator[tuple[int, abi.Ctx]]:
        return (
            (slot, live) for slot, live in enumerate(self.contexts_by_slot) if live.flags & abi.CtxFlag.LIVE
        )

    def clock(self, gpu: int) -> abi.Clock:
        return self.clocks[gpu]

    def is_idle(self, gpu: int) -> bool:
        return not any(live.gpu == gpu and live.busy[abi.COMPUTE].streams for _, live in self.contexts())

    def end_drain(self, slot: int, generation: int, v_end_ns: int) -> bool:
        self.drains_ended.append((slot, generation, v_end_ns))
        live = self.contexts_by_slot[slot]
        if live.busy[abi.COMPUTE].streams:
            live.busy[abi.COMPUTE].streams = 0
            self._emit(abi.EdgeKind.CLOSE, slot, max(self.now_ns, live.last_call_ns), seq=live.proven)
        return True

    # ---- what processes do ----

    def _emit(self, kind: abi.EdgeKind, slot: int, t_ns: int, arg: int = 0, seq: int = 0) -> None:
        live = self.contexts_by_slot[slot]
        if self.is_losing:
            self.dropped += 1
            return
        whose = (live.generation, live.tgid, live.gpu)
        self.edges.append(Edge(t_ns, live.cgroup_id, arg, seq, slot, *whose, int(kind), abi.COMPUTE))

    def create(
        self, slot: int, tgid: int, cgroup_id: int, *, t_ns: int = 0, gpu: int = 0, is_seen: bool = True
    ) -> None:
        """A context; not ``is_seen`` = it was there before the probes, its first edge is a submit."""
        generation = self.contexts_by_slot[slot].generation + 1
        live = abi.Ctx(tgid=tgid, cgroup_id=cgroup_id, generation=generation, gpu=gpu)
        live.flags = abi.CtxFlag.LIVE if is_seen else abi.CtxFlag.LIVE | abi.CtxFlag.UNSEEN
        live.handle = 0xC0DE + slot if is_seen else 0
        self.contexts_by_slot[slot] = live
        self.graphs_by_slot[slot] = abi.Graphs()
        self._emit(abi.EdgeKind.CTX_NEW, slot, t_ns, live.handle)

    def launch(self, slot: int, t_ns: int, count: int = 1, graph: int = 0) -> None:
        """``graph``: the handle of the graph, if it was one."""
        live = self.contexts_by_slot[slot]
        pause_ns, live.last_call_ns = t_ns - live.last_call_ns, t_ns
        live.submitted += count
        if graph and self.knows_graphs:
            kept = self.graphs_by_slot[slot]
            kept.generation = live.generation
            kept.latest[kept.total % abi.KEPT_GRAPHS] = (live.submitted, graph)
            kept.total += 1
        busy = live.busy[abi.COMPUTE]
        if not busy.streams:
            busy.streams, busy.open_ns = 1, t_ns
            self._emit(abi.EdgeKind.OPEN, slot, t_ns, live.handle, live.submitted - count + 1)
        elif live.synced == 0 and count > 1 and pause_ns > PAUSE:
            self._emit(abi.EdgeKind.RESUBMIT, slot, t_ns, live.handle, live.submitted - count)

    def sync(self, slot: int, t_ns: int, waited_ns: int = WAITED) -> None:
        """A call returns that proves everything complete."""
        live = self.contexts_by_slot[slot]
        live.completed = live.proven = live.submitted
        live.synced, live.last_call_ns = live.synced + 1, t_ns
        kind = abi.EdgeKind.CLOSE if live.busy[abi.COMPUTE].streams else abi.EdgeKind.PROGRESS
        live.busy[abi.COMPUTE].streams = 0
        self._emit(kind, slot, t_ns, waited_ns, live.completed)

    def progress(self, slot: int, t_ns: int, completed: int, waited_ns: int = WAITED) -> None:
        """A call proves the work up to ``completed`` and more is outstanding."""
        live = self.contexts_by_slot[slot]
        live.completed = live.proven = completed
        live.synced, live.last_call_ns = live.synced + 1, t_ns
        self._emit(abi.EdgeKind.PROGRESS, slot, t_ns, waited_ns, completed)

    def end(self, slot: int, t_ns: int) -> None:
        """The process exits."""
        self._emit(abi.EdgeKind.CTX_GONE, slot, t_ns, seq=self.contexts_by_slot[slot].submitted)
        self._emit(abi.EdgeKind.PROC_EXIT, slot, t_ns)
        self.contexts_by_slot[slot].flags = 0


@dataclass
class FakeTrace:
    """Of context switches; each process has one channel, of its number."""

    switches: list[Switch] = field(default_factory=list)
    is_lost: bool = False
    told_ns: int = NEVER_NS

    def read(self) -> tuple[list[Switch], bool]:
        if self.is_lost:
            raise TraceLost("the driver is gone")
        told, self.switches = self.switches, []
        return told, True

    def rounds(self, *pids: int, begin_ms: int, count: int) -> None:
        """Each has 2 ms in turn."""
        at = begin_ms * MS
        for _ in range(count):
            for pid in pids:
                self.switches += [Switch(at, pid, pid, True), Switch(at + 2 * MS, pid, pid, False)]
                at += 2 * MS


def account_of(probe: FakeProbe, *, gpus: int = 1, born: dict[int, int] | None = None) -> EbpfAccount:
    started = (born or {}).get
    return EbpfAccount(
        probe,  # type: ignore[arg-type]
        gpus=gpus,
        nature=(SLICE_NS, SWITCH_NS),
        started_ns=started,
    )


def taught(
    probe: FakeProbe,
    account: EbpfAccount,
    slot: int = 0,
    tau_ms: int = 2,
    start_ns: int = 0,
    *,
    bursts: int = 30,
) -> int:
    """The context runs alone for so many bursts of ten launches; returns when it is done."""
    now = start_ns
    for _ in range(bursts):
        probe.launch(slot, now, 10)
        now += 10 * tau_ms * MS
        probe.sync(slot, now)
    account.read(now)
    return now


def used(rows: Iterable[ProcessUse]) -> dict[int, int]:
    """Time by cgroup."""
    found: dict[int, int] = {}
    for row in rows:
        found[row.cgroup_id] = found.get(row.cgroup_id, 0) + row.used_ns
    return found
