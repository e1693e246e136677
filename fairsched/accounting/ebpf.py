# SPDX-License-Identifier: Apache-2.0
"""GPU time per (cgroup, process, GPU) from the eBPF programs: edges in, rows out.

Problem: BPF counts (clock, contexts, edges); somebody has to turn that into "tenant X received 31 ms since the last
look, has 12 ms queued, and we are sure of it".

Approach: the edges drive one :class:`Replay` per GPU, which divides time among those who have work; what is proven
complete is charged what it costs (engine.py). The processor-sharing clock kept in BPF is the second opinion, used while
edges are being lost. The work still queued is estimated from the learnt GPU time per launch; for a held context that
estimate is the drain after which its interval is closed, in the replay and in BPF.

Terms: *drain* is what a held context still executes. *tau* is the learnt execution time per launch of a context.
*Demand* is outstanding work, now or within the last DEMAND_LINGER_NS: what a decoder spends on the CPU is no idleness.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set

from fairsched.accounting import edge_kinds as kinds
from fairsched.accounting import outstanding
from fairsched.accounting.confidence import confidence
from fairsched.accounting.context import (
    CachedLook,
    Context,
    Events,
    ProcessUse,
    ProcessUses,
    rank_of,
    row_of,
    wanting_by_gpu,
)
from fairsched.accounting.contexts import Contexts
from fairsched.accounting.engine import REMEMBERED_TENANTS, Engine
from fairsched.accounting.error import TRACED_POINTS, probed_points
from fairsched.accounting.follow import Following
from fairsched.accounting.launch_time import LaunchMemory, LaunchTime
from fairsched.accounting.pauses import Pauses
from fairsched.accounting.replay import Replay
from fairsched.accounting.turns import Turns
from fairsched.bpf import abi
from fairsched.bpf.gpu_time import Edge, GpuTimeProbe
from fairsched.model import Confidence, ContextKey, ContextWork, GraphWork, Source

_LIVE = int(abi.CtxFlag.LIVE)
_GUESSED = int(abi.CtxFlag.GPU_GUESSED | abi.CtxFlag.UNSEEN)


class EbpfAccount:
    """The account of all GPUs of this node. See :class:`fairsched.accounting.source.GpuTimeSource`."""

    source = Source.EBPF

    def __init__(
        self,
        probe: GpuTimeProbe,
        *,
        gpus: int,
        nature: tuple[int, int],
        started_ns: Callable[[int], int | None] = lambda _pid: None,
    ) -> None:
        """``nature``: the length of a slice a GPU is taken to have, and what a switch costs, in ns.
        ``started_ns`` tells when a process started (CLOCK_MONOTONIC), for contexts older than our probes."""
        self._probe = probe
        self._started_ns, self.gpus, self._nature = started_ns, gpus, nature
        self._engines: dict[int, Engine] = {}
        self._pauses, self._contexts, self._dropped = Pauses(), Contexts(), 0
        self._launches = LaunchMemory(REMEMBERED_TENANTS, self._owner)
        self.following = Following(self._engines)
        """GPUs that tell themselves whose turn it is."""
        self.single_gpu_processes: set[int] = set()
        """Processes that can see one GPU only: which one a context of theirs is on needs no guess."""
        self.seen_running: Mapping[tuple[int, int], int] = {}
        """By (process, GPU): when NVML last saw it run."""
        self.tenant_of: Callable[[int], str | None] = lambda _cgroup_id: None
        self.cgroup_of: Callable[[int], int | None] = lambda _pid: None
        """Of a process, where it is now: only asked for who is seen on a GPU and in no call."""
        self.events = Events()
        self._begun: ProcessUses | None = None
        """What the next read will tell, as far as it is known."""
        self.is_anybody_hidden = False
        """A tenant has work that is in no account, anywhere: nobody is known to be alone."""
        self.intruded: Set[int] = frozenset()
        """GPUs on which work comes and goes that is in no account: what the others are charged there is too much."""

    # ---- read ----

    def take_in(self, most: int | None = None) -> ProcessUses:
        """Take in what happened, or ``most`` edges of it, ahead of the next read, which tells of it."""
        if self._begun is None:
            self._begun, self.events = ProcessUses(), Events()
        edges = self._probe.read_edges(most)
        self.following.read(edges[-1].t_ns if most and edges else None)  # after them: whose turn was it then
        for edge in edges:
            self._on_edge(edge, self._begun)
        return self._begun

    def read(self, now_ns: int) -> list[ProcessUse]:
        """Everything since the previous read, one row per (cgroup, process, GPU) that exists or just ended."""
        rows, self._begun = self.take_in(), None
        self.events.unknown = self._contexts.place(self.tenant_of, self._probe.context)
        dropped = self._probe.count(abi.Count.EDGE_DROPPED)
        has_lost, self._dropped = dropped != self._dropped, dropped
        if has_lost:
            self._adopt_unknown(now_ns, rows)
        for gpu, engine in self._engines.items():
            engine.is_intruded = self.is_anybody_hidden or gpu in self.intruded
            engine.replay.look(now_ns)
            self._end_drains(engine)
            engine.strangers.read(gpu, engine.replay, self.cgroup_of, now_ns, rows)
        for context in self._contexts.all() if has_lost else self._contexts.due(rows):  # looking may drop one
            if has_lost or not self._is_unchanged(context, now_ns, rows):
                self._refresh(context, now_ns, has_lost, rows)
        self._take_pauses(now_ns, rows)
        if intruded := self.intruded - self.traced_gpus():
            for row in rows.values():
                row.confidence = Confidence.LOW if row.gpu in intruded else row.confidence
        return list(rows.values())

    def _take_pauses(self, now_ns: int, rows: ProcessUses) -> None:
        wanting = wanting_by_gpu(rows, self._owner)
        for gpu, engine in self._engines.items():
            engine.take_pauses(wanting.get(gpu, {}), now_ns)

    def _is_unchanged(self, context: Context, now_ns: int, rows: ProcessUses) -> bool:
        """Since the last look nothing of it has changed but the time: most are, most of the time.

        It waits for its turn among many, wants nothing, or is held and drains or has drained.
        """
        live, cached = self._probe.context(context.key[0]), context.cached
        if cached is None or not context.is_unchanged(
            live, *self._engines[context.gpu].replay.state(context.key)
        ):
            return False
        if cached.is_running:
            context.busy_ns = now_ns
        row = row_of(rows, context)
        if cached.has_demand:
            row.has_demand = True
            row.outstanding_ns += cached.outstanding_ns
        row.unmeasured_ns += cached.unmeasured_ns
        if cached.sure is not Confidence.HIGH:
            row.confidence = row.confidence.and_of(cached.sure)
        return True

    def _refresh(self, context: Context, now_ns: int, has_lost: bool, rows: ProcessUses) -> None:
        live, context.cached = self._probe.context(context.key[0]), None
        if live.generation != context.key[1] or not live.flags & _LIVE:
            if has_lost:
                self._drop(context, now_ns, rows)
            return
        engine = self._engines[context.gpu]
        replay, drains = engine.replay, engine.drains
        if has_lost:
            engine.resync(context, live, now_ns)
        if context.is_held:
            drains.estimate(context, live, now_ns)
        elif live.synced == 0 and now_ns - live.last_call_ns > outstanding.UNSYNCED_IDLE_NS:
            outstanding.end_unless_seen(context, live, replay, self.seen_running, now_ns)
        else:
            drains.step(context, live, now_ns)
        is_there = engine.look(context, now_ns)
        is_running = replay.is_runnable(context.key)
        if is_running:
            context.busy_ns = now_ns
        if has_lost:
            used_ns = self._take_clock(context, live, replay, now_ns)
        else:
            used_ns = self._take(context, replay)
            context.clock_ns = None
        if used_ns and replay.is_traced and not context.wants(now_ns):  # no call told of that
            context.busy_ns = now_ns
        launches, context.launches = live.submitted - context.launches, live.submitted
        row = row_of(rows, context)
        row.used_ns += used_ns
        row.launches += launches
        has_demand = context.wants(now_ns)
        row.has_demand |= has_demand
        is_borne_out = engine.silence.poll(context, live, now_ns)
        launch, left_ns = self._launch(context), 0
        if is_running:
            left_ns = engine.left_ns(context, live.submitted)
            row.outstanding_ns += left_ns
        unmeasured_ns = engine.unmeasured_ns(context)
        row.unmeasured_ns += unmeasured_ns
        is_guess = self.gpus > 1 and live.flags & _GUESSED and context.tgid not in self.single_gpu_processes
        sure = confidence(launch, is_borne_out, is_guess=bool(is_guess), is_traced=replay.is_traced)
        if sure is not Confidence.HIGH:
            row.confidence = row.confidence.and_of(sure)
        is_clear = not is_guess and is_there is is_running
        if not used_ns and not launches and is_clear and context.may_be_cached(live, now_ns):
            seen = (context.launches, live.last_call_ns, *replay.state(context.key), launch.tau_ns)
            context.cached = CachedLook(*seen, has_demand, left_ns, sure, unmeasured_ns)

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
        used_ns = max(0, replay.exec_ns(context.key) - context.reported_ns)
        context.reported_ns += used_ns
        return used_ns

    def _book(self, context: Context, replay: Replay, rows: ProcessUses) -> None:
        """What it used up to here goes to where it is now: it is about to move, or to go."""
        row_of(rows, context).used_ns += self._take(context, replay)

    # ---- edges ----

    def _on_edge(self, edge: Edge, rows: ProcessUses) -> None:
        if edge.kind in (kinds.PROC_NEW, kinds.PROC_EXIT):
            is_new = edge.kind == kinds.PROC_NEW
            (self.events.new_processes if is_new else self.events.gone_processes).append(edge.tgid)
            return
        if edge.kind == kinds.GPU_IDLE or edge.engine != abi.COMPUTE or edge.gpu == abi.NO_GPU:
            return
        context = self._context_of(edge, rows)
        replay = (engine := self._engines[context.gpu]).replay
        context.cached = None
        replay.advance(edge.t_ns)
        self._end_drains(engine)
        if (
            edge.cgroup_id != context.cgroup_id
            and (place := self._place_of(edge, context.key)) != context.cgroup_id
        ):
            self._book(context, replay, rows)
            self.events.moves.append(self._contexts.move(context, place, edge.t_ns))
        if edge.kind == kinds.OPEN:
            engine.drains.answer(context, edge.t_ns)
            context.is_ended_in_bpf = False
            self._pauses.note(context.gpu, edge.t_ns - context.closed_at_ns)
            replay.open(context.key, edge.t_ns)
            context.busy_ns = edge.t_ns
            engine.begin(context, edge)
        elif edge.kind in (kinds.CLOSE, kinds.PROGRESS):
            is_end = edge.kind == kinds.CLOSE or context.is_end_of_drain(edge.seq)
            prove, is_anchor = replay.close if is_end else replay.progress, context.is_anchor(edge.arg)
            engine.silence.hear(context, prove(context.key, edge.t_ns, is_anchor=is_anchor))
            if is_anchor and not is_end:  # it goes on, whatever its silence was taken for
                replay.open(context.key, edge.t_ns)
            if is_end:
                context.busy_ns = context.closed_at_ns = edge.t_ns
            self._prove(context, engine, edge)
        elif edge.kind == kinds.RESUBMIT:
            self._resubmit(context, engine, edge)
        elif edge.kind == kinds.CTX_GONE:
            self._drop(context, edge.t_ns, rows)
            return
        engine.look(context, edge.t_ns)

    def _place_of(self, edge: Edge, key: ContextKey) -> int:
        return self._contexts.place_of(key, edge.cgroup_id, self._probe.context(edge.slot), self.tenant_of)

    def _context_of(self, edge: Edge, rows: ProcessUses) -> Context:
        key = (edge.slot, edge.generation)
        context = self._contexts.get(key)
        if context is not None and context.gpu != edge.gpu:
            self._move(context, edge, rows)
        if context is None:
            context = Context(key, edge.tgid, self._place_of(edge, key), edge.gpu, proven_ns=edge.t_ns)
            context.is_unseen = edge.arg == 0 or edge.kind != kinds.CTX_NEW
            self._contexts.add(context)
            context.rank = rank_of(edge, self._started_ns)
            engine = self._engine(edge.gpu)
            engine.replay.add(key, context.rank, context.tgid)
            if context.is_unseen:  # it may have worked before we saw it: whoever seemed to be alone was not
                engine.costs.forget()
        return context

    def _adopt_unknown(self, now_ns: int, rows: ProcessUses) -> None:
        """Contexts whose first edges were lost, and that may never fall idle: BPF knows them."""
        for slot, live in self._probe.contexts():
            if (slot, live.generation) not in self._contexts and live.gpu != abi.NO_GPU:
                whose = (live.generation, live.tgid, live.gpu)
                new = Edge(now_ns, live.cgroup_id, 0, 0, slot, *whose, kinds.CTX_NEW, abi.COMPUTE)
                self._context_of(new, rows)

    def _move(self, context: Context, edge: Edge, rows: ProcessUses) -> None:
        """Its GPU had been a guess and has been named: it goes on, between two bursts, on the right one."""
        engine = self._engines[context.gpu]
        context.cached = None
        engine.replay.advance(edge.t_ns)
        self._book(context, engine.replay, rows)
        engine.replay.remove(context.key, edge.t_ns)
        engine.forget(context, edge.t_ns)
        context.gpu, context.reported_ns, context.seq_exec_ns, context.metered_ns = edge.gpu, 0, 0, 0
        self._engine(edge.gpu).replay.add(context.key, context.rank, context.tgid)

    def _engine(self, gpu: int) -> Engine:
        if gpu not in self._engines:
            replay, probe = Turns(*self._nature), self._probe
            self._engines[gpu] = Engine(replay, self._launch, self._owner, probe.end_drain, probe.graphs)
        return self._engines[gpu]

    def _owner(self, cgroup_id: int) -> Hashable:
        """Its tenant; itself where it is in none."""
        return self.tenant_of(cgroup_id) or cgroup_id

    def _prove(self, context: Context, engine: Engine, edge: Edge) -> None:
        context.proven_ns = edge.t_ns
        engine.drains.answer(context, edge.t_ns)
        if engine.end(context, edge):
            self._launches.remember(context.cgroup_id, context.launch)

    def _resubmit(self, context: Context, engine: Engine, edge: Edge) -> None:
        """It polls, and saw the end of its last burst a pause ago; as long as its neighbours' is the best guess."""
        engine.replay.close_before(context.key, edge.t_ns, self._pauses.mean_ns(context.gpu))
        engine.replay.open(context.key, edge.t_ns)
        engine.silence.measure(context, edge.seq, edge.t_ns)

    def _drop(self, context: Context, t_ns: int, rows: ProcessUses) -> None:
        engine = self._engines[context.gpu]
        engine.replay.advance(t_ns)
        self._book(context, engine.replay, rows)
        engine.replay.remove(context.key, t_ns)
        engine.forget(context, t_ns)
        if engine.replay.is_traced:  # else nothing comes in its name
            engine.strangers.leave(context.tgid, context.cgroup_id, t_ns)
        self._contexts.drop(context)

    # ---- judgements ----

    def _launch(self, context: Context) -> LaunchTime:
        """What is known of the context, else of another of its tenant."""
        context.launch = self._engines[context.gpu].silence.launch_of(context) or context.launch
        if not context.launch.samples:
            context.launch = self._launches.borrow(context.cgroup_id) or context.launch
        return context.launch

    # ---- holds ----

    def hold(self, cgroup_ids: Iterable[int], now_ns: int, *, by_others: bool = False) -> None:
        """These cgroups were just frozen: their queues drain unseen. ``by_others``: they want nothing any more."""
        self.following.hold(cgroup_ids := frozenset(cgroup_ids), now_ns, by_others=by_others)
        for context in self._contexts.of(cgroup_ids):
            if not context.is_held:
                engine = self._engines[context.gpu]
                context.held_with_demand = not by_others and context.wants(now_ns)
                engine.replay.advance(now_ns)
                engine.drains.begin(context, now_ns)
                engine.drains.estimate(context, self._probe.context(context.key[0]), now_ns)
                engine.stir(context, now_ns)

    def thaw(self, cgroup_ids: Iterable[int], now_ns: int) -> None:
        """These cgroups run again."""
        self.following.thaw(cgroup_ids := frozenset(cgroup_ids), now_ns)
        for context in self._contexts.of(cgroup_ids):
            if context.is_held:
                engine = self._engines[context.gpu]
                engine.drains.thaw(context, now_ns)
                engine.stir(context, now_ns)

    def is_comeback(self, edge: Edge) -> bool:
        """Whether an edge says that somebody wants a GPU again after a long pause of its own."""
        context = self._contexts.get((edge.slot, edge.generation)) if edge.kind == kinds.OPEN else None
        return context is not None and edge.t_ns - context.busy_ns > abi.COMEBACK_NS

    def relearn(self, gpu: int) -> None:
        """What was learnt of the work there was wrong: somebody was taken to be there who was not.

        What was learnt of those who were alone is right all the same.
        """
        self._launches.clear()
        for context in self._contexts.all():
            if context.gpu == gpu:
                context.launch = LaunchTime()
                context.is_tainted = True

    def is_charged(self, key: ContextKey) -> bool:
        """Whether a context is taken to be working, so that it is charged while time goes by."""
        context = self._contexts.get(key)
        return context is not None and self._engines[context.gpu].replay.is_runnable(key)

    def end(self, key: ContextKey, now_ns: int) -> None:
        """The work of a context is over, whatever was heard of it."""
        context = self._contexts.get(key)
        if context is not None:
            engine = self._engines[context.gpu]
            engine.replay.close(key, now_ns, is_anchor=False)
            context.thawed_ns = context.cached = None
            engine.look(context, now_ns)

    def queued_since_hold_ns(self, cgroup_ids: Iterable[int]) -> int:
        """See :class:`GpuTimeSource`; whatever has been read of it."""
        return outstanding.queued_ns(self._contexts.of(cgroup_ids), self._probe.context, self._engines)

    def _end_drains(self, engine: Engine) -> None:
        drains, replay = engine.drains, engine.replay
        for tell, ends in ((drains.drained, replay.take_drained()), (drains.passed, replay.take_passed())):
            for key, t_ns in ends:
                if (context := self._contexts.get(key)) is not None:
                    tell(context, t_ns)

    def next_drain_end_ns(self) -> int | None:
        """When a GPU on which nothing but drains run falls idle; worth waking up for. None: none does."""
        return min(filter(None, (one.replay.drain_end_ns() for one in self._engines.values())), default=None)

    def open_drains(self) -> dict[int, int]:
        """By GPU slot: how many held contexts have an interval open in BPF."""
        return {gpu: engine.drains.open_in_bpf(self._probe.context) for gpu, engine in self._engines.items()}

    # ---- facts for others ----

    def error_points(self, window_s: float) -> float:
        """See :class:`GpuTimeSource`."""
        is_traced = self.traced_gpus() >= self._engines.keys() > set()
        return TRACED_POINTS if is_traced else probed_points(window_s)

    def error_ratio(self, tenant: str, gpu: int) -> float | None:
        """See :class:`GpuTimeSource`."""
        return self._engines[gpu].error_ratio(tenant) if gpu in self._engines else None

    def graph_work(self, tenant: str, gpu: int) -> GraphWork | None:
        """See :class:`GpuTimeSource`."""
        return self._engines[gpu].costs.of(tenant).graphs() if gpu in self._engines else None

    def traced_gpus(self) -> set[int]:
        """Slots of those that tell themselves whose turn it is."""
        return {gpu for gpu, engine in self._engines.items() if engine.replay.is_traced}

    def idle_gpus(self) -> set[int]:
        """Slots with contexts, none of which has work."""
        return {gpu for gpu, engine in self._engines.items() if not engine.replay.runnable}

    def work(self) -> Iterator[ContextWork]:
        """What every context has outstanding."""
        return outstanding.work_of_all(self._contexts.all(), self._probe.context, self._engines)

    def stand_in_for(self, unseen: Set[tuple[int, int]], now_ns: int) -> None:
        """These (process, GPU) always have work that no edge tells of: the others have their turns with them."""
        for gpu, engine in self._engines.items():
            here = {pid for pid, where in unseen if where == gpu and not engine.replay.is_traced}
            placed = outstanding.place_stand_ins(engine.replay, here, self._started_ns, now_ns)
            if placed is not None:
                engine.stand_in(*placed, now_ns)

    def guessed_processes(self) -> set[int]:
        """Processes with a context whose GPU is a guess."""
        guessed = {live.tgid for _, live in self._probe.contexts() if live.flags & _GUESSED}
        return guessed - self.single_gpu_processes

    def contradicted_gpus(self) -> set[int]:
        """Slots of GPUs that take turns otherwise than the replay: who was not measured may be charged wrongly."""
        return {gpu for gpu, engine in self._engines.items() if engine.is_contradicted}
