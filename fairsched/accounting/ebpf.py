# SPDX-License-Identifier: Apache-2.0
"""GPU time per (cgroup, process, GPU) from the eBPF programs: edges in, rows out.

Problem: BPF counts (clock, contexts, edges); somebody has to turn that into "tenant X received 31 ms since the last
look, has 12 ms queued, and we are sure of it".

Approach: the edges drive one :class:`Replay` per GPU, which is the account. The processor-sharing clock kept in
BPF is the second opinion: used while edges are being lost, and where the replay misses too often (the hardware is not
what it assumes) until a search for another nature has ended (turns.py). The work still queued is estimated from the
learnt GPU time per launch; for a held context that estimate is the drain after which its interval is closed, in the
replay and in BPF.

Terms: *drain* is what a held context still executes. *tau* is the learnt execution time per launch of a context.
*Demand* is outstanding work, now or within the last DEMAND_LINGER_NS: the few hundred microseconds a decoder spends
on the CPU between two tokens are no idleness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from fairsched.accounting import outstanding
from fairsched.accounting.confidence import confidence
from fairsched.accounting.context import (
    DEMAND_LINGER_NS,
    CachedLook,
    Context,
    Events,
    ProcessUse,
    ProcessUses,
    row_of,
)
from fairsched.accounting.contexts import Contexts
from fairsched.accounting.drains import Drains
from fairsched.accounting.launch_time import LaunchMemory, LaunchTime
from fairsched.accounting.pauses import Pauses
from fairsched.accounting.replay import Replay
from fairsched.accounting.tuner import SliceTiming
from fairsched.accounting.turns import ReplayTrust
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from fairsched.model import Confidence, ContextWork

REMEMBERED_CGROUPS = 1024
"""Whose time per launch is kept after their last process has ended."""

_LIVE = int(abi.CtxFlag.LIVE)
_GUESSED = int(abi.CtxFlag.GPU_GUESSED | abi.CtxFlag.UNSEEN)
# An enumeration is looked up by name each time; there are hundreds of edges a second.
_CLOSE = int(abi.EdgeKind.CLOSE)
_CTX_GONE = int(abi.EdgeKind.CTX_GONE)
_CTX_NEW = int(abi.EdgeKind.CTX_NEW)
_GPU_IDLE = int(abi.EdgeKind.GPU_IDLE)
_OPEN = int(abi.EdgeKind.OPEN)
_PROC_EXIT = int(abi.EdgeKind.PROC_EXIT)
_PROC_NEW = int(abi.EdgeKind.PROC_NEW)
_PROGRESS = int(abi.EdgeKind.PROGRESS)
_RESUBMIT = int(abi.EdgeKind.RESUBMIT)


class EbpfAccount:
    """The account of all GPUs of this node. One reader, one thread."""

    def __init__(
        self,
        probe: GpuTimeProbe,
        *,
        gpus: int,
        nature_of: Callable[[int], SliceTiming],
        started_ns: Callable[[int], int | None] = lambda _pid: None,
    ) -> None:
        """``nature_of`` a GPU: the turns it is taken to take at first. ``started_ns`` tells when a process started
        (CLOCK_MONOTONIC), for contexts older than our probes."""
        self._probe = probe
        self._started_ns, self._gpus = started_ns, gpus
        self._nature_of = nature_of
        self._replays: dict[int, Replay] = {}
        self._pauses = Pauses()
        self._contexts = Contexts()
        self._dropped = 0
        self._drains: dict[int, Drains] = {}
        self.trust: dict[int, ReplayTrust] = {}
        """By GPU; step them between two reads."""
        self._launches = LaunchMemory(REMEMBERED_CGROUPS)
        self.single_gpu_processes: set[int] = set()
        """Processes that can see one GPU only: which one a context of theirs is on needs no guess."""
        self.seen_running: Mapping[tuple[int, int], int] = {}
        """By (process, GPU): when NVML last saw it run."""
        self.tenant_of: Callable[[int], str | None] = lambda _cgroup_id: None
        """Of a cgroup: what one tenant's cgroups say is one voice."""
        self.events = Events()
        self.intruded: Set[int] = frozenset()
        """GPUs on which work comes and goes that is in no account: what the others are charged there is too much."""

    # ---- read ----

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read, one row per (cgroup, process, GPU) that exists or just ended."""
        rows: ProcessUses = {}
        self.events = Events()
        for edge in self._probe.read_edges():
            self._on_edge(edge, rows)
        dropped = self._probe.count(abi.Count.EDGE_DROPPED)
        has_lost, self._dropped = dropped != self._dropped, dropped
        if has_lost:
            self._adopt_unknown(now_ns, rows)
        for gpu, replay in self._replays.items():
            replay.advance(now_ns)
            self._end_drains(gpu)
        trusted = {gpu for gpu in self._replays if not has_lost and self.trust[gpu].is_replay_trusted}
        for context in self._contexts.all():  # looking may drop one
            if context.gpu not in trusted or not self._is_unchanged(context, now_ns, rows):
                self._refresh(context, now_ns, has_lost, rows)
        unsure = self.intruded | {gpu for gpu, trust in self.trust.items() if trust.is_unsure}
        if unsure:
            for row in rows.values():
                row.confidence = Confidence.LOW if row.gpu in unsure else row.confidence
        return list(rows.values())

    def _is_unchanged(self, context: Context, now_ns: int, rows: ProcessUses) -> bool:
        """Since the last look nothing of it has changed but the time: most are, most of the time.

        It waits for its turn among many, wants nothing, or is held and drains or has drained.
        """
        cached = context.cached
        if cached is None:
            return False
        live = self._probe.context(context.key[0])
        if (
            (cached.exec_ns, cached.is_running) != self._replays[context.gpu].state(context.key)
            or cached.submitted != live.submitted
            or cached.last_call_ns != live.last_call_ns
            or cached.tau_ns != context.launch.tau_ns
        ):
            return False
        if cached.is_running:
            context.busy_ns = now_ns
        row = row_of(rows, context)
        if cached.has_demand:
            row.has_demand = True
            row.outstanding_ns += cached.outstanding_ns
        if cached.sure is not Confidence.HIGH:
            row.confidence = cached.sure
        return True

    def _refresh(self, context: Context, now_ns: int, has_lost: bool, rows: ProcessUses) -> None:
        live, context.cached = self._probe.context(context.key[0]), None
        if live.generation != context.key[1] or not live.flags & _LIVE:
            if has_lost:
                self._drop(context, now_ns, rows)
            return
        replay, drains = self._replays[context.gpu], self._drains[context.gpu]
        if has_lost:
            self._resync(context, live, replay, now_ns)
        if context.is_held:
            drains.estimate(context, live, now_ns)
        elif live.synced == 0 and now_ns - live.last_call_ns > outstanding.UNSYNCED_IDLE_NS:
            outstanding.end_unless_seen(context, live, replay, self.seen_running, now_ns)
        else:
            drains.step(context, live, now_ns)
        is_running = replay.is_runnable(context.key)
        if is_running:
            context.busy_ns = now_ns
        if has_lost or not self.trust[context.gpu].is_replay_trusted:
            used_ns = self._take_clock(context, live, replay, now_ns)
        else:
            used_ns = self._take(context, replay)
            context.clock_ns = None
        launches, context.launches = live.submitted - context.launches, live.submitted
        row = row_of(rows, context)
        row.used_ns += used_ns
        row.launches += launches
        has_demand = self._demand(context, now_ns)
        row.has_demand |= has_demand
        is_borne_out = self.trust[context.gpu].silence.poll(context, live, now_ns)
        launch, left_ns = self._launch(context), 0
        if is_running:
            spent_ns = replay.exec_ns(context.key) - context.seq_exec_ns
            left_ns = launch.left_ns(live.submitted - context.seq, spent_ns)
            row.outstanding_ns += left_ns
        is_guess = self._gpus > 1 and live.flags & _GUESSED and context.tgid not in self.single_gpu_processes
        sure = confidence(launch, is_borne_out, is_guess=bool(is_guess))
        if sure is not Confidence.HIGH:
            row.confidence = sure
        if not used_ns and not launches and not is_guess and context.may_be_cached(live, now_ns):
            seen = (context.launches, live.last_call_ns, *replay.state(context.key), launch.tau_ns)
            context.cached = CachedLook(*seen, has_demand, left_ns, sure)

    def _take_clock(self, context: Context, live: abi.Ctx, replay: Replay, now_ns: int) -> int:
        """What the clock added since the last row; the first time there is only the replay to go by."""
        total_ns = outstanding.clock_ns(live, self._probe.clock(live.gpu), now_ns)
        before_ns = context.clock_ns
        used_ns = self._take(context, replay) if before_ns is None else max(0, total_ns - before_ns)
        context.clock_ns = total_ns
        context.reported_ns = replay.exec_ns(context.key)
        return used_ns

    def _take(self, context: Context, replay: Replay) -> int:
        """What the replay added since the last row. Its corrections can take back: then 0, and less next time."""
        exec_ns = replay.exec_ns(context.key)
        used_ns = exec_ns - context.reported_ns
        if used_ns <= 0:
            return 0
        context.reported_ns = exec_ns
        return used_ns

    def _book(self, context: Context, replay: Replay, rows: ProcessUses) -> None:
        """What it used up to here goes to where it is now: it is about to move, or to go."""
        row_of(rows, context).used_ns += self._take(context, replay)

    # ---- edges ----

    def _on_edge(self, edge: Edge, rows: ProcessUses) -> None:
        if edge.kind == _PROC_NEW:
            self.events.new_processes.append(edge.tgid)
            return
        if edge.kind == _PROC_EXIT:
            self.events.gone_processes.append(edge.tgid)
            return
        if edge.kind == _GPU_IDLE or edge.engine != abi.COMPUTE or edge.gpu == abi.NO_GPU:
            return
        context = self._context_of(edge, rows)
        replay = self._replays[context.gpu]
        context.cached = None
        replay.advance(edge.t_ns)
        self._end_drains(context.gpu)
        if edge.cgroup_id != context.cgroup_id:
            self._book(context, replay, rows)
            self.events.moves.append(self._contexts.move(context, edge.cgroup_id, edge.t_ns))
        if edge.kind == _OPEN:
            self._drains[context.gpu].answer(context, edge.t_ns)
            context.is_ended_in_bpf = False
            self._pauses.note(context.gpu, edge.t_ns - context.closed_at_ns)
            replay.open(context.key, edge.t_ns)
            context.busy_ns = edge.t_ns
            self._begin_burst(context, replay, edge)
        elif edge.kind in (_CLOSE, _PROGRESS):
            is_end = edge.kind == _CLOSE or context.is_end_of_drain(edge.seq)
            prove, is_anchor = replay.close if is_end else replay.progress, context.is_anchor(edge.arg)
            self.trust[context.gpu].hear(context, prove(context.key, edge.t_ns, is_anchor=is_anchor))
            if is_end:
                context.busy_ns = context.closed_at_ns = edge.t_ns
            self._learn(context, replay, edge)
        elif edge.kind == _RESUBMIT:
            self._resubmit(context, replay, edge)
        elif edge.kind == _CTX_GONE:
            self._drop(context, edge.t_ns, rows)

    def _context_of(self, edge: Edge, rows: ProcessUses) -> Context:
        key = (edge.slot, edge.generation)
        context = self._contexts.get(key)
        if context is not None and context.gpu != edge.gpu:
            self._move(context, edge, rows)
        if context is None:
            context = Context(key, edge.tgid, edge.cgroup_id, edge.gpu, proven_ns=edge.t_ns)
            context.is_unseen = edge.arg == 0 or edge.kind != _CTX_NEW
            self._contexts.add(context)
            context.rank = self._rank(edge)
            self._replay(edge.gpu).add(key, context.rank)
            self.trust[edge.gpu].note_change(edge.t_ns, is_late=context.is_unseen)
        return context

    def _adopt_unknown(self, now_ns: int, rows: ProcessUses) -> None:
        """Contexts whose first edges were lost, and that may never fall idle: BPF knows them."""
        for slot, live in self._probe.contexts():
            if (slot, live.generation) not in self._contexts and live.gpu != abi.NO_GPU:
                whose = (live.generation, live.tgid, live.gpu)
                new = Edge(now_ns, live.cgroup_id, 0, 0, slot, *whose, _CTX_NEW, abi.COMPUTE)
                self._context_of(new, rows)

    def _move(self, context: Context, edge: Edge, rows: ProcessUses) -> None:
        """Its GPU had been a guess and has been named: it goes on, between two bursts, on the right one."""
        replay = self._replays[context.gpu]
        context.cached = None
        replay.advance(edge.t_ns)
        self._book(context, replay, rows)
        replay.remove(context.key, edge.t_ns)
        self._drains[context.gpu].forget(context)
        self.trust[context.gpu].forget(context.key, edge.t_ns)
        context.gpu, context.reported_ns, context.seq_exec_ns = edge.gpu, 0, 0
        self._replay(edge.gpu).add(context.key, context.rank)
        self.trust[edge.gpu].note_change(edge.t_ns)

    def _rank(self, edge: Edge) -> tuple[int, ...]:
        """Place in the runlist: contexts are taken to stand there in the order they were created.

        One that is older than our probes was created, as far as we can tell, when its process started.
        """
        was_seen = edge.kind == _CTX_NEW and edge.arg != 0
        born_ns = None if was_seen else self._started_ns(edge.tgid)
        return (edge.t_ns if born_ns is None else born_ns, edge.tgid, edge.slot)

    def _replay(self, gpu: int) -> Replay:
        if gpu not in self._replays:
            replay = self._replays[gpu] = Replay(*self._nature_of(gpu))
            self._drains[gpu] = Drains(replay, self._launch, self._probe.end_drain)
            self.trust[gpu] = ReplayTrust(replay, lambda cgroup_id: self.tenant_of(cgroup_id) or cgroup_id)
        return self._replays[gpu]

    def _begin_burst(self, context: Context, replay: Replay, edge: Edge) -> None:
        """Nothing older is outstanding, so the next proof measures what is submitted from here on.

        Except in a context older than our probes: what it had queued before is in its first proof.
        """
        context.is_tainted = context.is_held or (context.is_unseen and context.seq == 0)
        context.seq = max(context.seq, edge.seq - 1)
        context.seq_exec_ns, context.seq_ns = replay.exec_ns(context.key), edge.t_ns
        self.trust[context.gpu].begin(context, edge.t_ns)

    def _learn(self, context: Context, replay: Replay, edge: Edge) -> None:
        context.proven_ns = edge.t_ns
        self._drains[context.gpu].answer(context, edge.t_ns)
        launches = edge.seq - context.seq
        if launches <= 0:
            return
        exec_ns = replay.exec_ns(context.key)
        spent_ns = exec_ns - context.seq_exec_ns
        if replay.tape is not None:
            replay.tape.note("burst", context.key, launches, not context.is_tainted)
        if not context.is_tainted and spent_ns > 0:
            moved_ns, is_clean = self._drains[context.gpu].witnessed(context, spent_ns, launches, edge.t_ns)
            spent_ns -= moved_ns
            self.trust[context.gpu].end(context, spent_ns, launches, edge.t_ns)
            if spent_ns > 0 and is_clean:
                context.launch.learn(spent_ns, launches)
                self._launches.remember(context.cgroup_id, context.launch)
            exec_ns = replay.exec_ns(context.key)
        elif not context.is_held and context.seq < context.drain_seq <= edge.seq and spent_ns > 0:
            # All it had queued when it was held. An estimate nobody confirmed teaches less than a measurement.
            learn = context.launch.learn if context.is_drain_known else context.launch.impute
            learn(spent_ns, launches)
        context.is_tainted = context.is_held
        context.seq, context.seq_exec_ns, context.seq_ns = edge.seq, exec_ns, edge.t_ns

    def _resubmit(self, context: Context, replay: Replay, edge: Edge) -> None:
        """It polls, and saw the end of its last burst a pause ago; as long as its neighbours' is the best guess."""
        replay.close_before(context.key, edge.t_ns, self._pauses.mean_ns(context.gpu))
        replay.open(context.key, edge.t_ns)
        self.trust[context.gpu].silence.measure(context, edge.seq, edge.t_ns)

    def _drop(self, context: Context, t_ns: int, rows: ProcessUses) -> None:
        replay = self._replays[context.gpu]
        replay.advance(t_ns)
        self._book(context, replay, rows)
        replay.remove(context.key, t_ns)
        self._drains[context.gpu].forget(context)
        self.trust[context.gpu].forget(context.key, t_ns)
        self._contexts.drop(context)

    def _resync(self, context: Context, live: abi.Ctx, replay: Replay, now_ns: int) -> None:
        """Edges were lost: take what BPF holds now as the truth."""
        if live.busy[abi.COMPUTE].streams and not context.is_held:
            replay.open(context.key, now_ns)
        elif not live.busy[abi.COMPUTE].streams:
            replay.close(context.key, now_ns, is_anchor=False)
        context.seq, context.seq_exec_ns = live.completed, replay.exec_ns(context.key)
        context.is_tainted = True

    # ---- judgements ----

    def _demand(self, context: Context, now_ns: int) -> bool:
        if context.is_held:
            return context.held_with_demand
        return now_ns - context.busy_ns <= DEMAND_LINGER_NS

    def _launch(self, context: Context) -> LaunchTime:
        """What is known of the context, else of another in its cgroup."""
        context.launch = self.trust[context.gpu].silence.launch_of(context) or context.launch
        if not context.launch.samples:
            context.launch = self._launches.borrow(context.cgroup_id) or context.launch
        return context.launch

    # ---- holds ----

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """These cgroups were just frozen: their queues drain unseen. ``by_others``: they want nothing any more."""
        for context in self._contexts.of(cgroup_ids):
            if not context.is_held:
                context.cached, drains = None, self._drains[context.gpu]
                context.held_with_demand = not by_others and self._demand(context, now_ns)
                self._replays[context.gpu].advance(now_ns)
                drains.begin(context)
                drains.estimate(context, self._probe.context(context.key[0]), now_ns)

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """These cgroups run again."""
        for context in self._contexts.of(cgroup_ids):
            if context.is_held:
                context.cached = None
                self._drains[context.gpu].thaw(context, now_ns)

    def is_comeback(self, edge: Edge) -> bool:
        """Whether an edge says that somebody wants a GPU again after a long pause of its own."""
        context = self._contexts.get((edge.slot, edge.generation)) if edge.kind == _OPEN else None
        return context is not None and edge.t_ns - context.busy_ns > abi.COMEBACK_NS

    def relearn(self, gpu: int) -> None:
        """What was learnt of the work there was measured by another nature."""
        self._launches = LaunchMemory(REMEMBERED_CGROUPS)
        for context in self._contexts.all():
            if context.gpu == gpu:
                context.launch = LaunchTime()
                context.is_tainted = True

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """GPU time these cgroups have submitted since they were last held, whatever has been read of it."""
        return outstanding.queued_ns(self._contexts.of(cgroup_ids), self._probe.context, self._launch)

    def _end_drains(self, gpu: int) -> None:
        for key, t_ns in self._replays[gpu].take_drained():
            context = self._contexts.get(key)
            if context is not None:
                self._drains[gpu].drained(context, t_ns)

    def next_drain_end_ns(self) -> int | None:
        """When a GPU on which nothing but a drain runs falls idle; worth waking up for. None: none does."""
        alone = [replay for replay in self._replays.values() if replay.runnable == 1]
        return min((end for replay in alone if (end := replay.drain_end_ns()) is not None), default=None)

    # ---- facts for others ----

    def idle_gpus(self) -> set[int]:
        """Slots with contexts, none of which has work."""
        return {gpu for gpu, replay in self._replays.items() if not replay.runnable}

    def work(self) -> Iterator[ContextWork]:
        """What every context has outstanding."""
        for context in self._contexts.all():
            live, replay = self._probe.context(context.key[0]), self._replays[context.gpu]
            if live.generation == context.key[1]:
                yield outstanding.work_of(context, live, replay.exec_ns(context.key))

    def stand_in_for(self, unseen: Set[tuple[int, int]], now_ns: int) -> None:
        """These (process, GPU) always have work that no edge tells of: the others have their turns with them."""
        for gpu in outstanding.place_stand_ins(self._replays, unseen, self._started_ns, now_ns):
            if self.trust[gpu].note_stand_in(now_ns, is_there=any(where == gpu for _, where in unseen)):
                self.relearn(gpu)

    def guessed_processes(self) -> set[int]:
        """Processes with a context whose GPU is a guess."""
        return {
            live.tgid
            for _, live in self._probe.contexts()
            if live.flags & _GUESSED and live.tgid not in self.single_gpu_processes
        }

    def hit_ratios(self) -> dict[int, float]:
        """How well the replay of each GPU agrees with what is observed."""
        return {gpu: replay.hit_ratio for gpu, replay in self._replays.items()}
