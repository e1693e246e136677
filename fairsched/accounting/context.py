# SPDX-License-Identifier: Apache-2.0
"""What the eBPF account keeps of each context, and the rows and events it hands out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from fairsched.accounting.graphs import GraphTimes
from fairsched.accounting.launch_time import LaunchTime
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge
from fairsched.model import Confidence, ContextKey

DEMAND_LINGER_NS = 25_000_000
"""How long after its last work a context still counts as wanting the GPU."""

WAITED_NS = 50_000
"""A call that waited this long ended because the work did; a shorter one may have found it finished."""

RUN_ON_NS = 300_000_000
"""What is seen to run so long after the last call, or after all that was queued, is not merely the rest of a queue."""

_HIGH = Confidence.HIGH


@dataclass(slots=True)
class ProcessUse:
    """One process on one GPU since the previous read."""

    cgroup_id: int
    tgid: int
    gpu: int
    """Slot number, as given to ``set_device``."""
    used_ns: int
    has_demand: bool
    outstanding_ns: int
    confidence: Confidence
    launches: int
    unmeasured_ns: int = 0
    """GPU time of a burst of each context of whose costs too little is known."""
    paused_ns: int = 0
    """In which its tenant had no work on that GPU and was not held; in one row of each tenant."""
    idle_ns: int = 0
    """Of that, while nobody had."""
    is_anew: bool = False
    """What it was charged so far was found to be too much: its account begins anew."""
    anchored_ns: int = 0
    """Of what it used, in contexts for the end of whose work somebody waits ..."""
    unanchored_launches: int = 0
    """... and what was launched in the others."""


ProcessUses = dict[tuple[int, int, int], ProcessUse]
"""By (cgroup id, process, GPU)."""


@dataclass(slots=True)
class CachedLook:
    """What a look found, at a context where the next one finds the same unless it, or one of these, has changed."""

    submitted: int
    last_call_ns: int
    exec_ns: int
    is_running: bool
    """As the replay has them."""
    tau_ns: float

    has_demand: bool
    outstanding_ns: int
    sure: Confidence
    unmeasured_ns: int
    is_at_rest: bool = field(init=False)
    """It has no work and wants none: to its row it adds nothing, however much time goes by."""

    def __post_init__(self) -> None:
        self.is_at_rest = not (
            self.is_running or self.has_demand or self.outstanding_ns or self.unmeasured_ns
        )


@dataclass(slots=True)
class Context:
    key: ContextKey
    tgid: int
    cgroup_id: int
    gpu: int
    rank: tuple[int, ...] = ()
    reported_ns: int = 0
    """Of the replay's total, already handed out in rows."""
    clock_ns: int | None = None
    """The clock's total at the last row; None while the replay is the account."""
    launches: int = 0
    seq: int = 0
    """Highest sequence number proven complete."""
    seq_exec_ns: int = 0
    """The replay's total at that moment."""
    metered_ns: int = 0
    """Of the total, up to the last proof."""
    seq_ns: int = 0
    """The time of that moment."""
    launch: LaunchTime = field(default_factory=LaunchTime)
    graphs: GraphTimes = field(default_factory=GraphTimes)
    proven_ns: int = 0
    """When completion was last proven, or the context appeared."""
    busy_ns: int = -DEMAND_LINGER_NS
    """When it last was seen with outstanding work."""
    closed_at_ns: int = -DEMAND_LINGER_NS
    """When a burst of it last ended where that could be seen."""
    is_held: bool = False
    held_with_demand: bool = False
    is_unseen: bool = False
    """Older than our probes."""
    held_even_ns: float = 0.0
    """The replay's even share of the time, when it was last held."""
    held_seq: int = 0
    """What had been proven complete by then."""
    drain_ns: int = 0
    """The last drain as it was estimated."""
    drain_doubt_ns: int = 0
    is_drain_new: bool = False
    """It is of a graph that was never seen before."""
    drain_odds: float = 0.0
    """Logarithm of the odds that it still runs, while it is open."""
    pending: dict[ContextKey, int] = field(default_factory=dict)
    """By witness: time in ns that is this drain's if the replay is wrong about it, while that is undecided."""
    exec_before: dict[ContextKey, int] = field(default_factory=dict)
    """The replay's totals when ``pending`` began."""
    is_drain_known: bool = False
    """Witnesses told when it ended."""
    drain_seq: int = -1
    """submitted when the drain was last estimated; -1 = not held or not yet."""
    thawed_ns: int | None = None
    """When the hold ended, while the context has not said yet how far its drain came."""
    is_open: bool = False
    """Whether its last drain still runs is not known."""
    closed_ns: int = -1
    """When that became known."""
    believed_ns: int = 0
    """Since when the replay takes its drain to be running, or to be over."""
    is_ended_in_bpf: bool = False
    """BPF was told that its drain is over: it holds the context to be idle until the next submit."""
    cached: CachedLook | None = None
    """What was found at the last read, until something of it changes; None = look at it each time."""
    anchored_ns: int = 0
    """When a call last waited for the end of its work and was told, or a burst of it began."""
    anchored_part: float = 1.0
    """Of its last proofs, those whose calls waited: a call that does not may take as long, now and then."""
    timed_seq: int | None = None
    """What was launched when its work was last told by its launches; None = it is not timed, see timed.py."""
    begun_ns: int = 0
    """When it, being timed, last began to have something to do ..."""
    begun_exec_ns: int = 0
    """... and what it had been charged by then."""
    is_tainted: bool = False
    """Held since the last proof: the next one says nothing about tau."""
    asked_seq: int = 0
    """What the last proof proved, late or not."""
    is_behind: bool = False
    """``seq`` was proven late: what had been done by then is not known."""

    @property
    def is_timed(self) -> bool:
        """Whether its launches take what samples say."""
        return self.timed_seq is not None

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing queued, drains nothing and wants nothing."""
        cached = self.cached
        is_at_rest = cached is not None and cached.is_at_rest and self.seq >= cached.submitted
        return is_at_rest and not self.is_open

    def is_unchanged(self, live: abi.Ctx, exec_ns: int, is_running: bool) -> bool:
        """Whether a look finds what the last one did. ``exec_ns``, ``is_running``: as the replay has them."""
        cached = self.cached
        return (
            cached is not None
            and bool(live.synced or self.is_held)  # else its silence may come to mean something
            and (cached.exec_ns, cached.is_running) == (exec_ns, is_running)
            and cached.submitted == live.submitted
            and cached.last_call_ns == live.last_call_ns
            and cached.tau_ns == self.launch.tau_ns
        )

    def take(self, exec_ns: int) -> int:
        """What was added to ``exec_ns``, the replay's total, since the last row: it is handed out now.

        Corrections of the replay can take some back: then 0, and less next time.
        """
        used_ns = max(0, exec_ns - self.reported_ns)
        self.reported_ns += used_ns
        return used_ns

    def take_clock(self, total_ns: int, exec_ns: int) -> int:
        """The same by the clock, whose total is ``total_ns``; the first time there is only the replay to go by."""
        before_ns, self.clock_ns = self.clock_ns, total_ns
        used_ns = self.take(exec_ns) if before_ns is None else max(0, total_ns - before_ns)
        self.reported_ns = exec_ns
        return used_ns

    def wants(self, now_ns: int) -> bool:
        """Whether it counts as wanting the GPU."""
        return self.held_with_demand if self.is_held else now_ns - self.busy_ns <= DEMAND_LINGER_NS

    def is_anchor(self, waited_ns: int) -> bool:
        """Whether the work ended as the call that proved it returned: it had waited, and not through a hold."""
        return waited_ns >= WAITED_NS and not self.is_tainted

    def is_of_one_piece(self, proven_seq: int) -> bool:
        """Whether what a proof up to there is charged is the time of just that.

        Not for what was queued when it was held and is proven bit by bit: the first proof has the charge of all of it.
        """
        return self.seq >= self.drain_seq or (self.seq == self.held_seq and proven_seq >= self.drain_seq)

    def is_end_of_drain(self, proven_seq: int) -> bool:
        """Whether progress up to there closes it: for BPF, told earlier that the drain is over, it had been idle."""
        return self.is_ended_in_bpf and proven_seq >= self.drain_seq

    def may_be_cached(self, live: abi.Ctx, now_ns: int) -> bool:
        """Whether, if nothing is heard of it, a look at some later time finds what a look finds now."""
        if self.clock_ns is not None:  # the clock goes on
            return False
        if self.is_held:
            return self.drain_seq == int(live.submitted)
        # A thawed one that does not go on, and one that never asked for completion, are told by their silence.
        is_told = self.thawed_ns is None and bool(live.synced or not live.submitted)
        return is_told and (self.busy_ns == now_ns or now_ns - self.busy_ns > DEMAND_LINGER_NS)


class Move(NamedTuple):
    """A context was found in another cgroup than before: so its process is."""

    t_ns: int
    key: ContextKey
    tgid: int
    gpu: int
    before: int
    """Cgroup id."""
    after: int


@dataclass
class Events:
    """What the edges of one read said besides time."""

    new_processes: list[int] = field(default_factory=list)
    gone_processes: list[int] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    """Cgroups that work was seen in, and that nobody knows: gone again, or new."""


def row_of(rows: ProcessUses, context: Context) -> ProcessUse:
    """Where what a context used and wants is added up."""
    key = cgroup_id, tgid, gpu = context.cgroup_id, context.tgid, context.gpu
    row = rows.get(key)
    if row is None:
        row = rows[key] = ProcessUse(cgroup_id, tgid, gpu, 0, False, 0, _HIGH, 0)
    return row


def wanting_by_gpu(
    rows: ProcessUses, owner_of: Callable[[int], Hashable]
) -> dict[int, dict[Hashable, ProcessUse]]:
    """One row of each owner that wants something: who wants nothing is away. ``owner_of``: of a cgroup."""
    found: dict[int, dict[Hashable, ProcessUse]] = {}
    for row in rows.values():
        if row.has_demand:
            found.setdefault(row.gpu, {})[owner_of(row.cgroup_id)] = row
    return found


def rank_of(edge: Edge, started_ns: Callable[[int], int | None]) -> tuple[int, ...]:
    """Place in the runlist: contexts are taken to stand there in the order they were created.

    One that is older than our probes was created, as far as we can tell, when its process started.
    """
    was_seen = edge.kind == abi.EdgeKind.CTX_NEW and edge.arg != 0
    born_ns = None if was_seen else started_ns(edge.tgid)
    return (edge.t_ns if born_ns is None else born_ns, edge.tgid, edge.slot)
